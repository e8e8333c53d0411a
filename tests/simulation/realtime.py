"""Histories in real time: the real engine, tasks, frames and control connections, whose threads are actors.

Each task is a process. An account is a split of one of two sources, so its payments come in their order; and their
times grow, so that none is ever late. The sources wait for each other, as far as one of them is ahead.
"""

from __future__ import annotations

import queue
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.common import WatermarkStrategy
from holdfast.datastream import ParquetFileSink
from holdfast.errors import EngineError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.watermark import WatermarkAlignment
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import (
    AlignedSource,
    BoundedEnumerator,
    PositionFiles,
    SourceReader,
    SplitEnumerator,
    SplitSource,
)
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.realtime import control, engine, source_coordinator, task, task_meter
from holdfast.runtime.realtime.engine import RealTimeEngine, TaskGroup
from holdfast.runtime.realtime.message import LostFrameError
from holdfast.runtime.realtime.source_coordinator import SourceCoordinator
from holdfast.runtime.realtime.task import RealTimeStage, run_stages
from holdfast.runtime.task.worker_process import LoadedJob
from holdfast.testing.real_time_runner import RealTimeProgram
from holdfast.types.program_classes import unpickle_program
from tests.simulation import network, primitives, real, workload
from tests.simulation.network import Exchange, Network, Trouble
from tests.simulation.primitives import SimulatedClock
from tests.simulation.settings import Settings
from tests.simulation.workload import Payment
from tests.simulation.world import Killed, Process, World

_AT_ONCE = 1
_PAUSES = (0.0, 0.004, 0.02)
_LINGER_SECONDS = 60.0
_SOURCES = ("payments", "others")
_ALIGNMENT = AlignedSource(WatermarkAlignment("all", drift=1, interval=10), gate=None)
_worlds: list[World] = []
"""The world of the history that runs: functions and readers are pickled, so nothing can be given to them."""


class Accounts(SplitSource):
    """Payments by account, each of which is a split.

    Args:
        payments: The payments of each account, in their order.
    """

    def __init__(self, payments: Mapping[str, Sequence[Payment]]) -> None:
        self._payments = payments

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator(dict.fromkeys(self._payments, 0) if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _Reader(self._payments)


class _Reader(SequentialReader):
    def __init__(self, payments: Mapping[str, Sequence[Payment]]) -> None:
        super().__init__()
        self._payments = payments
        self._polled = ""

    def poll(self) -> Any:
        world = _worlds[-1]
        world.tick("poll")
        world.block(None, _PAUSES[world.choices.below(3)])
        if not self._open:
            return None
        split_id = list(self._open)[world.choices.below(len(self._open))]
        self._open = {split_id: self._open[split_id], **self._open}
        self._polled = split_id
        return super().poll()

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Payment], Any]:
        payments, following = self._payments[split_id], state + _AT_ONCE
        return payments[state:following], following if following < len(payments) else None

    @property
    def polled_split(self) -> str:
        return self._polled


