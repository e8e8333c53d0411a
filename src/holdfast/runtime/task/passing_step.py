"""What hands on elements that an exchange has brought to this task, as they came."""

from __future__ import annotations

from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.task.step import StepRun


class PassingRun(StepRun):
    """Hands on columns: nothing is made of them here."""

    def accept(self, chunk: Chunk) -> Chunk:
        self.records_in += len(chunk)
        self.records_out += len(chunk)
        return chunk

    def report(self) -> StepReport:
        return StepReport(self.step.uid, self.subtask, records_in=self.records_in, records_out=self.records_out)
