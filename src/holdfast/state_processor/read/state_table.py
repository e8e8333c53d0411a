"""The rows of a state as a table for users: keys, map keys and values in columns of their own types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, STAMP, VALUE
from holdfast.state.run.probe import KEY
from holdfast.state.timer.stored_timers import TIMESTAMP
from holdfast.state.timer.timer_service import TIMER_PREFIX
from holdfast.state_processor.form.state_form import StateForm
from holdfast.state_processor.read.stored_operator import Keys, StoredOperator, hash_column, only_namespaces
from holdfast.types.information.type_information import ListTypeInformation, RowTypeInformation, TypeInformation, Types
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import CompositeKeyCodec, TaggedKeyCodec

KEY_GROUP: Final = "key_group"
DOMAIN: Final = "domain"
SERVICE: Final = "service"
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True)
class StateTable:
    """One state of an operator as a table; it can be pickled.

    Attributes:
        operator: The operator.
        form: The state.
        keys: Only these; None for all.
        namespaces: Only these; None for all.
        columns: Only these, in this order; None for all.
        key_type: What keys without a declared type are; None leaves them as bytes.
        map_key_type: The same for map keys.
        expired: Whether what has expired is told of as well.
    """

    operator: StoredOperator
    form: StateForm
    keys: Keys | None = None
    namespaces: tuple[bytes, ...] | None = None
    columns: tuple[str, ...] | None = None
    key_type: TypeInformation | None = None
    map_key_type: TypeInformation | None = None
    expired: bool = False

    @property
    def type(self) -> RowTypeInformation:
        """The columns and their types.

        Raises:
            ConfigurationError: There is no such column.
        """
        fields = self._fields()
        names = tuple(fields) if self.columns is None else self.columns
        unknown = [name for name in names if name not in fields]
        if unknown or not names:
            raise ConfigurationError(f"State {self.form.name!r} has the columns {list(fields)}, not {unknown}.")
        return RowTypeInformation(names, [fields[name] for name in names])

    def _fields(self) -> dict[str, TypeInformation]:
        form = self.form
        fields: dict[str, TypeInformation] = {
            KEY_GROUP: Types.INT(),
            KEY: _key_type(form.key, self.key_type, "key_type"),
        }
        if form.is_timers:
            own: dict[str, TypeInformation] = {DOMAIN: Types.STRING(), SERVICE: Types.STRING()}
            return {**fields, **own, TIMESTAMP: Types.LONG(), NAMESPACE: Types.BINARY()}
        if form.has_namespace:
            fields[NAMESPACE] = Types.BINARY()
        if form.has_time_windows:
            fields |= {WINDOW_START: Types.LONG(), WINDOW_END: Types.LONG()}
        if form.map_key is not None:
            fields[MAP_KEY] = _key_type(form.map_key, self.map_key_type, "map_key_type")
        assert form.value is not None
        is_list = form.kind is StateKind.LIST
        fields[VALUE] = ListTypeInformation(form.value) if is_list else form.value
        if form.has_stamps:
            fields[STAMP] = ListTypeInformation(Types.LONG()) if is_list else Types.LONG()
        return fields

    def read(self, key_groups: Sequence[KeyGroupRange]) -> Iterator[pa.Table]:
        """Yield the rows of some key groups.

        Raises:
            CorruptFileError: A run is damaged.
            NotExistError: A run is gone.
            OutputTypeError: Keys are of another type than was said.
        """
        for groups in key_groups:
            for rows in self.operator.rows(self.form, groups, self.keys, expired=self.expired):
                yield self.as_columns(only_namespaces(rows, self.namespaces))

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of the column of values."""
        return self._fields()[VALUE].arrow_type

    def as_columns(self, rows: pa.Table) -> pa.Table:
        """Return rows of a segment in the columns of the table."""
        schema = self.type.arrow_schema
        arrays = [self._column(field.name, rows, field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _column(self, name: str, rows: pa.Table, wanted: pa.DataType) -> Any:
        form = self.form
        if name == KEY_GROUP:
            return pa.array(key_groups_of(hash_column(rows), self.operator.metadata.max_parallelism), pa.int32())
        if name in (DOMAIN, SERVICE):
            domain, _, service = form.name.removeprefix(TIMER_PREFIX).partition("_")
            return pa.array([domain if name == DOMAIN else service], pa.string()).take(
                pa.array([0] * rows.num_rows, pa.int32())
            )
        if name in (WINDOW_START, WINDOW_END):
            return pa.array(window_bounds(rows.column(NAMESPACE))[:, int(name == WINDOW_END)])
        column = rows.column(name)
        if name == KEY:
            return _user_keys(form.key, column, self.key_type)
        if name == MAP_KEY:
            assert form.map_key is not None
            return _user_keys(form.map_key, column, self.map_key_type)
        return column if column.type == wanted else column.cast(wanted)


def window_bounds(namespaces: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return start and end of windows of time, in milliseconds, from what their serializer has written.

    Raises:
        StateError: One is no window.
    """
    lengths = pc.binary_length(namespaces)
    if len(namespaces) and (namespaces.null_count or pc.min_max(lengths).as_py() != {"min": 16, "max": 16}):
        raise StateError("A namespace is to be a window of time, and does not have its 16 bytes.")
    content = b"".join(namespaces.to_pylist())
    return np.frombuffer(content, ">i8").reshape(-1, 2).astype(np.int64)


def _key_type(codec: KeyCodec, said: TypeInformation | None, argument: str) -> TypeInformation:
    """The type of a column of keys; of those without a declared type bytes, unless somebody says more."""
    if isinstance(codec, TaggedKeyCodec):
        return Types.BINARY() if said is None else said
    kind: TypeInformation = codec.key_type  # type: ignore[attr-defined]
    if said is not None and said != kind:
        raise ConfigurationError(f"{argument} is for keys without a declared type; these are {kind}, not {said}.")
    return kind


def _user_keys(codec: KeyCodec, column: pa.ChunkedArray, said: TypeInformation | None) -> Any:
    is_tagged = isinstance(codec, TaggedKeyCodec)
    if not (isinstance(codec, CompositeKeyCodec) or (is_tagged and said is not None)):
        return column
    kind = said if is_tagged else codec.key_type  # type: ignore[attr-defined]
    assert kind is not None
    values = [codec.user_key(key) for key in codec.from_storage(column.combine_chunks())]
    try:
        return kind.to_array([kind.adopt(value) for value in values])
    except (OutputTypeError, pa.ArrowException, TypeError) as error:
        raise OutputTypeError(
            None, f"Not all keys are {kind}: {error} Leave key_type out to get their bytes."
        ) from error