class TimedLedger(real.QueryableLedger):
    """Numbers payments, none of which is late."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        watermark = ctx.timer_service().current_watermark()
        if value.payment <= watermark:
            _worlds[-1].fail(f"payment {value.payment} came behind the watermark {watermark}")
        yield from super().process_element(value, ctx)


def graph(parallelism: int, sinks: int) -> StreamGraph:
    """The job."""
    program = RealTimeProgram()
    accounts = by_account(_worlds[-1].memory["inputs"])
    strategy = WatermarkStrategy.for_monotonous_timestamps().per_partition()
    strategy = strategy.with_timestamp_assigner(lambda row, before: row.payment)
    streams = []
    for name in _SOURCES:
        own = {account: payments for account, payments in accounts.items() if source_of(account, accounts) == name}
        payments = program.source(name, Accounts(own), real.ledger.PAYMENT, is_bounded=True)
        timed = payments.assign_timestamps_and_watermarks(strategy).uid(f"times of {name}")
        timed._node.aligned = _ALIGNMENT
        streams.append(timed)
    united = streams[0].union(*streams[1:])
    numbered = united.key_by("account").process(TimedLedger(), real.ledger.ENTRY).uid(workload.LEDGER)
    last = numbered.key_by(lambda entry: entry.total % 2, "bigint").process(real.QueryableParity(), real.ledger.FINAL)
    last.uid(workload.PARITY).sink_to(ParquetFileSink(workload.OUTPUTS["out"])).uid("out")
    return workload.with_sinks(program.get_stream_graph(), sinks)


def source_of(account: str, accounts: Mapping[str, Any]) -> str:
    """The source of an account."""
    return _SOURCES[sorted(accounts).index(account) % len(_SOURCES)]


def by_account(inputs: Sequence[Sequence[Payment]]) -> dict[str, list[Payment]]:
    """The payments of each account, in their order."""
    found: dict[str, list[Payment]] = {}
    for payment in (payment for epoch in inputs for payment in epoch):
        found.setdefault(payment[1], []).append(payment)
    return found


@dataclass(frozen=True)
class Reached:
    """A position: how many payments of each account were read."""

    counts: tuple[tuple[str, int], ...]

    def __lt__(self, other: Reached) -> bool:
        return any(count < dict(other.counts).get(account, 0) for account, count in self.counts)


@dataclass(frozen=True)
class Place:
    """The place of a payment in its account."""

    account: str
    number: int

    def __lt__(self, position: Reached) -> bool:
        return self.number < dict(position.counts)[self.account]


class States:
    """The state at each position, by operator and key."""

    def __init__(self, accounts: Mapping[str, Sequence[Payment]]) -> None:
        self._accounts = accounts

    def __getitem__(self, position: Reached) -> dict[str, dict[str, list[int]]]:
        found: dict[str, dict[str, list[int]]] = {workload.LEDGER: {}, workload.PARITY: {}}
        for account, count in position.counts:
            total = 0
            for number, (_, _, amount) in enumerate(self._accounts[account][:count], start=1):
                total += amount
                found[workload.LEDGER][account] = [number, total]
                of_parity = found[workload.PARITY].setdefault(f"parity {total % 2}", [0])
                of_parity[0] += 1
        return found


class RealTimeModel(real.RealModel):
    """What plain dicts make of the payments, at any position."""

    def __init__(self, inputs: Sequence[Sequence[Payment]]) -> None:
        super().__init__(inputs)
        self._accounts = by_account(inputs)
        self.epoch_of = {
            payment[0]: Place(account, number)
            for account, payments in self._accounts.items()
            for number, payment in enumerate(payments)
        }
        self.states = States(self._accounts)

    @property
    def end(self) -> Any:
        return Reached(tuple((account, len(payments)) for account, payments in sorted(self._accounts.items())))

    def position_of(self, document: CheckpointMetadata) -> Any:
        positions = document.source_positions or {"static": []}
        ended = {leaf["uid"] for leaf in positions["static"]}
        begun = {uid: one["splits"] for line in positions.get("splits", ()) for uid, one in line["positions"].items()}

        def count(account: str) -> int:
            source, most = source_of(account, self._accounts), len(self._accounts[account])
            if source in begun:
                return begun[source].get(account, most)
            return most if source in ended else 0

        return Reached(tuple((account, count(account)) for account in sorted(self._accounts)))


class SimulatedTasks(TaskGroup):
    """The tasks of one launch, each in a process of its own."""

    def __init__(
        self,
        world: World,
        trouble: Trouble,
        exchange: Exchange,
        run: Callable[[Process, int, int], Iterator[pa.RecordBatch]],
        tasks: Sequence[int],
    ) -> None:
        self._world, self._trouble, self._exchange, self._run = world, trouble, exchange, run
        self._failure: HoldfastError | None = None
        self._fails_at: float | None = None
        self._processes: list[Process] = []
        self._ended = 0
        for stage, count in enumerate(tasks):
            for partition in range(count):
                process = Process(world, f"task {stage}-{partition}")
                self._processes.append(process)
                assert world.current is not None
                world.memory.setdefault("tasks", []).append((process, world.current.process))
                world.spawn(process, "main", lambda p=process, s=stage, n=partition: self._live(p, s, n))

    @property
    def is_running(self) -> bool:
        return self.failure is None and self._ended < len(self._processes)

    @property
    def failure(self) -> HoldfastError | None:
        return self._failure if self._fails_at is not None and self._fails_at <= self._world.now else None

    def wait(self, seconds: float) -> bool:
        self._world.block(lambda: self._ended == len(self._processes) or self.failure is not None, seconds)
        return self._ended == len(self._processes)

    def cancel(self) -> None:
        """Ends the tasks; some go on for a while, until they find that they have no driver."""
        for process in self._processes:
            if self._world.choices.chance(self._trouble.strays):
                self._world.note("goes on after its group has ended: task")
            else:
                process.kill()

    def _live(self, process: Process, stage: int, partition: int) -> None:
        world = self._world
        try:
            for batch in self._run(process, stage, partition):
                self._exchange.send(stage, partition, batch)
                if self._trouble.strikes(world.choices, "dies"):
                    world.note("dies between two frames: task")
                    process.kill()
                world.switch()
            self._exchange.ended(stage)
        except Killed:
            self._fail(EngineError("a worker process has died"))
            raise
        except Exception as error:
            if isinstance(error, LostFrameError) and not self._exchange.is_broken:
                world.fail(f"a task fails for frames that came as they were sent: {error}")
            self._fail(error if isinstance(error, HoldfastError) else HoldfastError(f"a task failed: {error!r}"))
        finally:
            self._ended += 1
            process.kill()

    def _fail(self, error: HoldfastError) -> None:
        if self._failure is None and not self._world.is_over:
            self._failure = error
            self._fails_at = self._world.now + network.late(self._world, self._trouble, "failure of a task", 10)


class SimulatedRealTimeEngine(RealTimeEngine):
    """Runs the tasks of real-time jobs as processes of the world.

    Args:
        world: The world.
        inputs: Not used: tasks read the payments themselves.
        settings: How the job is set.
    """

    def __init__(self, world: World, inputs: Sequence[Sequence[Payment]], settings: Settings) -> None:
        super().__init__(Configuration(dict(settings.options)), 1 + (settings.parallelism + settings.sinks) % 2)
        self._world = world
        self._exchange: Exchange | None = None

    def coordinator(
        self, plan: JobPlan, positions: Mapping[str, Any] | None, rules: InputRules, files: PositionFiles
    ) -> SourceCoordinator:
        now = lambda: self._world.now / 1000  # noqa: E731
        return SourceCoordinator(plan, positions, self.source_tasks, rules, files=files, clock=now)

    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        world, content = self._world, job.to_bytes()
        trouble: Trouble = world.memory["trouble"]
        exchange = Exchange(world, list(workers), trouble)
        before, self._exchange = self._exchange, exchange
        if before is not None:
            before.successor = exchange if world.choices.chance(trouble.strays) else None
            for place, batch in before.strays():
                if world.choices.chance(trouble.strays):
                    exchange.take_stray(place, batch)

        def run(process: Process, at: int, partition: int) -> Iterator[pa.RecordBatch]:
            loaded = LoadedJob(*unpickle_program(content))
            clock = SimulatedClock(process)
            yield from run_stages(loaded, stages[at], partition, clock, exchange.read(at, partition))

        return SimulatedTasks(world, trouble, exchange, run, workers)

    def _trigger(self, epoch: EpochDescriptor) -> None:
        under_way = [one.epoch for one in self._barriers.values() if one.failure is None]
        super()._trigger(epoch)
        if under_way:
            self._world.note("begins while another one is under way: checkpoint")
            require_order(self._world, under_way, epoch, self._max_concurrent)

    def control_hosts(self) -> tuple[str, str]:
        return "driver", "driver"

    def services(self) -> Mapping[str, Any]:
        return {}


class SimulatedCondition:
    """A condition for which actors wait."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._notified = 0

    def __enter__(self) -> None:
        """Nobody else runs until this actor waits."""

    def __exit__(self, *_: object) -> None:
        """As above."""

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        return self._world.block(lambda: self._notified > before, timeout)

    def notify_all(self) -> None:
        self._notified += 1


