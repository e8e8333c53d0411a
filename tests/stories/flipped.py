"""Small checkpoints, whatever is read of them on a restore, and what becomes of that when a bit of one is another."""

from __future__ import annotations

import resource
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path, read_retained, root_of
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.datastream.sinks.driver_sinks import PrintSink
from holdfast.errors import HoldfastError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.commit.commit_manager import MAX_PENDING, CommitManager, CommittingJob
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.environment import Environment
from holdfast.state.hashmap.backend import HashMapKeyedStateBackend
from holdfast.state.run_file import forget_runs, open_run
from holdfast.state.version import StateCache, StateVersion
from holdfast.state_processor import SavepointReader
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import TASK_OWNED
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from holdfast.testing import EpochProgram
from holdfast.types.type_parser import to_type
from tests.programs.written_job import WrittenJob
from tests.stories.local import master

GROUPS = 8
KEYS = ("ada", "bob", "cy")
STATES = (
    ValueStateDescriptor("number", "bigint"),
    ListStateDescriptor("names", "string"),
    MapStateDescriptor("rates", "string", "double"),
)
COLUMNS = "word string, n bigint"
ROWS = [("kelp", 1), ("rock", 2)]
KIBIBYTES = 1024
SECONDS = 2.0
"""Of the processor, that a look at one flipped bit may take; at a whole checkpoint it takes some milliseconds."""
MEBIBYTES = 64
"""Of memory that it may take; at a whole checkpoint it takes none that was not there before."""


@dataclass
class Flips:
    """What became of flipped bits.

    Attributes:
        refused: So many were refused.
        harmless: So many made no difference, because nobody looks at that file any more.
        seconds: The most time of the processor that one took.
        mebibytes: The most memory that one took.
    """

    refused: int = 0
    harmless: int = 0
    seconds: float = 0.0
    mebibytes: float = 0.0


class Flippable(ABC):
    """Something durable of which each bit is flipped.

    Attributes:
        values: What it holds, as it was read when it was whole.
    """

    values: Any

    @abstractmethod
    def files(self) -> list[Path]:
        """What is read on a restore."""

    @abstractmethod
    def read(self) -> Any:
        """Read everything, as it is read on a restore."""

    @abstractmethod
    def verify(self) -> None:
        """Check each byte, also of what nobody reads."""

    def flipped(self, path: Path, bits: Iterable[int]) -> Flips:
        """Flip one bit after the other of a file, and see that nobody believes it, and what looking at it costs."""
        whole, found = path.read_bytes(), Flips()
        with _bounded_room():
            try:
                for bit in bits:
                    place, worth = divmod(bit, 8)
                    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << worth]) + whole[place + 1 :])
                    self._look(path, f"bit {worth} of byte {place} of {path.name}", found)
            finally:
                path.write_bytes(whole)
        return found

    def _look(self, path: Path, what: str, found: Flips) -> None:
        _reset_peak()
        before, began = _kibibytes("VmRSS"), time.process_time()
        try:
            with _bounded_time(what):
                assert self.read() == self.values, f"{what} was believed"
                self.verify()
            found.harmless += 1
        except HoldfastError as error:
            assert str(path) in str(error), f"{error!r} does not name {path}"
            found.refused += 1
        found.seconds = max(found.seconds, time.process_time() - began)
        more = (_kibibytes("VmHWM") - before) / KIBIBYTES
        assert more < MEBIBYTES, f"{what} takes {more} MiB of memory"
        found.mebibytes = max(found.mebibytes, more)


class Small(Flippable):
    """A job with one checkpoint of one operator with a state of each form."""

    def __init__(self, root: Path) -> None:
        self._job = WrittenJob(root, list(STATES), max_parallelism=GROUPS, parallelism=1)
        for count in (1, 2):
            self._job.epoch_of([(key, _writing(count)) for key in KEYS])
        self._job.complete()
        self.values = self.read()

    def files(self) -> list[Path]:
        """The register, the document, the runs."""
        return _files(self._job.directory.path)

    def read(self) -> dict[str, Any]:
        """Restore the newest checkpoint as a worker does with `hashmap`."""
        forget_runs()
        directory, checkpoint = self._job.directory, self._checkpoint()
        [operator] = checkpoint.metadata.operators
        environment = Environment(checkpoint.metadata.job_id, operator.uid, 0, 1, GROUPS)
        backend = HashMapKeyedStateBackend(
            environment, self._job.job_id, operator.uid, self._job._codec, GROUPS, KeyGroupRange(0, GROUPS - 1),
            cache=StateCache(),
        )  # fmt: skip
        backend.open_version(StateVersion(operator.runs), directory.fs, directory.path)
        number, names, rates = (backend.get_partitioned_state(None, None, state) for state in STATES)
        found = {}
        for key in KEYS:
            backend.set_current_key(key)
            found[key] = (number.value(), list(names.get()), dict(rates.items()))
        backend.dispose()
        return found

    def verify(self) -> None:
        """Check each byte of the runs."""
        _verify_runs(self._checkpoint())

    def _checkpoint(self) -> CompletedCheckpoint:
        [checkpoint] = read_retained(self._job.directory, self._job.register.read())
        return checkpoint


