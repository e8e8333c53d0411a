"""One subtask of an operator whose function gets whole batches, for one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.runtime.function.user_function import TimeDomain
from holdfast.runtime.operator.failure import user_error
from holdfast.runtime.operator.subtask import OperatorSubtask
from holdfast.runtime.operator.vectorised.batch_function import BatchContext, has_timers
from holdfast.runtime.operator.vectorised.returned import as_one_batch
from holdfast.state.timer.timer_service import DueTimers
from holdfast.types.conversion.arrow import element_schema, elements_to_batch
from holdfast.types.conversion.stamps import Stamps, joined

Emitted = tuple[pa.RecordBatch, Stamps]


class BatchSubtask(OperatorSubtask):
    """Passes the batches of one epoch to a function; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._context = BatchContext(self.info.uid, self.backend, self.info.watermark, self.info.processing_time)

    def process_batch(
        self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, timestamps: Stamps | None = None
    ) -> Emitted:
        """Process a batch as columns, and return what came out as columns, with its timestamps.

        Raises:
            UserFunctionError: The function raised.
            OutputTypeError: It returned other columns than declared, or other timestamps than rows.
        """

        def process() -> Any:
            self._context.begin(dict_keys, hashes, timestamps)
            return self._call(batch, self._context)

        return self._guarded("processing a batch", process)

    def close(self, watermark: int, now: int) -> Emitted:
        """The input has ended: pass on the timers that are due, and return what came out.

        Raises:
            UserFunctionError: The function raised.
            OutputTypeError: It returned other columns than declared, or other timestamps than rows.
        """
        assert self.backend is not None
        timers, self._context.watermark = self.backend.timers, watermark
        emitted = [
            *self._fired(TimeDomain.EVENT_TIME, lambda: timers.take_due_event_time(watermark)),
            *self._fired(TimeDomain.PROCESSING_TIME, lambda: timers.take_due_processing_time(now)),
        ]
        self._context.end_timers()
        self.backend.release()
        if not emitted:
            emitted = [self._guarded("firing timers", lambda: None)]
        batches, stamps = zip(*emitted, strict=True)
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0], joined(stamps)

    def _fired(self, domain: TimeDomain, take: Callable[[], DueTimers]) -> Iterator[Emitted]:
        while len((due := take()).times):
            self._context.begin_timers(due.slots, due.times, domain)
            # Others may set timers too; they go when they are due, and would be due for ever otherwise.
            if has_timers(self.function):
                yield self._guarded("firing timers", partial(self._passed_on, due))

    def _passed_on(self, due: DueTimers) -> Any:
        return self.function.on_timers(self._keys(due), self._context)

    def _keys(self, due: DueTimers) -> pa.RecordBatch:
        """Return the keys of timers as the columns that they were made of."""
        assert self.backend is not None
        stored, _ = self.backend.keys_of(due.slots)
        columns, codec = self._spec.key_columns, self.backend.key_codec
        assert columns is not None
        schema = element_schema(columns)
        if len(schema) == 1 and stored.type.equals(schema.field(0).type):
            return pa.RecordBatch.from_arrays([stored], schema=schema)
        keys = [codec.user_key(key) for key in codec.from_storage(stored)]
        rows = keys if len(schema) > 1 else [(key,) for key in keys]
        return elements_to_batch(rows, columns, self.info.uid)

    def _guarded(self, doing: str, call: Callable[[], Any]) -> Emitted:
        try:
            batch = as_one_batch(call(), self._spec.output_type, self.info.uid)
            return batch, self._context.take_emitted(batch.num_rows)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.info.uid, None, self.info.epoch, doing) from error