class SimulatedThread:
    """A thread of the process that makes it."""

    def __init__(self, world: World, target: Callable[..., Any], args: Sequence[Any], name: str) -> None:
        self._world, self._name = world, name
        self._body = lambda: target(*args)

    def start(self) -> None:
        assert self._world.current is not None
        self._world.spawn(self._world.current.process, self._name, self._body)


def require_order(world: World, under_way: Sequence[EpochDescriptor], epoch: EpochDescriptor, most: int) -> None:
    """What several checkpoints at a time promise: not more than allowed, and the state of each is that before and more.

    A run that is replaced is deleted soon, and a task that has not come to the barrier yet reads it.
    """
    if len(under_way) >= most:
        world.fail(f"the checkpoint of epoch {epoch.epoch} begins while {len(under_way)} of {most} are under way")
    before = max(under_way, key=lambda one: one.epoch)
    if before.epoch >= epoch.epoch or before.is_last:
        world.fail(f"the checkpoint of epoch {epoch.epoch} begins behind that of epoch {before.epoch}")
    for uid, version in before.versions.items():
        missing = {run.path for run in version.runs} - {run.path for run in epoch.versions[uid].runs}
        if missing:
            world.fail(f"runs of {uid!r} are replaced while a task may read them: {sorted(missing)}")


