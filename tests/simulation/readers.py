"""Those who read what a job leaves: replicas that follow its checkpoints, and a consumer of its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.errors import HoldfastError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.storage.register import FencedRegister
from tests.simulation import tasks
from tests.simulation.auditors import Auditors
from tests.simulation.disk import Disk
from tests.simulation.kind import Kind
from tests.simulation.primitives import SimulatedClock
from tests.simulation.weather import Weather
from tests.simulation.workload import Row
from tests.simulation.world import Process, World


def whole(max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """A replica holds all key groups."""
    return (KeyGroupRange(0, max_parallelism - 1),)


class ReplicaBuilder:
    """Reads the state of a checkpoint through the simulated system, run by run, as the real builder does."""

    def __init__(self, directory: Any, contents: dict[int, dict[str, dict[str, Row]]]) -> None:
        self._directory, self._contents = directory, contents

    def build(self, metadata: CheckpointMetadata, before: CheckpointView | None) -> CheckpointView:
        content: dict[str, dict[str, Row]] = {}
        for operator in metadata.operators:
            state = content.setdefault(operator.uid, {})
            for run in operator.runs:
                state.update(tasks.read_run(self._directory, run))
        self._contents[metadata.checkpoint_id] = content
        return CheckpointView(
            metadata.job_id, metadata.job_name, metadata.checkpoint_id, metadata.epoch, metadata.incarnation, 0, {}
        )

    def forget(self, kept: Iterable[CheckpointMetadata]) -> None:
        """Nothing is kept between two checkpoints."""


class Follower:
    """A replica in a process of its own: it follows, dies, and is started again."""

    def __init__(
        self,
        world: World,
        auditors: Auditors,
        kind: Kind,
        directory: Callable[[], Any],
        register: Callable[[], FencedRegister],
        is_over: Callable[[], bool],
    ) -> None:
        self._world, self._auditors, self._directory, self._register = world, auditors, directory, register
        self._kind = kind
        self._is_over = is_over
        self._processes: list[Process] = []

    most = 2

    def start(self) -> None:
        """A new process, unless there are enough; which begins with nothing."""
        self._processes = [process for process in self._processes if not process.is_dead]
        if len(self._processes) >= self.most:
            return
        process = Process(self._world, "replica")
        self._processes.append(process)
        self._world.spawn(process, "follow", lambda: self._live(process))

    def _live(self, process: Process) -> None:
        directory = self._directory()
        contents: dict[int, dict[str, dict[str, Row]]] = {}
        follower = CheckpointFollower(directory, self._register(), whole, clock=SimulatedClock(process))
        if self._kind.shown_by is None:
            follower._builder = ReplicaBuilder(directory, contents)  # type: ignore[assignment]
        seen = idle = 0
        while not self._is_over():
            try:
                if follower.refresh():
                    follower.merge()
            except HoldfastError:
                self._world.met["a replica could not read: replica"] += 1
            newest = follower.replica.newest
            if newest is not None and newest.checkpoint_id != seen:
                shown = contents[newest.checkpoint_id] if self._kind.shown_by is None else self._kind.shown_by(newest)
                self._auditors.read_by_replica(newest.checkpoint_id, newest.epoch, seen, shown)
                seen, idle = newest.checkpoint_id, 0
            idle += 1
            self._world.block(None, (0.01, 0.05, 0.3)[self._world.choices.below(3)] * idle)


class Consumer:
    """Takes files of output away as soon as it likes."""

    def __init__(self, world: World, disk: Disk, auditors: Auditors, weather: Weather) -> None:
        self._world, self._disk, self._auditors, self._weather = world, disk, auditors, weather

    def live(self) -> None:
        """Until the weather is good."""
        while not self._weather.is_calm:
            self._world.block(None, (0.1, 0.5, 3.0)[self._world.choices.below(3)])
            outputs = list(self._auditors.outputs.values())
            output = outputs[self._world.choices.below(len(outputs))]
            visible = output.visible
            if visible:
                path = visible[self._world.choices.below(len(visible))]
                output.take(path)
                self._disk.unlink(path)
                self._disk.sync_directory(self._disk.directory(path.rpartition("/")[0]))
                self._world.note("output taken: consumer")
