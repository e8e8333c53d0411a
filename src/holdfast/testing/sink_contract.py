"""The contract of exactly-once sinks as a pytest class, `SinkContract`, and the target that it needs, `SinkBackend`.

Every test judges by what readers of the target see. Some tests kill processes in the middle of a commit, at lines all
over it, or suspend them there while another process commits.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.datastream import OutputTag, ParquetFileSink
from holdfast.errors import HoldfastError, JobExecutionError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.ids import JobID
from holdfast.runtime.commit.commit_manager import (
    COMMITTER_RETRIES,
    CommitManager,
    CommitReport,
    CommitSettings,
    CommittingJob,
    Entry,
)
from holdfast.runtime.function.sink import CommitterInitContext, Sink, WriterContext, WriterInitContext
from holdfast.storage.job_directory import FileName
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.type_parser import to_type

SeenRow = tuple[str, int]
"""A row as its reader sees it: the values of the columns `word` and `n`."""


class SinkBackend(ABC):
    """A target, and the sinks that write to it. It must be picklable: processes that are killed in a commit get a copy.

    >>> from contextlib import contextmanager
    >>> class MyTarget(SinkBackend):
    ...     def __init__(self, table):
    ...         self.table = table
    ...
    ...     def new_sink(self):
    ...         return MySink(self.table)
    ...
    ...     def rows(self):
    ...         return read_rows(self.table)
    ...
    ...     @contextmanager
    ...     def away(self):
    ...         self.table.disconnect()
    ...         yield
    ...         self.table.connect()

    Attributes:
        columns: Type of the elements that sinks get.
        steps: Number of lines of a commit, spread over all of them, at which a process is killed, and suspended, in
            turn.
        packages: Packages whose lines count beside those of the sink and of this class: those of a sink that is
            wrapped.
    """

    columns: ClassVar[str] = "word string, n bigint"
    steps: ClassVar[int] = 40
    packages: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def new_sink(self) -> Sink:
        """Return the sink as each process of a job makes it: settings, and no connection."""

    @abstractmethod
    def rows(self) -> list[SeenRow]:
        """Return the rows that a reader of the target sees now, in any order; one that is seen twice is in it twice."""

    @abstractmethod
    def away(self) -> AbstractContextManager[Any]:
        """Make the target unreachable for everybody while the context is entered; its content survives."""

    def refused_row(self) -> tuple[Any, Any] | None:
        """Return a row of the same columns that the target refuses and a task can detect; None if it takes all rows."""
        return None


# Tests of jobs.

FRESH = {"execution.state-recovery.fresh": "true"}
PERSISTENT = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "20 ms",
    "restart-strategy.identical-failures": "1",
    "restart-strategy.identical-unknown-failures": "1",
}
"""A target may be away for an hour: what a sink says of it must not be taken for a failure of the program, of which
some in a row end the job."""

SINK = "out"
MOMENTS = (
    "before:sink.commit:2",
    "after:sink.commit:2",
    "before:metadata.write:2",
    "lost:metadata.write:2",
    "before:pointer.write:2",
    "after:pointer.write:2",
    "lost:pointer.write:2",
    "before:notify:2",
)

SAYS_SO = re.compile(
    rf"sink {SINK!r}: \d+ committables of epoch \d+ were not committed, next try in [\d.]+ s: \S|"
    r"job 'job' restarts in \d+ ms from its last completed checkpoint, after \d+ failure\(s\) in a row: \S"
)
"""What a job that waits for a target logs, each with the reason: by which way it waits, the sink decides."""


class JobContract:
    """Jobs on the epoch runner whose stream ends in the sink."""

    @pytest.fixture(autouse=True)
    def no_faults(self) -> Iterator[None]:
        yield
        fault.clear()

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_a_job_that_dies_and_is_started_again_shows_each_row_once(
        self, sink_backend: SinkBackend, tmp_path: Path, moment: str
    ) -> None:
        fault.install(f"{moment}=raise")
        with suppress(HoldfastError):  # an answer that is lost need not end the job: it looks, and goes on
            _run(sink_backend, tmp_path, 4)
        fault.clear()
        _run(sink_backend, tmp_path, 4)
        assert sorted(sink_backend.rows()) == _rows(1, 4)

    def test_a_job_that_restarts_shows_each_row_once(self, sink_backend: SinkBackend, tmp_path: Path) -> None:
        failures = [2, 5, 6, 11]
        tasks = 0

        def fail(stage: int, subtask: int) -> None:
            nonlocal tasks
            tasks += 1
            if tasks in failures:
                raise StorageError("the worker is gone")

        _run(sink_backend, tmp_path, 4, PERSISTENT, interceptor=fail)
        assert sorted(sink_backend.rows()) == _rows(1, 4)
        assert tasks > max(failures)

    def test_a_fresh_start_writes_its_rows_again(self, sink_backend: SinkBackend, tmp_path: Path) -> None:
        _run(sink_backend, tmp_path, 3)
        _run(sink_backend, tmp_path, 4, FRESH)
        assert sorted(sink_backend.rows()) == sorted(_rows(1, 3) + _rows(1, 4))

    def test_a_job_started_from_another_jobs_checkpoint_commits_its_pending_output(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        fault.install("before:sink.commit:3=raise")
        with pytest.raises(JobExecutionError):
            _run(sink_backend, tmp_path, 3)
        fault.clear()
        assert sorted(sink_backend.rows()) == _rows(1, 2)
        _run(sink_backend, tmp_path, 5, _starting_from(_checkpoints(tmp_path)[-1]), name="another", parallelism=3)
        assert sorted(sink_backend.rows()) == _rows(1, 5)
        _run(sink_backend, tmp_path, 3)
        assert sorted(sink_backend.rows()) == _rows(1, 5), "the first job finds its epoch committed"

    def test_a_job_started_from_an_older_checkpoint_repeats_later_rows_and_loses_none(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        _run(sink_backend, tmp_path, 4, {"execution.checkpointing.num-retained": "4"})
        older = _checkpoints(tmp_path)[1]
        _run(sink_backend, tmp_path, 5, _starting_from(older))
        assert sorted(sink_backend.rows()) == sorted(_rows(1, 5) + _rows(3, 4))

    def test_an_unreachable_target_stops_a_job_without_restarts_and_keeps_its_epochs(
        self, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        _run(sink_backend, tmp_path, 2)
        for _ in range(2):
            with sink_backend.away(), pytest.raises(JobExecutionError):
                _run(sink_backend, tmp_path, 4, {"sink.committer.retries": 1})
        _run(sink_backend, tmp_path, 4)
        assert sorted(sink_backend.rows()) == _rows(1, 4)

    def test_a_job_waits_for_an_unreachable_target_logs_it_and_loses_nothing(
        self, sink_backend: SinkBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        _run(sink_backend, tmp_path, 2)
        caplog.clear()
        away = ExitStack()
        back = threading.Thread(target=_come_back, args=(away, caplog))

        def go_away(stage: int, subtask: int) -> None:
            if back.ident is None:
                away.enter_context(sink_backend.away())
                back.start()

        _run(sink_backend, tmp_path, 4, PERSISTENT, interceptor=go_away)
        back.join()
        assert sorted(sink_backend.rows()) == _rows(1, 4)
        assert SAYS_SO.search(caplog.text), f"the job waited and did not say so, but: {caplog.text}"


def _run(
    backend: SinkBackend, place: Path, epochs: int, options: Mapping[str, Any] | None = None, **settings: Any
) -> None:
    """Run a job of so many epochs on the checkpoint directory that the jobs of a test share."""
    program = EpochProgram()
    rows = program.source("in", backend.columns).map(lambda row: row, backend.columns).uid("same")
    rows.sink_to(backend.new_sink()).uid(SINK)
    inputs = [{"in": _rows(epoch, epoch)} for epoch in range(1, epochs + 1)]
    program.run(place / "checkpoints", inputs, options, **settings)


def _come_back(away: ExitStack, log: pytest.LogCaptureFixture) -> None:
    """Make a target reachable again after a second, but not before the job has logged that it waits."""
    began = time.monotonic()
    with away:
        while time.monotonic() < began + 1.0 or (SAYS_SO.search(log.text) is None and time.monotonic() < began + 60.0):
            time.sleep(0.05)


def _rows(first: int, last: int) -> list[SeenRow]:
    return sorted((word, epoch) for word in ("kelp", "rock", "sand") for epoch in range(first, last + 1))


def _checkpoints(place: Path) -> list[Path]:
    """Return the checkpoints of the first job, oldest first."""
    job = place / "checkpoints" / JobID.from_name("job").to_hex()
    return sorted(job.glob("chk-*"), key=lambda path: int(path.name.partition("-")[2]))


def _starting_from(checkpoint: Path) -> dict[str, str]:
    return {"execution.state-recovery.path": str(checkpoint)}


# A sink without a job: the writers of one epoch, then the commit of their committables.

JOB: Final = "ab" * 16
UID: Final = "out"


class NoPause(ManualClock):
    """A clock that does not wait between the attempts of a commit."""

    def sleep(self, seconds: float, wake: Any = None) -> bool:
        return False


class _NoContext(WriterContext):
    def timestamp(self) -> int | None:
        return None

    def current_watermark(self) -> int:
        return -(2**63)


class SinkStage:
    """A sink of a job without the job; `write` stages an epoch and returns its committables as `_metadata` has them.

    Args:
        sink: The sink.
        staging: The staging directory of writers.
        columns: Type of the elements.
        incarnation: Incarnation of the job.
    """

    def __init__(
        self, sink: Sink, staging: Path, columns: str = "word string, n bigint", *, incarnation: str = ""
    ) -> None:
        self.sink = sink
        self.type = to_type(columns)
        self.staging = staging
        self.incarnation = incarnation
        self.target: Any = None
        self.services: Mapping[str, Any] = {"read_parquet": read_parquet}

    def prepare(self) -> None:
        """Prepare the target as a job does that starts for the first time."""
        self.target = json_copy(self.sink.prepare(self._committer_context(), None))

    def context(self, epoch: int, subtask: int = 0, attempt: int = 1, token: int = 1) -> WriterInitContext:
        return WriterInitContext(
            job_id=JOB,
            uid=UID,
            epoch=epoch,
            subtask=subtask,
            parallelism=2,
            attempt=attempt,
            token=token,
            input_type=self.type,
            staging_dir=str(self.staging),
            incarnation=self.incarnation,
            target=self.target,
        )

    def write(self, epoch: int, rows: Sequence[Any], subtask: int = 0, attempt: int = 1) -> list[dict[str, Any]]:
        """Stage the rows of one subtask, each in a batch of its own, with a pickled copy of the sink as in a task."""
        copy: Sink = pickle.loads(pickle.dumps(self.sink))
        writer: Any = copy.create_writer(self.context(epoch, subtask, attempt))
        for row in rows:
            batch = elements_to_batch([row], self.type, UID)
            if hasattr(writer, "write_batch"):
                writer.write_batch(batch)
            else:
                for element in batch_to_elements(batch, self.type):
                    writer.write(element, _NoContext())
        writer.flush(False)
        handed_out = writer.prepare_commit()
        writer.close()
        return [
            {"incarnation": self.incarnation, "epoch": epoch, "subtask": subtask, "value": json_copy(value)}
            for value in handed_out
        ]

    def commit(
        self, committables: Sequence[Entry], checkpoint_id: int = 1, *, is_recovered: bool = False
    ) -> CommitReport:
        """Commit with a new committer, as the leading process does.

        Raises:
            HoldfastError: Some could not be committed.
        """
        committing = self.committing()
        try:
            return committing.commit(checkpoint_id, {UID: committables}, is_recovered=is_recovered)
        finally:
            committing.close()

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Delete what dead attempts have staged; return the number of files."""
        return self.committing().sweep(is_dead)

    def committing(self, retries: int = COMMITTER_RETRIES.default) -> CommitManager:
        """Return the committers of one process, which retry each epoch so often."""
        return CommitManager(
            {UID: self.sink},
            CommittingJob(JOB, str(self.staging), self.services, (self.incarnation,) if self.incarnation else ()),
            CommitSettings(retries, NoPause()),
        )

    def _committer_context(self) -> CommitterInitContext:
        return CommitterInitContext(JOB, UID, str(self.staging), dict(self.services), (self.incarnation,))


