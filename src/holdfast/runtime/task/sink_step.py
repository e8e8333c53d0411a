"""The ends of streams at work in one task: sinks, and what stages elements for a later epoch job."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.function.sink import WriterContext, WriterInitContext
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import user_error
from holdfast.runtime.task.step import StepRun
from holdfast.storage.file_system.os_error import translate


class SinkRun(StepRun):
    """A sink's writer."""

    def __init__(self, step: Step, context: WriterInitContext, epoch: EpochDescriptor) -> None:
        super().__init__(step, context.subtask)
        self._epoch = epoch
        self._context = _ElementContext(epoch.event_time.before(step.uid))
        self._writer = self._guard("opening the writer", step.sink.create_writer, context)
        self._write_batch = getattr(self._writer, "write_batch", None)

    def accept(self, chunk: Chunk) -> None:
        self.records_in += len(chunk)
        if self._write_batch is not None:
            self._guard("writing", self._write_batch, chunk.batch)
            return
        write, context = self._writer.write, self._context
        for element, stamp in zip(chunk.elements, chunk.stamps or repeat(None), strict=False):
            context.stamp = stamp
            self._guard("writing", write, element, context)

    def report(self) -> StepReport:
        self._guard("flushing", self._writer.flush, self._epoch.is_last)
        committables = tuple(self._guard("preparing the commit", self._writer.prepare_commit))
        self._guard("closing the writer", self._writer.close)
        return StepReport(self.step.uid, self.subtask, committables=committables, records_in=self.records_in)

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
        except OSError as error:
            raise translate(error, "write", f"sink {self.step.uid}") from error
        except Exception as error:
            raise user_error(error, self.step.uid, None, self._epoch.epoch, doing) from error


class StageRun(SinkRun):
    """What stages elements for a later epoch job of the epoch, with their event times."""

    def accept(self, chunk: Chunk) -> None:
        batch = chunk.stamped_batch() if self.step.stamped else chunk.batch
        super().accept(Chunk(chunk.type, chunk.uid, batch=batch))

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
