"""The ends of streams at work in one task: sinks, and what stages elements for a later epoch job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import HoldfastError, OutputTypeError
from holdfast.kernel.secret import shown_error
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.function.sink import SEND_ERRORS, RefusedElementError, WriterContext, WriterInitContext
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import user_error
from holdfast.runtime.task.step import StepRun
from holdfast.storage.file_system.os_error import OF_A_PATH, translate
from holdfast.types.changed_row import original
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.conversion.soundness import require_sound, without_unsound
from holdfast.types.conversion.stamps import Stamps, one_by_one, stamps_of
from holdfast.types.conversion.times_of_day import with_numbers

_REFUSED: Final = (RefusedElementError, OutputTypeError)


class SinkRun(StepRun):
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
                require_sound(batch, self.step.uid)
            if self._write_batch is not None:
                self._guard("writing", self._write_batch, batch)
                return
        except _REFUSED as error:
            if self.step.dead_letters is None:
                raise
            assert batch is not None
            if batch.num_rows == 1:
                # A letter is of the same type, so it has null for what is none; the reason says what that was.
                [element] = batch_to_elements(without_unsound(batch), self.step.input_type)
                self._refuse(element, None if chunk.stamps is None else chunk.stamps[0].as_py(), error)
                return
            half = batch.num_rows // 2
            for begin, end in ((0, half), (half, batch.num_rows)):
                self._accept_part(chunk.slice(begin, end - begin))
        else:
            self._write_elements(chunk)

    def _write_elements(self, chunk: Chunk) -> None:
        write, context = self._writer.write, self._context
        for element, stamp in zip(chunk.elements, one_by_one(chunk.stamps), strict=False):
            context.stamp = stamp
            try:
                self._guard("writing", write, element, context)
            except _REFUSED as error:
                self._refuse(element, stamp, error)

    def _refuse(self, element: Any, stamp: int | None, error: Exception) -> None:
        if self.step.dead_letters is None:
            raise error
        self.records_out += 1
        self._letters.append((original(element), self.step.uid, self._epoch.epoch, shown_error(error)))
        self._stamps.append(stamp)

    def side_outputs(self) -> dict[str, tuple[list[Any], Stamps | None]]:
        if not self._letters:
            return {}
        assert self.step.dead_letters is not None
        letters, stamps = self._letters, stamps_of(self._stamps) if self.step.stamped else None
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


class StageRun(SinkRun):
    """What stages elements for a later epoch job of the epoch, with their event times, in columns that Spark reads."""

    def accept(self, chunk: Chunk) -> None:
        for piece in chunk.fitting():
            batch = piece.stamped_batch() if self.step.stamped else piece.batch
            super().accept(Chunk(piece.type, piece.uid, batch=with_numbers(batch)))

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