def read_parquet(paths: Sequence[str]) -> pa.Table:
    """The service `read_parquet` of a job: a frame is an Arrow table here."""
    return pa.concat_tables([pq.read_table(path) for path in paths])


def json_copy(value: Any) -> Any:
    """Return a value as a checkpoint restores it.

    Raises:
        AssertionError: A checkpoint would restore something else.
    """
    copy = json.loads(json.dumps(value))
    assert copy == value, f"{value!r} is no JSON value: a checkpoint would give back {copy!r}"
    return copy


# A process that stops at a line of a commit.

PATIENCE: Final = 120.0
"""Seconds within which a process answers."""


class CommitProcess:
    """A process that commits an epoch, and stops at a line of the commit.

    Lines of the packages in which the sink and its test are written count. Calls into other packages run to their end
    before the next line.

    Args:
        backend: Makes its sink.
        staging: The staging directory of writers.
        incarnation: Incarnation of the job.
        committables: The committables.
        line: The line, from 1, before which it stops; 0 if it does not stop.
    """

    def __init__(
        self, backend: SinkBackend, staging: Path, incarnation: str, committables: Sequence[Entry], line: int = 0
    ) -> None:
        # A fork of this process might inherit a lock that a thread of it holds; one of the fork server does not.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(backend).__module__])
        self._answers, theirs = context.Pipe()
        arguments = (theirs, backend, staging, incarnation, list(committables), line)
        self._process = context.Process(target=_commit, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def answer(self) -> Any:
        """Block until it stops, or has committed.

        Returns:
            None if it has stopped; the number of lines if it has committed.

        Raises:
            AssertionError: It has ended without an answer, or does not answer.
        """
        assert self._answers.poll(PATIENCE), "the process that commits does not answer"
        try:
            return self._answers.recv()
        except EOFError:
            raise AssertionError("the process that commits has ended without an answer") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE)

    def go_on(self) -> None:
        """Let a stopped process continue, and block until it has ended.

        The first commit may take more lines than later ones, because it makes directories: a process that should stop
        at such a line has committed and ended.
        """
        with suppress(BrokenPipeError):
            self._answers.send(None)
        self._process.join(PATIENCE)
        assert not self._process.is_alive(), "the process that commits hangs"


