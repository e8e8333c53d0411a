"""What gives elements their event time where the program generates watermarks itself, at work in one task."""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import HoldfastError
from holdfast.kernel.watermark import (
    NO_TIMESTAMP,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import user_error
from holdfast.runtime.task.timestamp_step import TimestampRun


class GeneratedRun(TimestampRun):
    """Shows the elements to a generator, and reports the watermark that it has emitted.

    Args:
        step: The step.
        strategy: It has a supplier.
        context: What the generator may know.
        epoch: For error messages.

    Raises:
        UserFunctionError: The generator could not be made.
    """

    def __init__(
        self, step: Step, strategy: WatermarkStrategy, context: WatermarkGeneratorContext, epoch: int
    ) -> None:
        super().__init__(step, strategy, context.subtask, epoch)
        self._output = WatermarkOutput()
        assert strategy.supplier is not None
        try:
            self._generator = strategy.supplier(context)
            if not isinstance(self._generator, WatermarkGenerator):
                raise TypeError(f"the supplier of for_generator() made {self._generator!r}, no WatermarkGenerator")
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, step.uid, None, epoch, "making a watermark generator") from error

    def accept(self, chunk: Chunk) -> Chunk:
        stamped = super().accept(chunk)
        stamps = stamped.stamps or [None] * len(chunk)
        on_event, output = self._generator.on_event, self._output
        try:
            for element, stamp in zip(chunk.elements, stamps, strict=True):
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
        reached = self._output.reached
        # The negative of it: of a clock whose tasks are to be the slowest, everybody on the way keeps the greatest.
        return replace(super().report(), observed=None if reached is None else -reached)
