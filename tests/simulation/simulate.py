"""One history: everything that follows from one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache

from holdfast.storage.register import FencedRegister
from tests.simulation import workload
from tests.simulation.auditors import Auditors
from tests.simulation.choices import Choices
from tests.simulation.cluster import JOB_ID, Cluster, Supervisor
from tests.simulation.disk import Disk
from tests.simulation.kind import LIGHT, Kind
from tests.simulation.leftovers import Leftovers
from tests.simulation.patches import simulated
from tests.simulation.posix import Posix
from tests.simulation.quorum import Quorum, QuorumDocument
from tests.simulation.readers import Consumer, Follower
from tests.simulation.real import new_workers
from tests.simulation.settings import Settings
from tests.simulation.weather import EVENTS, Climate, Weather
from tests.simulation.world import START_MS, Process, World

MAX_PARALLELISM = 8
_BAD = {
    "error": 0.01,
    "full": 0.005,
    "lost": 0.01,
    "late": 0.02,
    "repeated": 0.01,
    "crash": 0.015,
    "power": 0.003,
    "pause": 0.01,
    "jump": 0.005,
}


@dataclass
class History:
    """What became of a seed.

    Attributes:
        seed: The seed.
        failure: What the auditors have found, None if nothing.
        drawn: The draws that were not 0.
        draws: How many there were.
        met: How often each fault and crash point was met.
        steps: How many calls of the simulated system there were.
        signature: Of everything that has happened, in order.
        events: The same: when, in which process, what.
    """

    seed: int
    failure: str | None
    drawn: dict[int, int]
    draws: int
    met: Counter[str]
    steps: int
    signature: int
    events: list[tuple[float, str, str]] = field(repr=False, default_factory=list)

    @property
    def trace(self) -> list[str]:
        """The events, for people."""
        return [f"{now - START_MS:.0f} {name}: {what}" for now, name, what in self.events]


def simulate(
    seed: int,
    recorded: Mapping[int, int] | None = None,
    bug: AbstractContextManager[object] | None = None,
    kind: Kind = LIGHT,
) -> History:
    """Run the history of a seed.

    Args:
        seed: The seed.
        recorded: The draws that are not 0, instead of those that follow from the seed.
        kind: What the tasks are.
        bug: What is put into the code meanwhile.
    """
    choices = Choices(seed, recorded)
    world = World(choices)
    settings, climate, grace, sweep_every = _settings(choices, kind)
    disk = Disk(lambda: world.now)
    for path in (workload.ROOT, *workload.OUTPUTS.values(), workload.SAVEPOINTS):
        disk.make_directory(path)
    disk.sync_directory(disk.root)
    model = _model(kind, settings.epochs)
    world.memory["inputs"] = model.inputs
    job = f"{workload.ROOT}/{JOB_ID}"
    is_quorum = bool(choices.below(2))
    readers, consumers, window = choices.below(3), choices.below(2), (64, 3, 6)[choices.below(3)]
    retained = int(settings.options["execution.checkpointing.num-retained"])
    leftovers = Leftovers(world, disk, job, retained, window)
    pending = int(settings.options["sink.committer.max-pending-checkpoints"])
    auditors = Auditors(world, disk, kind, model, grace, job, settings.max_runs, settings.sinks, pending, leftovers)
    cluster = Cluster(world, settings, kind, None, [list(epoch) for epoch in model.inputs])
    auditors.masters = cluster.masters
    auditors.clocks_jumped = climate.jump > 0

    def lose_power() -> None:
        processes = {actor.process for actor in world.actors} - {world.outside}
        for process in processes:
            process.kill()
        weather.late.clear()
        disk.lose_power(lambda: not choices.below(2), choices.below)
        auditors.after_power_failure(of_files=not is_quorum)

    weather = Weather(world, climate, lose_power)
    world.memory["is calm"] = lambda: weather.is_calm
    posix = Posix(world, disk, weather, auditors.seen)
    cluster.savepoint_completed = auditors.savepoint_completed
    if is_quorum:
        quorum = Quorum(weather, auditors.moved_on)
        cluster.register_of = lambda: FencedRegister(QuorumDocument(quorum))

    def calm() -> None:
        weather.is_calm, leftovers.calm_since = True, world.now

    def story() -> None:
        for _ in range(consumers):
            world.spawn(world.outside, "consumer", Consumer(world, disk, auditors, weather).live)
        follower = Follower(
            world, auditors, kind, cluster.directory, cluster.register, lambda: weather.is_calm and cluster.is_finished
        )
        follower.most = readers
        cluster.start_readers = follower.start
        Supervisor(cluster, calm).live()
        weather.late.clear()
        auditors.at_end()
        kind.at_end(world)
        world.is_over = True

    slow = (0.0, 0.3, 0.9)[choices.below(3)]

    def before_commit() -> None:
        if choices.chance(slow):
            weather.slow_target()

    patched = simulated(world, posix, kind.merge, MAX_PARALLELISM, sweep_every, window, before_commit)
    with new_workers(), patched, kind.surroundings(world), bug or nullcontext():
        world.spawn(world.outside, "story", story)
        world.run()
    return History(
        seed, world.failure, choices.drawn, choices.count, world.met, world.steps, world.signature, world.events
    )


def _settings(choices: Choices, kind: Kind) -> tuple[Settings, Climate, int, int]:
    climate = Climate(switch=(0.005, 0.05, 0.2)[choices.below(3)])
    for name in EVENTS[1:]:
        if choices.below(2):
            setattr(climate, name, _BAD[name] * (1, 0.3, 3)[choices.below(3)])
    grace = (0, 500, 60_000)[choices.below(3)]
    sweep_every = (1, 2, 20)[choices.below(3)]
    max_runs = 3 + choices.below(2)
    options = {
        "execution.checkpointing.dir": workload.ROOT,
        "execution.checkpointing.cleaner.grace-period": f"{grace} ms",
        "execution.checkpointing.cleaner.parallel-mode": str(bool(choices.below(2))).lower(),
        "execution.checkpointing.num-retained": str(1 + choices.below(3)),
        "execution.checkpointing.tolerable-failed-checkpoints": str((0, 2)[choices.below(2)]),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000000",
        "restart-strategy.fixed-delay.delay": "100 ms",
        "sink.committer.max-pending-checkpoints": str((1, 0, 1, 2)[choices.below(4)]),
        "state.compaction.max-runs": str(max_runs),
        "pipeline.max-parallelism": str(MAX_PARALLELISM),
        "rest.enable": "false",
    }
    interval = kind.intervals[choices.below(3)]
    if interval:
        options["execution.checkpointing.interval"] = interval
    if kind.timeouts:
        options["execution.checkpointing.timeout"] = kind.timeouts[choices.below(len(kind.timeouts))]
    if kind.concurrent:
        most = kind.concurrent[choices.below(len(kind.concurrent))]
        options["execution.checkpointing.max-concurrent-checkpoints"] = str(most)
    settings = Settings(
        options=options,
        max_runs=max_runs,
        epochs=kind.epochs[choices.below(3)],
        parallelism=1 + choices.below(3),
        sinks=1 + choices.below(2),
        is_elected=bool(choices.below(2)),
        beside=(0.0, 0.2, 0.8)[choices.below(3)],
        again=(0.0, 0.05, 0.2)[choices.below(3)],
        idle=(0.0, 0.2)[choices.below(2)],
        asks=(0.0, 0.3, 0.6)[choices.below(3)],
        processes=1 + choices.below(5),
    )
    return settings, climate, grace, sweep_every


@cache
def _model(kind: Kind, epochs: int) -> workload.Model:
    return kind.model(workload.payments(epochs))


__all__ = ["History", "Process", "simulate"]
