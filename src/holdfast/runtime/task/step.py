"""The steps of a stage at work in one task; here operators, with keys and without.

They take chunks and may emit chunks; at the end of the input they emit what is left, and report what they made durable.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.graph.event_time import Observed
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import OperatorSubtask
from holdfast.runtime.operator.vectorised.batch_subtask import BatchSubtask
from holdfast.runtime.task.queryable_names import QueryableNames
from holdfast.runtime.task.worker import LoadedJob
from holdfast.runtime.window_operator.pane_subtask import PaneSubtask
from holdfast.state.operator.operator_snapshot import OperatorSnapshot
from holdfast.storage.job.job_directory import SHARED
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.stamps import Stamps

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


class StepRun(ABC):
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

    def side_outputs(self) -> dict[str, tuple[list[Any], Stamps | None]]:
        """What was sent to side outputs since the last call, by tag, with its timestamps."""
        return {}

    @abstractmethod
    def report(self) -> StepReport:
        """Makes durable what this step has changed or staged, and says what that is."""

    def succeeded(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Every step of the task has reported."""

    def abort(self) -> None:  # noqa: B027 - most steps have nothing to do
        """The task has failed; never raises."""


class OperatorRun(StepRun):
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

    def side_outputs(self) -> dict[str, tuple[list[Any], Stamps | None]]:
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


class KeyedRun(OperatorRun):
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

    def _emitted_batch(self, batch: pa.RecordBatch, stamps: Stamps) -> Chunk:
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