def require_tasks_ended(world: World) -> None:
    """No task goes on when its driver has ended."""
    tasks: list[tuple[Process, Process]] = world.memory.get("tasks", [])

    def left() -> list[str]:
        return [task.name for task, driver in tasks if driver.is_dead and not task.is_dead]

    world.block(lambda: not left(), _LINGER_SECONDS)
    if left():
        world.fail(f"the tasks {left()} go on without a driver")


@contextmanager
def in_real_time(world: World) -> Iterator[None]:
    """The real code of real time, with nothing of this machine under it."""
    world.memory["trouble"] = trouble = Trouble.draw(world.choices)
    wires = Network(world, trouble)
    threads = primitives.threading_of(world)
    threads.Condition = lambda: SimulatedCondition(world)
    threads.Thread = lambda target, args=(), name="", daemon=True: SimulatedThread(world, target, args, name)
    time = primitives.time_of(world)
    _worlds.append(world)
    with ExitStack() as stack:

        def put(place: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(place, name, value))

        for module in (control, engine, source_coordinator, task):
            put(module, "threading", threads)
        queues = SimpleNamespace(SimpleQueue=lambda: network.Mailbox(world), Empty=queue.Empty)
        put(task, "queue", queues)
        put(task_meter.TaskMeter.__init__, "__defaults__", (time.monotonic,))
        put(task_meter, "waited_for_a_core", lambda: 0.0)
        put(task, "paused_garbage_collection", nullcontext)
        put(task, "collect_young", lambda: None)
        put(engine, "new_nonce", lambda: world.nonce(16))
        put(control, "socket", wires.socket)
        put(control, "select", SimpleNamespace(poll=network.Poll, POLLOUT=select.POLLOUT))
        put(control, "os", SimpleNamespace(dup=lambda number: number))
        put(control, "secrets", SimpleNamespace(token_bytes=lambda count: world.nonce(2 * count).encode()))
        put(control, "Client", wires.connect)
        put(control, "Connection", _ConnectionClass(wires))
        put(control, "answer_challenge", network.answer_challenge)
        put(control, "deliver_challenge", network.deliver_challenge)
        try:
            yield
        finally:
            _worlds.pop()


class _ConnectionClass(type):
    """The class `Connection`, whose instances are those of a network."""

    def __new__(cls, wires: Network) -> Any:
        return super().__new__(cls, "Connection", (), {"wires": wires})

    def __init__(cls, wires: Network) -> None:
        super().__init__("Connection", (), {})

    def __call__(cls, number: int) -> Any:
        return cls.wires.connection(number)  # type: ignore[attr-defined]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, network.SimulatedConnection)
