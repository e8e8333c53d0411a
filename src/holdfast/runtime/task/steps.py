"""The steps of a stage at work in one task; here operators, with keys and without.

They take chunks and may emit chunks; at the end of the input they emit what is left, and report what they made durable.
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

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, OutputTypeError
from holdfast.kernel.secret import redacted_message
from holdfast.kernel.watermark import (
    NO_TIMESTAMP,
    ColumnTimestampAssigner,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.layout import Chunk
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.function.sink import SEND_ERRORS, RefusedElementError, WriterContext, WriterInitContext, owner_of
from holdfast.runtime.function.source import SplitInput
from holdfast.runtime.graph.event_time import Observed
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import OperatorSubtask, user_error
from holdfast.runtime.operator.batch_function import BatchSubtask
from holdfast.runtime.task.operator_state import QueryableNames
from holdfast.runtime.task.worker import LoadedJob
from holdfast.runtime.window_operator.pane_operator import PaneSubtask
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.storage.file_system import OF_A_PATH, translate
from holdfast.storage.job_directory import SHARED, FileName
from holdfast.types.arrow import (
    Timestamps,
    batch_to_elements,
    iterate_timestamps,
    times_to_nanos,
    timestamp_column,
    to_event_times,
)
from holdfast.types.changed_row import original
from holdfast.types.former_names import DurableUnpickler
from holdfast.types.value_validation import check_values, with_invalid_columns_null

_T = TypeVar("_T")

_EMITTED_AT_ONCE: Final = 4096
_FIRST_TAKEN: Final = 256
_FEWEST_TAKEN: Final = 16


class StepMeter:
    """Where the time of a step goes, and what comes to it; looked at once a batch, never for a row.

    Attributes:
        busy: Seconds.
        arrived: Rows and bytes in columns, by the edge or the source that they came from.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self.arrived: dict[str, tuple[int, int]] = {}

    def timed(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call something, and count its time."""
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.busy += time.perf_counter() - began

    def came(self, origin: str, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        rows, size = self.arrived.get(origin, (0, 0))
        self.arrived[origin] = (rows + batch.num_rows, size + batch.nbytes)

    def counted(self, report: StepReport) -> StepReport:
        """A report with these numbers."""
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
        """Processes elements; returns what came out, if anything reads it."""

    def end_of_input(self, observed: Observed) -> Chunk | None:
        """All elements have been accepted, upstream timers included.

        Args:
            observed: The greatest timestamp by clock that the tasks above have assigned in the epoch.
        """
        return None

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        """What was sent to side outputs since the last call, by tag, with its timestamps."""
        return {}

    @abstractmethod
    def report(self) -> StepReport:
        """Makes durable what this step has changed or staged, and says what that is."""

    def succeeded(self) -> None:
        """Every step of the task has reported."""

    def abort(self) -> None:
        """The task has failed; never raises."""


class OperatorExecutor(StepExecutor):
    """An operator without keys.

    Args:
        step: The operator.
        subtask: It at work.
        given: The operator state that it began with.
    """

    def __init__(self, step: Step, subtask: OperatorSubtask, given: OperatorSnapshot | None = None) -> None:
        super().__init__(step, subtask.info.subtask)
        self._operator = subtask
        self._given = given

    def pieces(self, chunk: Chunk) -> Iterator[Chunk]:
        """Cuts a chunk, so that what its pieces become is still in the processor's caches when columns are made of it.

        That is a third of the time of a stage that makes words of lines. Calls that wait are made all at once.
        """
        if self.step.operator is None or self.step.operator.shape == "async":
            yield chunk
            return
        at = 0
        while at < len(chunk):
            growth = max(1, self.records_out // max(1, self.records_in))
            count = max(_FEWEST_TAKEN, _EMITTED_AT_ONCE // growth) if self.records_in else _FIRST_TAKEN
            yield chunk.slice(at, count)
            at += count
        chunk.given()

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        return self._emitted(self._operator.process(chunk.elements, timestamps=chunk.stamps))

    def accept_second(self, chunk: Chunk) -> Chunk:
        """Processes elements of the second input."""
        self.records_in += len(chunk)
        return self._emitted(self._operator.process_second(chunk.elements, None, None, chunk.stamps))

    def accept_broadcast(self, chunk: Chunk) -> Chunk:
        """Processes elements of which every subtask gets a copy; they count once."""
        self.records_in += 0 if self.subtask else len(chunk)
        return self._emitted(self._operator.process_broadcast(chunk.elements))

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        if not self._operator.side_outputs:
            return {}
        stamps = self._operator.take_side_stamps()
        return {tag: (elements, stamps.get(tag)) for tag, elements in self._operator.take_side_outputs().items()}

    def _emitted(self, elements: list[Any]) -> Chunk:
        self.records_out += len(elements)
        return Chunk(self.step.output_type, self.step.uid, elements=elements, stamps=self._operator.take_stamps())

    def report(self) -> StepReport:
        began = time.monotonic()
        self._operator.snapshot_state()
        saved = time.monotonic()
        state = self._written_state()
        return StepReport(
            self.step.uid,
            self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            operator_state=state,
            **self._written_keys(),
            saving=_milliseconds(began, saved, time.monotonic()),
            metrics=self._operator.metrics.report(),
        )

    def _written_keys(self) -> dict[str, Any]:
        """Writes keyed state; returns what the report says of it."""
        return {}

    def _written_state(self) -> dict[str, Any] | None:
        """Writes what the function has saved; None if it is as it was."""
        state = self._operator.operator_state
        snapshot = None if state is None else state.snapshot()
        return None if snapshot is None or snapshot == self._given else snapshot.to_json()


class KeyedStepExecutor(OperatorExecutor):
    """An operator with keyed state."""

    def __init__(
        self,
        step: Step,
        subtask: OperatorSubtask,
        job: LoadedJob,
        epoch: EpochDescriptor,
        names: QueryableNames,
        given: OperatorSnapshot | None = None,
    ) -> None:
        super().__init__(step, subtask, given)
        self._names = names
        assert subtask.backend is not None
        self._backend = subtask.backend
        self._epoch = epoch
        self._token = job.descriptor.token
        self._batches = subtask if isinstance(subtask, BatchSubtask) else None
        self._panes = subtask if isinstance(subtask, PaneSubtask) else None

    def accept(self, chunk: Chunk) -> Chunk:
        raise AssertionError(f"elements without a key arrived at {self.step.uid!r}")

    def accept_keyed(self, chunk: Chunk, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Chunk:
        """Processes elements with their canonical keys and hashes."""
        self.records_in += len(chunk)
        if self._panes is not None:
            self._panes.process_rows(chunk.batch, dict_keys, hashes, chunk.stamps)
            return Chunk(self.step.output_type, self.step.uid, elements=[])
        if self._batches is not None:
            return self._emitted_batch(*self._batches.process_batch(chunk.batch, dict_keys, hashes, chunk.stamps))
        return self._emitted(self._operator.process(chunk.elements, dict_keys, hashes, chunk.stamps))

    def accept_keyed_second(self, chunk: Chunk, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Chunk:
        """Processes elements of the second input with their canonical keys and hashes."""
        self.records_in += len(chunk)
        return self._emitted(self._operator.process_second(chunk.elements, dict_keys, hashes, chunk.stamps))

    def end_of_input(self, observed: Observed) -> Chunk:
        watermark = self._epoch.event_time.after(self.step.uid, self.step.clocks, observed)
        of_columns = self._panes or self._batches
        if of_columns is not None:
            return self._emitted_batch(*of_columns.close(watermark, self._epoch.processing_time))
        fired = self._operator.end_input()
        fired += self._operator.advance_watermark(watermark)
        fired += self._operator.fire_processing_time(self._epoch.processing_time)
        return self._emitted(fired)

    def _emitted_batch(self, batch: pa.RecordBatch, stamps: Timestamps) -> Chunk:
        self.records_out += batch.num_rows
        known = stamps if self.step.stamped else None
        return Chunk(self.step.output_type, self.step.uid, batch=batch, stamps=known)

    def _written_keys(self) -> dict[str, Any]:
        run = self._backend.flush(self._new_path, self._token, self._epoch.epoch)
        return {
            "run": None if run is None else run.to_json(),
            "least_timer": self._backend.least_processing_time(),
            "queryable": self._names.names(),
            "warm": None if self._backend.was_warm is None else int(self._backend.was_warm),
        }

    def succeeded(self) -> None:
        self._backend.commit_cache()

    def abort(self) -> None:
        self._backend.drop_cache()

    def _new_path(self) -> str:
        name = FileName.new(self._token, self._epoch.epoch, self._epoch.attempt, owner_of(self.step.uid), self.subtask)
        return f"{SHARED}/{name.format()}"


def _milliseconds(began: float, saved: float, written: float) -> tuple[int, int]:
    return round(1000 * (saved - began)), round(1000 * (written - saved))


# What hands on elements that an exchange has brought to this task, as they came.


class ForwardExecutor(StepExecutor):
    """Hands on columns: nothing is made of them here."""

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        self.records_out += len(chunk)
        return chunk

    def report(self) -> StepReport:
        return StepReport(self.step.uid, self.subtask, records_in=self.records_in, records_out=self.records_out)


# A step that reads files: it gets splits, and emits what is in them, in columns.


class SplitReaderExecutor(StepExecutor):
    """A step that reads splits in one task."""

    def __init__(self, step: Step, subtask: int) -> None:
        super().__init__(step, subtask)
        assert step.operator is not None
        self._input: SplitInput = step.operator.function
        self._letters: list[Any] = []
        self._refuse = None if self._input.dead_letters() is None else self._letters.append

    def accept(self, chunk: Chunk) -> Chunk | None:
        raise AssertionError(f"{self.step.uid!r} reads splits as they come, not all at once")

    def read(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Yields the elements of splits piece by piece, so that none of them has to fit into memory."""
        for splits in batch.column(0).to_pylist():
            for elements in self._input.read(splits, self._refuse):
                self.records_in += elements.num_rows  # what an epoch has read is rows, not splits
                self.records_out += elements.num_rows
                yield Chunk(self.step.output_type, self.step.uid, batch=elements)
        if self._letters:  # after the last elements, with which they would have gone
            yield Chunk(self.step.output_type, self.step.uid, elements=[])

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        """What could not be read, since the last call."""
        if not self._letters:
            return {}
        tag = self._input.dead_letters()
        assert tag is not None
        letters = list(self._letters)
        self._letters.clear()
        return {tag: (letters, None)}

    def report(self) -> StepReport:
        return StepReport(self.step.uid, self.subtask, records_in=self.records_in, records_out=self.records_out)


# The ends of streams at work in one task: sinks, and what stages elements for a later epoch job.

_REFUSED: Final = (RefusedElementError, OutputTypeError)


class SinkExecutor(StepExecutor):
    """A sink's writer."""

    def __init__(self, step: Step, context: WriterInitContext, epoch: EpochDescriptor) -> None:
        super().__init__(step, context.subtask)
        self._epoch = epoch
        self._context = _ElementContext(epoch.event_time.before(step.uid))
        self._writer = self._guard("opening the writer", step.sink.create_writer, context)
        self._write_batch = getattr(self._writer, "write_batch", None)
        self._letters: list[Any] = []
        self._stamps: list[int | None] = []

    def accept(self, chunk: Chunk) -> None:
        self.records_in += len(chunk)
        for piece in [chunk] if self._write_batch is None else chunk.fitting():
            self._accept_part(piece)

    def _accept_part(self, chunk: Chunk) -> None:
        """Writes elements; columns that are refused are halved until the rows are found that are to blame.

        Also where the writer takes elements, columns are looked at first: Python makes 00:00:00 of 24:00:00.
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
                # A letter is of the same type, so it has null for what is none; the reason says what that was.
                [element] = batch_to_elements(with_invalid_columns_null(batch), self.step.input_type)
                self._refuse(element, None if chunk.stamps is None else chunk.stamps[0].as_py(), error)
                return
            half = batch.num_rows // 2
            for begin, end in ((0, half), (half, batch.num_rows)):
                self._accept_part(chunk.slice(begin, end - begin))
        else:
            self._write_elements(chunk)

    def _write_elements(self, chunk: Chunk) -> None:
        write, context = self._writer.write, self._context
        for element, stamp in zip(chunk.elements, iterate_timestamps(chunk.stamps), strict=False):
            context.stamp = stamp
            try:
                self._guard("writing", write, element, context)
            except _REFUSED as error:
                self._refuse(element, stamp, error)

    def _refuse(self, element: Any, stamp: int | None, error: Exception) -> None:
        if self.step.dead_letters is None:
            raise error
        self.records_out += 1
        self._letters.append((original(element), self.step.uid, self._epoch.epoch, redacted_message(error)))
        self._stamps.append(stamp)

    def side_outputs(self) -> dict[str, tuple[list[Any], Timestamps | None]]:
        if not self._letters:
            return {}
        assert self.step.dead_letters is not None
        letters, stamps = self._letters, timestamp_column(self._stamps) if self.step.stamped else None
        self._letters, self._stamps = [], []
        return {self.step.dead_letters: (letters, stamps)}

    def report(self) -> StepReport:
        self._guard("flushing", self._writer.flush, self._epoch.is_last)
        committables = self._guard("preparing the commit", self._committables)
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
        """What the writer has staged, after making sure that a checkpoint can name it."""
        committables = tuple(self._writer.prepare_commit())
        json.dumps(committables, allow_nan=False)
        return committables

    def abort(self) -> None:
        try:
            self._writer.abort()
        except Exception:
            # The attempt has failed already; what it staged is swept by name.
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
            if isinstance(error, OSError) and not isinstance(error, OF_A_PATH):
                raise translate(error, "write", f"sink {self.step.uid}") from error
            raise user_error(error, self.step.uid, None, self._epoch.epoch, doing) from error


class StagingSinkExecutor(SinkExecutor):
    """What stages elements for a later epoch job of the epoch, with their event times, in columns that Spark reads."""

    def accept(self, chunk: Chunk) -> None:
        for piece in chunk.fitting():
            batch = piece.stamped_batch() if self.step.stamped else piece.batch
            super().accept(Chunk(piece.type, piece.uid, batch=times_to_nanos(batch)))

    def report(self) -> StepReport:
        report = super().report()
        staged = tuple(committable["file"] for committable in report.committables)
        return replace(report, committables=(), staged=staged)


class _ElementContext(WriterContext):
    def __init__(self, watermark: int) -> None:
        self._watermark = watermark
        self.stamp: int | None = None

    def timestamp(self) -> int | None:
        return self.stamp

    def current_watermark(self) -> int:
        return self._watermark


# What gives elements their event time, at work in one task.

_CONTEXT: Final = "context"
_LARGEST: Final = 64 << 10


class TimestampExecutor(StepExecutor):
    """Passes elements on with their timestamps, and reports the greatest of them."""

    def __init__(self, step: Step, strategy: WatermarkStrategy, subtask: int, epoch: int) -> None:
        super().__init__(step, subtask)
        self._extract = strategy.extract
        assigner = strategy.assigner
        self._column = assigner.column if isinstance(assigner, ColumnTimestampAssigner) else None
        self._epoch = epoch
        self._is_per_partition = strategy.is_per_partition
        self._greatest: int | None = None

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        self.records_out += len(chunk)
        if self._column is not None and len(chunk):
            parts = [self._of_column(piece.batch, self._column) for piece in chunk.fitting()]
            stamps = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        else:
            stamps = chunk.stamps if self._extract is None else self._assigned(chunk)
        greatest = None if stamps is None else pc.max(stamps).as_py()
        if greatest is not None:
            self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)
        return chunk.stamped(stamps)

    def _of_column(self, batch: pa.RecordBatch, column: str) -> Timestamps:
        """Take the timestamps of a column."""
        found = batch.column(column)
        if found.null_count:
            error = ValueError(f"column {column!r} has no timestamp in row {found.is_null().index(True).as_py()}")
            raise user_error(error, self.step.uid, None, self._epoch, "assigning a timestamp")
        return to_event_times(found)

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
        stamps: list[int] = []
        try:
            for element, stamp in zip(chunk.elements, iterate_timestamps(chunk.stamps), strict=False):
                assigned = extract(element, NO_TIMESTAMP if stamp is None else stamp)
                if type(assigned) is not int or not NO_TIMESTAMP <= assigned < -NO_TIMESTAMP:
                    raise TypeError(
                        f"a timestamp is a number of milliseconds since 1970, an int of 64 bits, not {assigned!r}"
                    )
                stamps.append(assigned)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "assigning a timestamp") from error
        if NO_TIMESTAMP in stamps:  # which an assigner has got for an element that has none, and has handed on
            return timestamp_column([None if stamp == NO_TIMESTAMP else stamp for stamp in stamps])
        return timestamp_column(stamps)


class WatermarkGeneratorExecutor(TimestampExecutor):
    """Shows the elements to a generator, and reports the watermark that it has emitted, and what it holds then.

    Args:
        step: The step.
        strategy: It has a supplier.
        context: What the generator may know.
        epoch: For error messages.
        held: What the generator of the subtask held after the epoch before, None to have one made.

    Raises:
        UserFunctionError: The generator could not be made.
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
        self._held = held
        assert strategy.supplier is not None
        try:
            self._generator = strategy.supplier(context) if held is None else _unpickled(held, context)
            if not isinstance(self._generator, WatermarkGenerator):
                raise TypeError(f"the supplier of for_generator() made {self._generator!r}, no WatermarkGenerator")
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, step.uid, None, epoch, "making a watermark generator") from error

    def accept(self, chunk: Chunk) -> Chunk:
        stamped = super().accept(chunk)
        on_event, output = self._generator.on_event, self._output
        try:
            for element, stamp in zip(chunk.elements, iterate_timestamps(stamped.stamps), strict=False):
                on_event(element, NO_TIMESTAMP if stamp is None else stamp, output)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "generating a watermark") from error
        return stamped

    def report(self) -> StepReport:
        try:
            self._generator.on_periodic_emit(self._output)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch, "generating a watermark") from error
        try:
            held = _pickled(self._generator)
        except Exception as error:
            doing = "keeping a watermark generator for the next epoch, which is pickled"
            raise user_error(error, self.step.uid, None, self._epoch, doing) from error
        reached = self._output.reached
        # The negative of it: of a clock whose tasks are to be the slowest, everybody on the way keeps the greatest.
        return replace(
            super().report(),
            observed=None if reached is None else -reached,
            generator=None if held == self._held else held,
        )


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Leaves out the context, which is another one in each epoch."""

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
            f"it holds {content.tell()} bytes, and may hold {_LARGEST}: they go to the driver and back in every epoch. "
            "Keep sums and greatest values, not elements"
        )
    return base64.b64encode(content.getvalue()).decode()


def _unpickled(held: str, context: WatermarkGeneratorContext) -> WatermarkGenerator:
    generator: WatermarkGenerator = _Unpickler(base64.b64decode(held), context).load()
    return generator
