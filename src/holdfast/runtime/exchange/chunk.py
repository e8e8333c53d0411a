"""A stretch of elements on its way through a task, as Python objects, as columns, or both.

The other form is made when somebody asks for it: a sink behind an exchange never makes Python objects, a chain of
maps never makes columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from holdfast.state.run import batch as batches
from holdfast.types.changed_row import CHANGES, originals
from holdfast.types.conversion.arrow import ElementsTooLongError, batch_to_elements, elements_to_batch
from holdfast.types.conversion.stamps import Stamps, no_stamps
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

TIMESTAMP = "__hf_timestamp"
"""The column of event times, where elements cross an exchange or are staged."""


class Chunk:
    """Elements of one type; give it one form at least.

    Args:
        type_: Type of the elements.
        uid: The step that made them, for errors.
        elements: As the step made them: rows may still be plain tuples.
        batch: As columns.
        stamps: The timestamp of each element, as a column; None where event time plays no part.
    """

    __slots__ = ("_adopted", "_batch", "_elements", "_given", "stamps", "type", "uid")

    def __init__(
        self,
        type_: TypeInformation,
        uid: str,
        *,
        elements: list[Any] | None = None,
        batch: pa.RecordBatch | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self.type = type_
        self.uid = uid
        self.stamps = stamps
        self._elements = elements
        self._batch = batch
        self._adopted = not isinstance(type_, RowTypeInformation)
        self._given = False

    def __len__(self) -> int:
        if self._elements is not None:
            return len(self._elements)
        assert self._batch is not None
        return int(self._batch.num_rows)

    def stamped(self, stamps: Stamps | None) -> Chunk:
        """The same elements with other timestamps."""
        copy = Chunk(self.type, self.uid, elements=self._elements, batch=self._batch, stamps=stamps)
        copy._adopted = self._adopted
        copy._given = True
        return copy

    def slice(self, start: int, count: int) -> Chunk:
        """Some of the elements, in the forms that are there."""
        end = start + count
        piece = Chunk(
            self.type,
            self.uid,
            elements=None if self._elements is None else self._elements[start:end],
            batch=None if self._batch is None else self._batch.slice(start, count),
            stamps=None if self.stamps is None else self.stamps.slice(start, count),
        )
        piece._adopted = self._adopted
        piece._given = self._given
        return piece

    def given(self) -> None:
        """Somebody has got the elements in pieces."""
        self._given = True

    def fitting(self) -> Iterator[Chunk]:
        """The elements in stretches of which each has columns: one, unless they are more than Arrow can hold in one."""
        batch = None
        try:
            batch = self.batch
        except ElementsTooLongError:
            if len(self) < 2:
                raise
        if batch is not None and (len(self) < 2 or batch.nbytes <= batches.BATCH_BYTES):
            yield self
            return
        del batch
        middle = len(self) // 2
        yield from self.slice(0, middle).fitting()
        yield from self.slice(middle, len(self) - middle).fitting()
        self.given()

    def stamped_batch(self) -> pa.RecordBatch:
        """The columns with that of the timestamps as the last."""
        batch = self.batch
        stamps = no_stamps(len(self)) if self.stamps is None else self.stamps
        return pa.RecordBatch.from_arrays([*batch.columns, stamps], names=[*batch.schema.names, TIMESTAMP])

    @classmethod
    def of_stamped_batch(cls, type_: TypeInformation, uid: str, batch: pa.RecordBatch) -> Chunk:
        """Elements from columns with the timestamps among them."""
        stamps = batch.column(batch.schema.get_field_index(TIMESTAMP))
        return cls(type_, uid, batch=batch.drop_columns([TIMESTAMP]), stamps=stamps)

    @property
    def elements(self) -> list[Any]:
        """The elements as Python objects: rows, or plain values.

        Rows are made from the columns, so a chained function gets what one behind an exchange would get. Whoever asks
        next gets them as they were, also if a function has changed one.

        Raises:
            OutputTypeError: The columns have a value that Python has not.
        """
        if self._elements is None or not self._adopted:
            found = [batch_to_elements(piece.batch, self.type, self.uid) for piece in self.fitting()]
            self._elements = found[0] if len(found) == 1 else list(chain.from_iterable(found))
            self._adopted = True
        elif CHANGES and self._given:
            self._elements = originals(self._elements)
        self._given = True
        return self._elements

    @property
    def columns(self) -> pa.RecordBatch | None:
        """The elements as columns if they are there, perhaps with values that are none of their types."""
        return self._batch

    @property
    def batch(self) -> pa.RecordBatch:
        """The elements as columns.

        Raises:
            OutputTypeError: An element does not match the declared type of the step that made it.
            ElementsTooLongError: They are more than a batch can hold; those of `fitting` are not.
        """
        if self._batch is None:
            assert self._elements is not None
            if CHANGES and self._given:
                self._elements = originals(self._elements)
            self._batch = elements_to_batch(self._elements, self.type, self.uid)
        return self._batch