def lines_of_a_commit(backend: SinkBackend, staging: Path, incarnation: str, committables: Sequence[Entry]) -> int:
    """Commit in a process that does not stop, and return the number of lines."""
    process = CommitProcess(backend, staging, incarnation, committables)
    lines = process.answer()
    process.kill()
    assert isinstance(lines, int), f"the commit failed: {lines}"
    return lines


def _commit(
    answers: Connection, backend: SinkBackend, staging: Path, incarnation: str, entries: list[Entry], line: int
) -> None:
    stage = SinkStage(backend.new_sink(), staging, backend.columns, incarnation=incarnation)
    packages = {_package(stage.sink), _package(backend), *backend.packages}
    lines = 0

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                answers.send(None)
                answers.recv()
        return follow

    sys.settrace(follow)
    try:
        stage.commit(entries)
    except Exception as error:  # noqa: BLE001 - the parent process compares it
        sys.settrace(None)
        answers.send(repr(error))
    else:
        sys.settrace(None)
        answers.send(lines)


def _package(instance: object) -> str:
    return type(instance).__module__.partition(".")[0]


# Tests of epochs: staged rows are invisible, and committed rows are seen once, whoever dies in between.

INCARNATION = "1" * 32
ANOTHER = "2" * 32


class SinkJob:
    """A job that writes to the target; each of its commits is that of a new process."""

    def __init__(self, backend: SinkBackend, staging: Path, incarnation: str = INCARNATION) -> None:
        self.backend = backend
        self.staging = staging
        self.incarnation = incarnation
        self._first = self._stage()
        self._first.prepare()

    def write(self, epoch: int, first: Sequence[SeenRow], second: Sequence[SeenRow] = (), attempt: int = 1) -> Any:
        """Stage an epoch by two subtasks."""
        return self._first.write(epoch, first, 0, attempt) + self._first.write(epoch, second, 1, attempt)

    def commit(self, committables: Any, checkpoint_id: int = 1, *, is_recovered: bool = False) -> None:
        self._stage().commit(committables, checkpoint_id, is_recovered=is_recovered)

    def sweep(self, attempt: int) -> int:
        """Delete what an attempt has staged."""
        return self._stage().sweep(lambda name: name.attempt == attempt)

    def process(self, committables: Any, line: int = 0) -> CommitProcess:
        return CommitProcess(self.backend, self.staging, self.incarnation, committables, line)

    def lines(self, committables: Any) -> int:
        return lines_of_a_commit(self.backend, self.staging, self.incarnation, committables)

    def _stage(self) -> SinkStage:
        stage = SinkStage(self.backend.new_sink(), self.staging, self.backend.columns, incarnation=self.incarnation)
        stage.target = getattr(getattr(self, "_first", None), "target", None)
        return stage