class Full(Flippable):
    """A job with timers of both clocks, operator state of each mode, and rows that wait to be committed.

    Operator state of the checkpoint is in a file, that of the savepoint in its document, and the rows of the epoch of
    the savepoint are committed before it is taken.
    """

    def __init__(self, root: Path, *, is_savepoint: bool = False) -> None:
        self._savepoint: str | None = None
        options = {MAX_PENDING.key: "0"}
        if not is_savepoint:
            options["execution.checkpointing.data-inline-threshold"] = "0"
        wanted = SnapshotRequest(is_savepoint=True, directory=str(root / "savepoints"))
        asked: list[Any] = []

        def ask(stage: int, subtask: int) -> None:
            if is_savepoint and not asked:
                asked.append(job.control.request(wanted))

        inputs: list[dict[str, Any]] = [{"in": ROWS}, {"in": []}]
        job = master(
            _program(), root, inputs, options, clock=ManualClock(1), parallelism=1, source_tasks=1, interceptor=ask
        )
        self._directory = job.job.directory
        if is_savepoint:
            with redirect_stdout(StringIO()):
                job.run()
            self._savepoint = wanted.future.result(0)
        else:
            fault.install("before:sink.commit=raise")
            with pytest.raises(JobExecutionError):
                job.run()
            fault.clear()
        self.values = self.read()

    def files(self) -> list[Path]:
        """The register and everything that the checkpoint names; of a savepoint all that is in its directory."""
        if self._savepoint is not None:
            return _files(self._savepoint)
        return [path for path in _files(self._directory.path) if path.suffix != ".nonce"]  # which nobody reads again

    def read(self) -> Any:
        """Read the document and the state as tables, and commit the rows that wait."""
        forget_runs()
        checkpoint = self._checkpoint()
        reader = SavepointReader(None, checkpoint)
        tables = {
            (uid, name): _table_of(reader, uid, name, kind).to_pylist()
            for uid in reader.operators()
            for name, kind in reader.states(uid).items()
        }
        return checkpoint.metadata, tables, _committed(checkpoint)

    def verify(self) -> None:
        """Check each byte of the runs."""
        _verify_runs(self._checkpoint())

    def _checkpoint(self) -> CompletedCheckpoint:
        if self._savepoint is not None:
            return read_by_path(self._savepoint)
        [checkpoint] = read_retained(self._directory, FileRegister.of(self._directory).read())
        return checkpoint


KINDS: Mapping[str, Callable[[Path], Flippable]] = {
    "keyed state": Small,
    "everything": Full,
    "savepoint": lambda root: Full(root, is_savepoint=True),
}


def _table_of(reader: SavepointReader, uid: str, name: str, kind: str) -> Any:
    read = {
        "split": reader.read_list_state, "union": reader.read_union_state, "broadcast": reader.read_broadcast_state,
        "timers": lambda uid, _: reader.read_timers(uid),
    }  # fmt: skip
    return read.get(kind, reader.read_keyed_state)(uid, name)


def _committed(checkpoint: CompletedCheckpoint) -> str:
    """What is printed of the rows that wait, when they are committed."""
    waiting = {uid: rows for operator in checkpoint.metadata.operators for uid, rows in operator.committables.items()}
    printed = StringIO()
    committing = CommitManager(
        {"out": PrintSink(to_type(COLUMNS))},
        CommittingJob(checkpoint.metadata.job_id, join(root_of(checkpoint), TASK_OWNED)),
    )
    try:
        with redirect_stdout(printed):
            committing.commit(1, waiting, is_recovered=True)
    finally:
        committing.close()
    return printed.getvalue()


def _verify_runs(checkpoint: CompletedCheckpoint) -> None:
    root = root_of(checkpoint)
    for operator in checkpoint.metadata.operators:
        for handle in operator.runs:
            open_run(LocalFileSystem(), root, handle).verify()


def _files(root: Path | str) -> list[Path]:
    return sorted(path for path in Path(root).rglob("*") if path.is_file())


class Waiting(KeyedProcessFunction):
    """Counts, and sets a timer of each clock that does not fire."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + value.n)
        ctx.timer_service().register_event_time_timer(10_000 + value.n)
        ctx.timer_service().register_processing_time_timer(20_000 + value.n)
        yield value


class Dealing(RichMapFunction, CheckpointedFunction):
    """Operator state of each mode."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", "bigint"))
        self.union = store.get_union_list_state(ListStateDescriptor("union", "string"))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", "string", "bigint"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.split.add(value.n)
        self.union.add(value.word)
        self.shared.put(value.word, value.n)
        return value


def _program() -> EpochProgram:
    program = EpochProgram()
    dealt = program.source("in", COLUMNS).map(Dealing(), output_type=COLUMNS).uid("dealing")
    kept = dealt.key_by("word").process(Waiting(), output_type=COLUMNS).uid("waiting").set_max_parallelism(GROUPS)
    kept.print().uid("out")
    return program


@contextmanager
def _bounded_time(what: str) -> Iterator[None]:
    """Ends what keeps the processor busy for longer; a test that sleeps has a limit of its own."""

    def too_long(number: int, frame: Any) -> None:
        raise AssertionError(f"{what} keeps the processor busy for {SECONDS} seconds")

    handler = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


@contextmanager
def _bounded_room() -> Iterator[None]:
    """Refuses room that nobody fills, which is no memory yet: a size in a file that is believed."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    most = (_kibibytes("VmData") + 4 * KIBIBYTES * MEBIBYTES) * KIBIBYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def _reset_peak() -> None:
    """Lets the kernel measure the most memory of this process anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _kibibytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"\n{name}:")[2].split()[0])


def _writing(count: int) -> Any:
    def write(states: Any) -> None:
        states.number.update(count)
        states.names.add(f"n{count}")
        states.rates.put(f"r{count}", count / 2)

    return write
