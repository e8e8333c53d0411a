"""A step that reads files: it gets splits, and emits what is in them, in columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.function.splits import SplitInput
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.task.step import StepRun
from holdfast.types.conversion.stamps import Stamps


class ReadingRun(StepRun):
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

    def side_outputs(self) -> dict[str, tuple[list[Any], Stamps | None]]:
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