class CommitContract:
    """Tests of staging and committing: nothing is seen before a commit, everything once after it."""

    @pytest.fixture
    def job(self, sink_backend: SinkBackend, tmp_path: Path) -> SinkJob:
        staging = tmp_path / "staged by the job"
        staging.mkdir()
        return SinkJob(sink_backend, staging)

    def test_nothing_is_seen_before_the_commit_and_everything_after_it(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        committables = job.write(1, [("kelp", 1), ("rock", 2)], [("sand", 3)])
        assert sink_backend.rows() == []
        job.commit(committables)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2), ("sand", 3)]

    def test_an_epoch_without_rows_shows_nothing(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        for epoch in (1, 2):
            committables = job.write(epoch, [])
            if committables:
                job.commit(committables)
        assert sink_backend.rows() == []

    def test_a_commit_that_is_repeated_long_after_shows_nothing_twice(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        epochs = [job.write(epoch, [("kelp", epoch)], [("rock", epoch)]) for epoch in (1, 2, 3)]
        for last, committables in enumerate(epochs):
            job.commit(committables)
            for earlier in epochs[: last + 1]:
                job.commit(earlier, is_recovered=True)
        for committables in epochs:
            job.commit(committables, is_recovered=True)
        assert sorted(sink_backend.rows()) == sorted((word, epoch) for word in ("kelp", "rock") for epoch in (1, 2, 3))

    def test_several_epochs_of_one_checkpoint_are_committed(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        committables = job.write(2, [("rock", 2)]) + job.write(1, [("kelp", 1)])
        job.commit(committables)
        job.commit(committables, is_recovered=True)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2)]

    def test_output_of_a_failed_attempt_is_never_seen(self, job: SinkJob, sink_backend: SinkBackend) -> None:
        job.write(1, [("failed", 1)], attempt=1)
        committables = job.write(1, [("kelp", 1)], attempt=2)
        job.sweep(attempt=1)
        job.commit(committables)
        job.sweep(attempt=1)
        assert sink_backend.rows() == [("kelp", 1)]

    def test_jobs_with_one_target_do_not_disturb_each_other(
        self, job: SinkJob, sink_backend: SinkBackend, tmp_path: Path
    ) -> None:
        """Two jobs with the same uid, epochs and subtasks differ by their incarnation."""
        (tmp_path / "other").mkdir()
        other = SinkJob(sink_backend, tmp_path / "other", ANOTHER)
        job.write(1, [("failed", 1)], attempt=1)
        theirs = other.write(1, [("rock", 1)], attempt=1)
        job.sweep(attempt=1)
        other.commit(theirs)
        job.commit(job.write(1, [("kelp", 1)], attempt=2))
        other.commit(theirs, is_recovered=True)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 1)]

    @pytest.mark.timeout(600)
    def test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in enumerate(self._lines(job, sink_backend), start=2):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            process = job.process(committables, line)
            process.answer()
            process.kill()
            job.commit(committables, is_recovered=True)
            expected += [("kelp", epoch), ("rock", epoch)]
            assert sorted(sink_backend.rows()) == sorted(expected), f"killed at line {line} of the commit"

    @pytest.mark.timeout(600)
    def test_a_process_that_resumes_a_commit_after_another_has_committed_changes_nothing(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in enumerate(self._lines(job, sink_backend), start=2):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            process = job.process(committables, line)
            process.answer()
            expected += [("kelp", epoch), ("rock", epoch)]
            with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
                job.commit(committables, is_recovered=True)
                assert sorted(sink_backend.rows()) == sorted(expected), f"asleep at line {line} of the commit"
            process.go_on()
            job.commit(committables, is_recovered=True)
            assert sorted(sink_backend.rows()) == sorted(expected), f"woken at line {line} of the commit"

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("ends", ["killed", "woken"])
    def test_a_process_that_stops_in_a_commit_beside_the_next_epoch_leaves_both_to_the_next_one(
        self, job: SinkJob, sink_backend: SinkBackend, ends: str
    ) -> None:
        """The newest checkpoint names two epochs: one whose commit had begun, and the one after it."""
        lines = self._lines(job, sink_backend)
        expected = [("kelp", 1), ("rock", 1)]
        for epoch, line in zip((2, 4), (lines[len(lines) // 3], lines[-1]), strict=True):
            first = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            second = job.write(epoch + 1, [("kelp", epoch + 1)])
            process = job.process(first, line)
            process.answer()
            if ends == "killed":
                process.kill()
            with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
                job.commit(second + first, is_recovered=True)
            if ends == "woken":
                process.go_on()
            job.commit(second + first, is_recovered=True)
            expected += [("kelp", epoch), ("rock", epoch), ("kelp", epoch + 1)]
            assert sorted(sink_backend.rows()) == sorted(expected), f"{ends} at line {line} of the commit"

    def test_processes_that_commit_the_same_at_the_same_time_show_it_once(
        self, job: SinkJob, sink_backend: SinkBackend
    ) -> None:
        expected = []
        for epoch in range(1, 6):
            committables = job.write(epoch, [("kelp", epoch)], [("rock", epoch)])
            with ThreadPoolExecutor(3) as pool:
                processes = list(pool.map(lambda _, c=committables: job.process(c), range(3)))
                list(pool.map(CommitProcess.answer, processes))
            for process in processes:
                process.kill()
            try:
                job.commit(committables, is_recovered=True)
            except HoldfastError as error:
                raise AssertionError(f"epoch {epoch} is not committed when all have ended") from error
            expected += [("kelp", epoch), ("rock", epoch)]
            assert sorted(sink_backend.rows()) == sorted(expected)

    def _lines(self, job: SinkJob, sink_backend: SinkBackend) -> list[int]:
        lines = job.lines(job.write(1, [("kelp", 1)], [("rock", 1)]))
        return sorted({1 + step * (lines - 1) // (sink_backend.steps - 1) for step in range(sink_backend.steps)})


# Tests of rows that the target refuses.

REFUSING_SINK: Final = "out"
EPOCHS: Final = 3
Written = tuple[Any, Any]
"""A row as it is written, which the target may refuse."""
ENDS: Final = (
    "after:sink.stage:5=kill",
    "after:pointer.write:2=kill",
    "after:sink.commit:3=kill",
    "lost:sink.commit:3=raise",
)
"""Two sinks commit each epoch, so the third commit is the first of the second epoch: one of the two has it then."""


class RefusalContract:
    """Tests of rows that the target refuses and a task can detect: they stop the job, or go to a side output."""

    @pytest.fixture
    def refused(self, sink_backend: SinkBackend) -> Written:
        row = sink_backend.refused_row()
        if row is None:
            pytest.skip("the target takes all rows of these columns")
        return row

    def test_a_refused_row_stops_the_job_with_the_reason_of_the_dead_letter_output(
        self, sink_backend: SinkBackend, tmp_path: Path, refused: Written
    ) -> None:
        inputs = [{"in": [("kelp", 1)]}, {"in": [("rock", 2), refused, ("sand", 2)]}]
        for _ in range(2):  # started again, it says the same
            with pytest.raises(HoldfastError) as caught:
                _run_refusing(sink_backend, tmp_path, inputs, {"restart-strategy.type": "none"}, goes_aside=False)
        assert sink_backend.rows() == [("kelp", 1)]
        _run_refusing(sink_backend, tmp_path, inputs)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2), ("sand", 2)]
        [letter] = _letters(tmp_path)
        assert letter[:3] == (refused, REFUSING_SINK, 2)
        assert letter[3] and letter[3] in str(caught.value)

    @pytest.mark.parametrize("end", ENDS)
    def test_a_refused_row_reaches_the_dead_letter_output_once_wherever_its_process_ends(
        self, sink_backend: SinkBackend, tmp_path: Path, refused: Written, end: str
    ) -> None:
        # A fork of this process might inherit a lock that a thread of it holds; one of the fork server does not.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(sink_backend).__module__])
        process = context.Process(target=_run_until, args=(sink_backend, tmp_path, refused, end), daemon=True)
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == (-signal.SIGKILL if end.endswith("kill") else 0)
        _run_refusing(sink_backend, tmp_path, _inputs(refused))
        assert sorted(sink_backend.rows()) == sorted((word, n) for word in ("kelp", "sand") for n in range(EPOCHS))
        letters = [letter[:3] for letter in _letters(tmp_path)]
        assert letters == [(refused, REFUSING_SINK, epoch) for epoch in range(1, EPOCHS + 1)]


def _inputs(refused: Written) -> list[dict[str, list[Written]]]:
    return [{"in": [("kelp", n), refused, ("sand", n)]} for n in range(EPOCHS)]


def _run_until(backend: SinkBackend, place: Path, refused: Written, end: str) -> None:
    fault.install(end)
    with suppress(HoldfastError):  # an answer that is lost need not end the job: it looks, and goes on
        _run_refusing(backend, place, _inputs(refused))


def _run_refusing(
    backend: SinkBackend,
    place: Path,
    inputs: list[dict[str, list[Written]]],
    options: Mapping[str, Any] | None = None,
    *,
    goes_aside: bool = True,
) -> None:
    program = EpochProgram()
    out = program.source("in", backend.columns).sink_to(backend.new_sink()).uid(REFUSING_SINK)
    if goes_aside:
        tag = OutputTag("refused")
        letters = out.set_dead_letter_output(tag).get_side_output(tag)
        letters.sink_to(ParquetFileSink(place / "aside")).uid("letters")
    program.run(place / "checkpoints", inputs, options)


def _letters(place: Path) -> list[tuple[Written, str, int, str]]:
    """Return the rows in the dead-letter output, by epoch."""
    tables = [pq.ParquetFile(file).read() for file in (place / "aside").glob("*.parquet")]
    rows = [letter for table in tables for letter in table.to_pylist()]
    letters = [((row["row"]["word"], row["row"]["n"]), row["sink"], row["epoch"], row["reason"]) for row in rows]
    return sorted(letters, key=lambda letter: letter[2])


class SinkContract(CommitContract, JobContract, RefusalContract):
    """The tests that every exactly-once sink must pass. Derive a test class and override the fixture `sink_backend`.

    >>> class TestMySink(SinkContract):
    ...     @pytest.fixture
    ...     def sink_backend(self, tmp_path):
    ...         return MyTarget(tmp_path)
    """

    @pytest.fixture
    def sink_backend(self) -> SinkBackend:
        """Return the target under test, empty."""
        pytest.skip("derive from SinkContract and override the fixture sink_backend")
