"""`ChangesOfKey`: turns a changelog with duplicates or disorder into a clean one; its state is one row per key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import KeyedProcessFunction, RuntimeContext
from holdfast.state.api import ValueState
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.ordering import are_equal, is_less
from holdfast.types.row import Row, RowKind
from holdfast.types.type_information import AtomicTypeInformation, DecimalTypeInformation, TypeInformation
from holdfast.types.types import Types

_LIVE: Final = 0
_RETRACTED: Final = 1
"""The `-U` has arrived, and the `+U` has not yet."""
_DELETED: Final = 2


class ChangesOfKey(KeyedProcessFunction):
    """Emits the actual changes of a key: `+I`, `-U` and `+U`, `-D`, each with the complete row.

    Args:
        rows: The type of the rows, without kinds.
        version: The column that orders the rows of a key; None if they arrive in order.
    """

    def __init__(self, rows: RowTypeInformation, version: str | None) -> None:
        self._rows = rows
        self._version = None if version is None else rows.names.index(version)

    @classmethod
    def of(cls, where: str, element_type: TypeInformation, version: str | None = None) -> ChangesOfKey:
        """Create the function for a stream.

        Raises:
            ConfigurationError: The stream has no columns, or lacks `version`, or its values have no order.
        """
        if not isinstance(element_type, RowTypeInformation):
            raise ConfigurationError(
                f"{where} works on rows, and the elements are {element_type.ddl!r}: declare output_type='name type, "
                "...' at the operator before."
            )
        rows = element_type.plain if isinstance(element_type, ChangelogTypeInformation) else element_type
        if version is not None:
            if version not in rows.names:
                raise ConfigurationError(f"{where}: there is no column {version!r}; the stream has {rows.names!r}.")
            kind = rows.types[rows.names.index(version)]
            if not isinstance(kind, AtomicTypeInformation | DecimalTypeInformation):
                raise ConfigurationError(f"{where}: values of column {version!r}, {kind.ddl!r}, have no order.")
        return cls(rows, version)

    @property
    def output_type(self) -> ChangelogTypeInformation:
        return ChangelogTypeInformation(self._rows.names, self._rows.types)

    def open(self, runtime_context: RuntimeContext) -> None:
        kept = Types.ROW_NAMED(["row", "status"], [self._rows, Types.BYTE()])
        self._last: ValueState[Any] = runtime_context.get_state(ValueStateDescriptor("last", kept))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        row, kind = tuple(value), value.get_row_kind()
        if self._version is not None and row[self._version] is None:
            raise ValueError(f"a row has no version: {self._rows.names[self._version]!r} is null in {row!r}")
        before, status = self._last.value() or (None, _DELETED)
        if before is not None and self._is_older(row, before):
            return
        if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            yield from self._put(row, before, status)
        elif kind is RowKind.UPDATE_BEFORE:
            if status == _LIVE:
                self._last.update((before if self._version is None else row, _RETRACTED))
                yield self._row(RowKind.UPDATE_BEFORE, before)
        else:
            yield from self._delete(row, before, status)

    def _put(self, row: tuple[Any, ...], before: Any, status: int) -> Iterator[Row]:
        if status == _LIVE:
            if are_equal(row, before):
                return
            yield self._row(RowKind.UPDATE_BEFORE, before)
        self._last.update((row, _LIVE))
        yield self._row(RowKind.INSERT if status == _DELETED else RowKind.UPDATE_AFTER, row)

    def _delete(self, row: tuple[Any, ...], before: Any, status: int) -> Iterator[Row]:
        if self._version is None:
            self._last.clear()
        else:  # kept, so that an older row that arrives later does not restore it
            self._last.update((row, _DELETED))
        if status == _LIVE:  # otherwise it was retracted before
            yield self._row(RowKind.DELETE, before)

    def _is_older(self, row: tuple[Any, ...], before: Any) -> bool:
        if self._version is None:
            return False
        return is_less(row[self._version], before[self._version])

    def _row(self, kind: RowKind, row: Any) -> Row:
        return Row.of_kind(kind, **dict(zip(self._rows.names, row, strict=True)))
