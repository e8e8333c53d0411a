"""Executors: the steps of a stage (operators, sinks, timestamp assigners, split readers) in one task.

An executor takes chunks and may emit chunks. At the end of the input it emits what is left, and reports what it has
made durable. The loops that call a user's function are in `runtime/operator/subtask.py`.
"""

from __future__ import annotations

import base64
import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, OutputTypeError, StateMigrationError
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.kernel.watermark import (
    MAX_WATERMARK,
    NO_TIMESTAMP,
    ColumnTimestampAssigner,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.runtime.exchange.layout import Chunk
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.exchange.task_report import StepReport
from holdfast.runtime.function.sink import (
    SEND_ERRORS,
    ColumnSinkWriter,
    RefusedElementError,
    WriterContext,
    WriterInitContext,
    owner_of,
)
from holdfast.runtime.function.source import BatchDecoder, SplitInput
from holdfast.runtime.graph.event_time import Observed
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import OperatorSubtask, user_error
from holdfast.runtime.operator.async_operation import CallsInFlight
from holdfast.runtime.operator.batch_function import BatchSubtask
from holdfast.runtime.task.operator_state import QueryableNames
from holdfast.runtime.task.worker_process import LoadedJob
from holdfast.runtime.window_operator.pane_operator import PaneSubtask
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import TaskMerge
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.run_file import RunHandle, forget_run
from holdfast.storage.file_system import join, may_pass, translate
from holdfast.storage.job_directory import SHARED, FileName
from holdfast.storage.local_copies import LocalCopies
from holdfast.types.arrow import (
    Timestamps,
    batch_to_elements,
    check_values,
    iterate_timestamps,
    times_to_nanos,
    timestamp_column,
    to_event_times,
    with_invalid_columns_null,
)
from holdfast.types.program_classes import DurablePickler, DurableUnpickler
from holdfast.types.row import original

logger = get_logger(__name__)

_T = TypeVar("_T")

_EMITTED_AT_ONCE: Final = 4096
_FIRST_TAKEN: Final = 256
_FEWEST_TAKEN: Final = 16
_REFUSED: Final = (RefusedElementError, OutputTypeError)
_CONTEXT: Final = "context"
_LARGEST: Final = 64 << 10


class StepMeter:
    """Measures the time and the input of a step; called once a batch, never for a row.

    Attributes:
        busy: Seconds that the step has worked.
        arrived: Rows and bytes of its input, by edge or source.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self.arrived: dict[str, tuple[int, int]] = {}

    def timed(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function, and add its time."""
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.busy += time.perf_counter() - began

    def count_input(self, origin: str, batch: pa.RecordBatch) -> None:
        rows, size = self.arrived.get(origin, (0, 0))
        self.arrived[origin] = (rows + batch.num_rows, size + batch.nbytes)

    def with_counts(self, report: StepReport) -> StepReport:
        return replace(report, busy=round(1_000_000 * self.busy), arrived=self.arrived)


class StepExecutor(ABC):
    """One step in one task."""

    def __init__(self, step: Step, subtask: int) -> None:
        self.step = step
        self.subtask = subtask
        self.records_in = 0
        self.records_out = 0
        self.meter = StepMeter()

    @abstractmethod
    def accept(self, chunk: Chunk) -> Chunk | None:
        """Process elements, and return the output, None for a sink."""

    def end_of_input(self, observed: Observed) -> Chunk | None:
        """Return the output of the end of the input: that of timers and windows.

        Args:
            observed: The greatest timestamp by clock that the tasks above have assigned in the epoch.
        """
        return None

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        """Take and count the side outputs since the last call, by tag, with their timestamps."""
        return {}

    def set_time(self, epoch: EpochDescriptor) -> None:  # noqa: B027 - most steps see no times
        """Set the times that the step sees from now on, in a real-time task."""

    @abstractmethod
    def report(self) -> StepReport:
        """Make durable what this step has changed or staged, and return its report."""

    def succeeded(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Called when every step of the task has reported."""

    def abort(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Release resources of a failed task; never raises."""


class OperatorExecutor(StepExecutor):
    """An operator without keys.

    Args:
        step: The operator.
        subtask: The subtask of the operator.
        base_state: The operator state before the epoch.
    """

    def __init__(self, step: Step, subtask: OperatorSubtask, base_state: OperatorSnapshot | None = None) -> None:
        super().__init__(step, subtask.info.subtask)
        self._operator = subtask
        self._base_state = base_state
        function = subtask.function
        is_decoder = isinstance(function, BatchDecoder) and function.produced_type == step.output_type
        self._decode = function.decode if is_decoder else None

    def set_time(self, epoch: EpochDescriptor) -> None:
        self._operator.info.checkpoint_id = epoch.notifications.next_id
        self._operator.set_times(epoch.processing_time, epoch.event_time.before(self.step.uid))

    def keep_calls_in_flight(self, wake: Callable[[], object]) -> CallsInFlight | None:
        """Let calls of an asynchronous function be in flight while the task goes on; None for other functions.

        Args:
            wake: Called by another thread when `end_of_input` has results.
        """
        return self._operator.keep_calls_in_flight(wake)

    def end_of_input(self, observed: Observed) -> Chunk | None:
        has_calls = self._operator.in_flight is not None
        return self._emitted(self._operator.take_results(finish=False)) if has_calls else None

    def finish_calls(self) -> Chunk:
        """Wait for the calls in flight, and return their output."""
        return self._emitted(self._operator.take_results(finish=True))

    def abort(self) -> None:
        if self._operator.in_flight is not None:
            self._operator.in_flight.cancel()

    def pieces(self, chunk: Chunk) -> Iterator[Chunk]:
        """Split a chunk so that the output of a piece is still in the processor's caches when columns are made of it.

        That saves a third of the time of a stage that splits lines into words.
        """
        # Asynchronous calls wait beside each other only within one chunk.
        if self.step.operator is None or self.step.operator.shape == "async":
            yield chunk
            return
        at = 0
        while at < len(chunk):
            growth = max(1, self.records_out // max(1, self.records_in))
            count = max(_FEWEST_TAKEN, _EMITTED_AT_ONCE // growth) if self.records_in else _FIRST_TAKEN
            yield chunk.slice(at, count)
            at += count
        chunk.mark_shared()

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        decoded = None if self._decode is None or chunk.columns is None else self._decoded(chunk.columns)
        if decoded is None:
            return self._emitted(self._operator.process(chunk.elements, timestamps=chunk.timestamps))
        batch, has_element = decoded
        self.records_out += batch.num_rows
        timestamps = chunk.timestamps
        if timestamps is not None and has_element is not None:
            timestamps = timestamps.filter(has_element)
        return Chunk(self.step.output_type, self.step.uid, batch=batch, timestamps=timestamps)

    def _decoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None] | None:
        assert self._decode is not None
        try:
            found: tuple[pa.RecordBatch, pa.Array | None] | None = self._decode(batch)
            return found
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._operator.info.epoch, "reading records") from error

    def accept_second(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        return self._emitted(self._operator.process_second(chunk.elements, None, None, chunk.timestamps))

    def accept_broadcast(self, chunk: Chunk) -> Chunk:
        # Every subtask gets a copy of these elements; they count once.
        self.records_in += 0 if self.subtask else len(chunk)
        return self._emitted(self._operator.process_broadcast(chunk.elements))

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        if not self._operator.side_outputs:
            return {}
        timestamps = self._operator.take_side_timestamps()
        outputs = self._operator.take_side_outputs()
        self.records_out += sum(map(len, outputs.values()))
        return {tag: (elements, timestamps.get(tag)) for tag, elements in outputs.items()}

    def _emitted(self, elements: list[Any]) -> Chunk:
        self.records_out += len(elements)
        return Chunk(
            self.step.output_type, self.step.uid, elements=elements, timestamps=self._operator.take_timestamps()
        )

    def report(self) -> StepReport:
        began = time.monotonic()
        self._operator.snapshot_state()
        saved = time.monotonic()
        state = self._write_operator_state()
        return StepReport(
            self.step.uid,
            self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            operator_state=state,
            **self._write_keyed_state(),
            saving=_milliseconds(began, saved, time.monotonic()),
            metrics=self._operator.metrics.report(),
        )

    def _write_keyed_state(self) -> dict[str, Any]:
        """Write keyed state, and return its fields of the report."""
        return {}

    def _write_operator_state(self) -> dict[str, Any] | None:
        """Write operator state, and return its handle, None if it has not changed."""
        state = self._operator.operator_state
        snapshot = None if state is None else state.snapshot()
        return None if snapshot is None or snapshot == self._base_state else snapshot.to_json()


class KeyedStepExecutor(OperatorExecutor):
    """An operator with keyed state."""

    def __init__(
        self,
        step: Step,
        subtask: OperatorSubtask,
        job: LoadedJob,
        epoch: EpochDescriptor,
        names: QueryableNames,
        base_state: OperatorSnapshot | None = None,
    ) -> None:
        super().__init__(step, subtask, base_state)
        self._names = names
        assert subtask.backend is not None
        self._backend = subtask.backend
        self._epoch = epoch
        self._job = job
        self._token = job.descriptor.token
        self._batches = subtask if isinstance(subtask, BatchSubtask) else None
        self._panes = subtask if isinstance(subtask, PaneSubtask) else None

    def set_time(self, epoch: EpochDescriptor) -> None:
        super().set_time(epoch)
        self._epoch = epoch

    def timer_bound(self) -> int | None:
        """Return a time before which no processing-time timer is due, None if there is none."""
        return self._backend.processing_time_bound()

    def accept(self, chunk: Chunk) -> Chunk:
        raise AssertionError(f"elements without a key arrived at {self.step.uid!r}")

    def accept_keyed(self, chunk: Chunk, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Chunk:
        """Process elements with their canonical keys and hashes."""
        self.records_in += len(chunk)
        if self._panes is not None:
            self._panes.process_rows(chunk.batch, dict_keys, hashes, chunk.timestamps)
            return Chunk(self.step.output_type, self.step.uid, elements=[])
        if self._batches is not None:
            return self._emitted_batch(*self._batches.process_batch(chunk.batch, dict_keys, hashes, chunk.timestamps))
        return self._emitted(self._operator.process(chunk.elements, dict_keys, hashes, chunk.timestamps))

    def accept_keyed_second(self, chunk: Chunk, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Chunk:
        self.records_in += len(chunk)
        return self._emitted(self._operator.process_second(chunk.elements, dict_keys, hashes, chunk.timestamps))

    def end_of_input(self, observed: Observed) -> Chunk:
        event_time = self._epoch.event_time
        watermark = event_time.after(self.step.uid, self.step.clocks, observed)
        self._backend.latest_event_time = event_time.latest(self.step.clocks, observed)
        # Only if sources have ended before others: then this is called again and again.
        self._backend.event_time_has_ended = event_time.before(self.step.uid) == MAX_WATERMARK
        if not self._operator.fires_timers:
            self._drop_left_timers()
        of_columns = self._panes or self._batches
        if of_columns is not None:
            return self._emitted_batch(*of_columns.close(watermark, self._epoch.processing_time))
        fired = self._operator.end_input()
        fired += self._operator.advance_watermark(watermark)
        fired += self._operator.fire_processing_time(self._epoch.processing_time)
        return self._emitted(fired)

    def _drop_left_timers(self) -> None:
        """Delete due timers of another function that had this state before: nothing fires them, so they stay due."""
        timers, now = self._backend.timers, self._epoch.processing_time
        bound = timers.processing_time_bound()
        if bound is not None and bound <= now:
            timers.take_due_processing_time(now)

    def _emitted_batch(self, batch: pa.RecordBatch, timestamps: Timestamps) -> Chunk:
        self.records_out += batch.num_rows
        known = timestamps if self.step.has_timestamps else None
        return Chunk(self.step.output_type, self.step.uid, batch=batch, timestamps=known)

    def _write_keyed_state(self) -> dict[str, Any]:
        merge = self._epoch.merges.get(self.step.uid, {}).get(self.subtask)
        files = self._job.run_files
        merged = 0
        if merge is not None and isinstance(files, LocalCopies):
            run, merged = self._flush_merged(merge, files)
        else:
            run = self._backend.flush(self._new_path, self._token, self._epoch.epoch)
        return {
            "run": None if run is None else run.to_json(),
            "merged": merged,
            "least_timer": self._backend.least_processing_time(),
            "queryable": self._names.names(),
            "warm": None if self._backend.was_warm is None else int(self._backend.was_warm),
        }

    def _flush_merged(self, merge: TaskMerge, files: LocalCopies) -> tuple[RunHandle | None, int]:
        """Write the changes and the newest runs before them as one run; return it and how many runs it replaces."""
        root, path = self._job.descriptor.job_root, self._new_path()
        with files.unwritten(join(root, path)):
            changes = self._backend.flush(lambda: path, self._token, self._epoch.epoch)
            if changes is None:
                return None, 0
            version = self._epoch.versions[self.step.uid].for_range(changes.range)
            try:
                [run] = compact(merge.plan(root, version, changes, self._new_path(), self._token), files)
            except StateMigrationError as error:
                logger.warning("the runs of %r cannot be merged: %s", self.step.uid, error)
                files.write_after_all(join(root, path))
                return changes, 0
            forget_run(root, changes)
            return run, merge.count

    def succeeded(self) -> None:
        self._backend.commit_cache()

    def abort(self) -> None:
        self._backend.drop_cache()

    def _new_path(self) -> str:
        name = FileName.new(
            self._token, self._epoch.epoch, self._epoch.try_number, owner_of(self.step.uid), self.subtask
        )
        return f"{SHARED}/{name.format()}"


def _milliseconds(began: float, saved: float, written: float) -> tuple[int, int]:
    return round(1000 * (saved - began)), round(1000 * (written - saved))


class ForwardExecutor(StepExecutor):
    """Forwards what an exchange has brought to this task, unchanged, as columns."""

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        self.records_out += len(chunk)
        return chunk

    def report(self) -> StepReport:
        return StepReport(self.step.uid, self.subtask, records_in=self.records_in, records_out=self.records_out)


class SplitReaderExecutor(StepExecutor):
    """Reads the files of splits, and emits their elements as columns."""

    def __init__(self, step: Step, subtask: int) -> None:
        super().__init__(step, subtask)
        assert step.operator is not None
        self._input: SplitInput = step.operator.function
        self._letters: list[Any] = []
        self._refuse = None if self._input.dead_letters() is None else self._letters.append

    def accept(self, chunk: Chunk) -> Chunk | None:
        raise AssertionError(f"{self.step.uid!r} reads splits as they come, not all at once")

    def read(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Yield the elements of splits batch by batch, so that no file has to fit into memory."""
        for splits in batch.column(0).to_pylist():
            for elements in self._input.read(splits, self._refuse):
                self.records_in += elements.num_rows  # what an epoch has read is rows, not splits
                self.records_out += elements.num_rows
                yield Chunk(self.step.output_type, self.step.uid, batch=elements)
        if self._letters:  # after the last elements, with which they would have gone
            yield Chunk(self.step.output_type, self.step.uid, elements=[])

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        if not self._letters:
            return {}
        tag = self._input.dead_letters()
        assert tag is not None
        letters = list(self._letters)
        self._letters.clear()
        self.records_out += len(letters)
        return {tag: (letters, None)}

    def report(self) -> StepReport:
        return StepReport(self.step.uid, self.subtask, records_in=self.records_in, records_out=self.records_out)


class SinkExecutor(StepExecutor):
    """Feeds the writer of a sink.

    Args:
        step: The sink.
        context: The context of a new writer.
        epoch: The epoch.
        kept: Writers of a real-time task that go on behind barriers, by uid, which the task closes; None in an epoch
            job.
    """

    def __init__(
        self, step: Step, context: WriterInitContext, epoch: EpochDescriptor, kept: dict[str, Any] | None = None
    ) -> None:
        super().__init__(step, context.subtask)
        self._epoch = epoch
        self._context = _ElementContext(epoch.event_time.before(step.uid))
        before = None if kept is None else kept.get(step.uid)
        self._writer = before or self._guard("opening the writer", step.sink.create_writer, context)
        self._is_kept = kept is not None and getattr(self._writer, "writes_directly", False)
        if kept is not None and self._is_kept:
            kept[step.uid] = self._writer
        self._write_batch = getattr(self._writer, "write_batch", None)
        self._set_processing_time = getattr(self._writer, "set_processing_time", None)
        takes_columns = isinstance(self._writer, ColumnSinkWriter) and self._writer.takes_columns
        self._write_columns = self._writer.write_columns if takes_columns else None
        self._letters: list[Any] = []
        self._timestamps: list[int | None] = []
        self._flushed: bool | None = None
        self._element: Any = None

    def set_time(self, epoch: EpochDescriptor) -> None:
        self._epoch = epoch
        self._context.watermark = epoch.event_time.before(self.step.uid)
        if self._set_processing_time is not None:
            self._set_processing_time(epoch.processing_time)

    def accept(self, chunk: Chunk) -> None:
        self.records_in += len(chunk)
        self._flushed = None
        is_whole = self._write_batch is None and self._write_columns is None
        for piece in [chunk] if is_whole else chunk.split_for_arrow():
            self._accept_part(piece)

    def _accept_part(self, chunk: Chunk) -> None:
        """Write elements; a batch that is refused is halved until the refused rows are found.

        Columns are checked also where the writer takes elements: Python would make 00:00:00 of 24:00:00.
        """
        batch = chunk.columns if self._write_batch is None else chunk.batch
        try:
            if batch is not None:
                check_values(batch, self.step.uid)
            if self._write_batch is not None:
                self._guard("writing", self._write_batch, batch)
                return
        except _REFUSED as error:
            if self.step.dead_letters is None:
                raise
            assert batch is not None
            if batch.num_rows == 1:
                # A dead letter has the same type, so an invalid value is null in it; the reason tells what it was.
                [element] = batch_to_elements(with_invalid_columns_null(batch), self.step.input_type)
                self._refuse(element, None if chunk.timestamps is None else chunk.timestamps[0].as_py(), error)
                return
            half = batch.num_rows // 2
            for begin, end in ((0, half), (half, batch.num_rows)):
                self._accept_part(chunk.slice(begin, end - begin))
        else:
            if self._write_columns is None or not self._guard(
                "writing", self._write_columns, chunk.batch, chunk.timestamps
            ):
                self._write_elements(chunk)

    def _write_elements(self, chunk: Chunk) -> None:
        rest = zip(chunk.elements, iterate_timestamps(chunk.timestamps), strict=False)
        while True:
            try:
                self._guard("writing", self._write_each, rest)
                return
            except _REFUSED as error:
                self._refuse(self._element, self._context.element_timestamp, error)

    def _write_each(self, elements: Iterator[tuple[Any, int | None]]) -> None:
        write, context = self._writer.write, self._context
        for element, timestamp in elements:
            self._element, context.element_timestamp = element, timestamp
            write(element, context)

    def _refuse(self, element: Any, timestamp: int | None, error: Exception) -> None:
        if self.step.dead_letters is None:
            raise error
        self.records_out += 1
        self._letters.append((original(element), self.step.uid, self._epoch.epoch, redacted_message(error)))
        self._timestamps.append(timestamp)

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        if not self._letters:
            return {}
        assert self.step.dead_letters is not None
        letters, timestamps = self._letters, timestamp_column(self._timestamps) if self.step.has_timestamps else None
        self._letters, self._timestamps = [], []
        return {self.step.dead_letters: (letters, timestamps)}

    def flush(self) -> None:
        """Make the output durable. `report` does it too, unless it is done.

        Raises:
            CheckpointDeclinedError: It is not possible now; the executor goes on.
        """
        # The barrier at the end may follow one that was declined, with no elements between them.
        if self._flushed is not self._epoch.is_last:
            self._guard("flushing", self._writer.flush, self._epoch.is_last)
            self._flushed = self._epoch.is_last

    def report(self) -> StepReport:
        self.flush()
        committables = self._guard("preparing the commit", self._committables)
        if not self._is_kept:
            self._guard("closing the writer", self._writer.close)
        counted = {} if self.step.dead_letters is None else {SEND_ERRORS: ["counter", self.records_out]}
        return StepReport(
            self.step.uid,
            self.subtask,
            committables=committables,
            records_in=self.records_in,
            records_out=self.records_out,
            metrics=counted,
        )

    def _committables(self) -> tuple[Any, ...]:
        """Return the committables of the writer, after a check that they are JSON."""
        committables = tuple(self._writer.prepare_commit())
        json.dumps(committables, allow_nan=False)
        return committables

    def abort(self) -> None:
        if self._is_kept:
            return
        try:
            self._writer.abort()
        except Exception:  # noqa: BLE001 - the attempt has failed already; its staged files are swept by name
            return

    def _guard(self, doing: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except HoldfastError:
            raise
        except RefusedElementError as error:
            if self.step.dead_letters is not None:
                raise
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            doing = f"{doing} ({error})" if cause is not error else doing
            raise user_error(cause, self.step.uid, None, self._epoch.epoch, doing) from cause
        except Exception as error:
            if isinstance(error, OSError) and may_pass(error):
                raise translate(error, "write", f"sink {self.step.uid}") from error
            raise user_error(error, self.step.uid, None, self._epoch.epoch, doing) from error


class StagingSinkExecutor(SinkExecutor):
    """Stages elements for a later epoch job of the same epoch, with their event times, in columns that Spark reads."""

    def accept(self, chunk: Chunk) -> None:
        for piece in chunk.split_for_arrow():
            batch = piece.batch_with_timestamps() if self.step.has_timestamps else piece.batch
            super().accept(Chunk(piece.type, piece.uid, batch=times_to_nanos(batch)))

    def report(self) -> StepReport:
        report = super().report()
        staged = tuple(committable["file"] for committable in report.committables)
        return replace(report, committables=(), staged=staged)


class _ElementContext(WriterContext):
    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.element_timestamp: int | None = None

    def timestamp(self) -> int | None:
        return self.element_timestamp

    def current_watermark(self) -> int:
        return self.watermark


class TimestampExecutor(StepExecutor):
    """Assigns timestamps to elements, and reports the greatest one.

    Attributes:
        latest: The greatest one since a real-time task has set it to None.
        is_marked_idle: What the watermark generator has said of it; None if nothing.
    """

    is_marked_idle: bool | None = None

    def __init__(self, step: Step, strategy: WatermarkStrategy, subtask: int, epoch: int) -> None:
        super().__init__(step, subtask)
        self._extract = strategy.extract
        assigner = strategy.assigner
        self._column = assigner.column if isinstance(assigner, ColumnTimestampAssigner) else None
        self._epoch = epoch
        self._is_per_partition = strategy.is_per_partition
        self._greatest: int | None = None
        self.latest: int | None = None

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        self.records_out += len(chunk)
        if self._column is not None and len(chunk):
            parts = [self._of_column(piece.batch, self._column) for piece in chunk.split_for_arrow()]
            timestamps = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        else:
            timestamps = chunk.timestamps if self._extract is None else self._assigned(chunk)
        greatest = None if timestamps is None else pc.max(timestamps).as_py()
        if greatest is not None:
            self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)
            self.latest = greatest if self.latest is None else max(self.latest, greatest)
        return chunk.with_timestamps(timestamps)

    def _of_column(self, batch: pa.RecordBatch, column: str) -> Timestamps:
        found = batch.column(column)
        if found.null_count:
            error = ValueError(f"column {column!r} has no timestamp in row {found.is_null().index(True).as_py()}")
            raise user_error(error, self.step.uid, None, self._epoch, "assigning a timestamp")
        return to_event_times(found)

    def reached(self, now: int) -> int | None:
        """Return the greatest timestamp of this task so far, or that of its watermark generator; None without any.

        Args:
            now: The processing time, in a real-time task.
        """
        return self._greatest

    def report(self) -> StepReport:
        observed = self._greatest if self.step.is_clock else None
        if observed is not None and self._is_per_partition:
            observed = -max(observed, NO_TIMESTAMP + 1)
        return StepReport(
            self.step.uid,
            self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            observed=observed,
        )

    def _assigned(self, chunk: Chunk) -> Timestamps:
        extract = self._extract
        assert extract is not None
        timestamps: list[int] = []
        try:
            for element, timestamp in zip(chunk.elements, iterate_timestamps(chunk.timestamps), strict=False):
                assigned = extract(element, NO_TIMESTAMP if timestamp is None else timestamp)
                if type(assigned) is not int or not NO_TIMESTAMP <= assigned < -NO_TIMESTAMP:
                    raise TypeError(
                        f"a timestamp is a number of milliseconds since 1970, an int of 64 bits, not {assigned!r}"
                    )
                timestamps.append(assigned)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "assigning a timestamp") from error
        if NO_TIMESTAMP in timestamps:  # the assigner returned the timestamp that it got for an element without one
            return timestamp_column([None if timestamp == NO_TIMESTAMP else timestamp for timestamp in timestamps])
        return timestamp_column(timestamps)


class WatermarkGeneratorExecutor(TimestampExecutor):
    """Feeds a watermark generator, and reports the watermark that it emitted, and its state.

    Args:
        step: The step.
        strategy: A strategy with a supplier.
        context: The context of the generator.
        epoch: For error messages.
        held: The pickled generator of the subtask after the epoch before, None to create one.

    Raises:
        UserFunctionError: The generator could not be created.
    """

    def __init__(
        self,
        step: Step,
        strategy: WatermarkStrategy,
        context: WatermarkGeneratorContext,
        epoch: int,
        held: str | None = None,
    ) -> None:
        super().__init__(step, strategy, context.subtask, epoch)
        self._output = WatermarkOutput()
        self._context = context
        self._held = held
        assert strategy.supplier is not None
        try:
            self._generator = strategy.supplier(context) if held is None else _unpickled(held, context)
            if not isinstance(self._generator, WatermarkGenerator):
                raise TypeError(
                    f"the supplier of for_generator() returned {self._generator!r}, which is no WatermarkGenerator"
                )
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, step.uid, None, epoch, "creating a watermark generator") from error

    def accept(self, chunk: Chunk) -> Chunk:
        assigned = super().accept(chunk)
        on_event, output = self._generator.on_event, self._output
        try:
            for element, timestamp in zip(chunk.elements, iterate_timestamps(assigned.timestamps), strict=False):
                on_event(element, NO_TIMESTAMP if timestamp is None else timestamp, output)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "generating a watermark") from error
        return assigned

    def set_time(self, epoch: EpochDescriptor) -> None:
        self._context.processing_time = epoch.processing_time
        self._context.current_watermark = epoch.event_time.before(self.step.uid)

    def reached(self, now: int) -> int | None:
        self._context.processing_time = now
        try:
            self._generator.on_periodic_emit(self._output)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "generating a watermark") from error
        self.is_marked_idle = self._output.is_idle
        return self._output.reached

    def report(self) -> StepReport:
        reached = self.reached(self._context.processing_time)
        try:
            held = _pickled(self._generator)
        except Exception as error:
            doing = "pickling a watermark generator for the next epoch"
            raise user_error(error, self.step.uid, None, self._epoch, doing) from error
        # Negative, because barriers keep the greatest value, and the slowest task counts here.
        return replace(
            super().report(),
            observed=None if reached is None else -reached,
            generator=None if held == self._held else held,
        )


class _Pickler(DurablePickler):
    """Leaves out the context, which is a new one in each epoch."""

    def persistent_id(self, obj: Any) -> str | None:
        return _CONTEXT if isinstance(obj, WatermarkGeneratorContext) else None


class _Unpickler(DurableUnpickler):
    def __init__(self, content: bytes, context: WatermarkGeneratorContext) -> None:
        super().__init__(io.BytesIO(content))
        self._context = context

    def persistent_load(self, pid: Any) -> WatermarkGeneratorContext:
        return self._context


def _pickled(generator: WatermarkGenerator) -> str:
    content = io.BytesIO()
    _Pickler(content).dump(generator)
    if content.tell() > _LARGEST:
        raise ValueError(
            f"it has {content.tell()} bytes, and at most {_LARGEST} are allowed: they are sent to the driver and back "
            "in every epoch. Keep sums and greatest values, not elements"
        )
    return base64.b64encode(content.getvalue()).decode()


def _unpickled(held: str, context: WatermarkGeneratorContext) -> WatermarkGenerator:
    generator: WatermarkGenerator = _Unpickler(base64.b64decode(held), context).load()
    return generator
