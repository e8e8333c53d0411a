"""What gives elements their event time, at work in one task."""

from __future__ import annotations

import base64
import io
import pickle
from dataclasses import replace
from typing import Any, Final

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.kernel.watermark import (
    NO_TIMESTAMP,
    ColumnTimestampAssigner,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.chunk import Chunk
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import user_error
from holdfast.runtime.task.step import StepRun
from holdfast.types.conversion.stamps import Stamps, one_by_one, stamps_of, times_in

_CONTEXT: Final = "context"
_LARGEST: Final = 64 << 10


class TimestampRun(StepRun):
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

    def _of_column(self, batch: pa.RecordBatch, column: str) -> Stamps:
        """Take the timestamps of a column."""
        found = batch.column(column)
        if found.null_count:
            error = ValueError(f"column {column!r} has no timestamp in row {found.is_null().index(True).as_py()}")
            raise user_error(error, self.step.uid, None, self._epoch, "assigning a timestamp")
        return times_in(found)

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

    def _assigned(self, chunk: Chunk) -> Stamps:
        extract = self._extract
        assert extract is not None
        stamps: list[int] = []
        try:
            for element, stamp in zip(chunk.elements, one_by_one(chunk.stamps), strict=False):
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
            return stamps_of([None if stamp == NO_TIMESTAMP else stamp for stamp in stamps])
        return stamps_of(stamps)


class GeneratedRun(TimestampRun):
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
            for element, stamp in zip(chunk.elements, one_by_one(stamped.stamps), strict=False):
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


class _Unpickler(pickle.Unpickler):
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
