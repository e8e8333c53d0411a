"""How the rows of an epoch change a table with a key: the last row of each key counts, and upserts or deletes.

Rows of a changelog stream have a `RowKind`. In other streams a column can contain it, as text or number: `+I` or 0,
`-U` or 1, `+U` or 2, `-D` or 3. `+I` and `+U` upsert the row, `-U` and `-D` delete its key; the column itself is not
written. So `-U` of the old key and `+U` of the new one move a row from one key to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.kernel.secret import get_logger
from holdfast.types.arrow import element_schema
from holdfast.types.changelog_type import ROW_KIND, ChangelogTypeInformation
from holdfast.types.ordering import canonical_floats
from holdfast.types.type_information import TypeInformation

logger = get_logger(__name__)

_WORDS: Final = ("+I", "-U", "+U", "-D")
_DELETES: Final = {"string": pa.array(["-U", "-D"]), "integer": pa.array([1, 3])}
_POSITION: Final = "__position"
_PART: Final = "__part"


@dataclass(frozen=True)
class ChangeColumns:
    """The columns that decide how a row changes a table.

    Attributes:
        key: The columns of the key. Without any, each row is appended.
        row_kind: The column with the kind of each row; None if every row is an upsert.
    """

    key: tuple[str, ...] = ()
    row_kind: str | None = None

    def written(self, names: Sequence[str]) -> list[str]:
        """Return the columns of a stream that are written."""
        return [name for name in names if name != self.row_kind]

    def for_stream(self, sink: str, element_type: TypeInformation) -> ChangeColumns:
        """Return the columns for a stream; rows of a changelog type have a kind of their own.

        Raises:
            ConfigurationError: The stream lacks a column, or key and row kind do not fit it.
        """
        if not isinstance(element_type, ChangelogTypeInformation):
            self._check_type(sink, element_type)
            return self
        if self.row_kind not in (None, ROW_KIND):
            raise ConfigurationError(
                f"{sink} has row_kind={self.row_kind!r}, but the rows of the stream have kinds of their own: leave out "
                "row_kind."
            )
        if not self.key:
            raise ConfigurationError(
                f"{sink} without a key only appends, but the stream also updates and deletes rows "
                f"({element_type.ddl}): pass the columns that identify a row, for instance key='id'."
            )
        found = replace(self, row_kind=ROW_KIND)
        found._check_type(sink, element_type)
        return found

    def _check_type(self, sink: str, element_type: TypeInformation) -> None:
        schema = element_schema(element_type)
        if self.row_kind is not None and not self.key:
            raise ConfigurationError(
                f"{sink} has row_kind={self.row_kind!r} but no key: pass the columns that identify the row to update "
                "or delete, for instance key='id'."
            )
        for name in (*self.key, *([self.row_kind] if self.row_kind else [])):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{sink} names the column {name!r}, but the elements of the stream have only {schema.names!r}."
                )
        if self.row_kind in self.key:
            raise ConfigurationError(
                f"{sink} has the column {self.row_kind!r} in its key and as row_kind, which is not written: remove it "
                "from the key."
            )
        for name in self.key:
            if pa.types.is_nested(schema.field(name).type):
                raise ConfigurationError(
                    f"{sink} cannot use {name!r} as key, because it is {schema.field(name).type}: use a column of a "
                    "simple type."
                )
            if self.key.count(name) > 1:
                raise ConfigurationError(f"{sink} has the column {name!r} twice in its key, {list(self.key)!r}.")
        if self.row_kind is not None and not (_is_text(schema.field(self.row_kind).type) or self._is_number(schema)):
            raise ConfigurationError(
                f"The column {self.row_kind!r}, the row_kind of {sink}, is {schema.field(self.row_kind).type}: it "
                f"must be a string ({', '.join(_WORDS)}) or an integer (0 to 3)."
            )

    def check_rows(self, sink: str, uid: str, batch: pa.RecordBatch) -> None:
        """Check rows before they are staged.

        Raises:
            OutputTypeError: A row has no key, or an unknown kind.
        """
        for name in self.key:
            if batch.column(name).null_count:
                row = pc.index(batch.column(name).is_null(), True).as_py()
                raise OutputTypeError(
                    uid,
                    f"{sink} got a row without a key: {name!r} is null in {batch.slice(row, 1).to_pylist()[0]!r}. "
                    "Filter such rows out, or give them a key.",
                    row=row,
                    field=name,
                )
        if self.row_kind is not None:
            kinds = batch.column(self.row_kind)
            known = pa.array(_WORDS) if _is_text(kinds.type) else pa.array(range(len(_WORDS)))
            is_known = pc.is_in(kinds, value_set=known.cast(kinds.type))
            if not pc.all(is_known, min_count=0).as_py():
                row = pc.index(is_known, False).as_py()
                raise OutputTypeError(
                    uid,
                    f"{sink} got a row of the kind {kinds[row].as_py()!r} (column {self.row_kind!r}); kinds are "
                    f"{', '.join(_WORDS)} or 0 to 3.",
                    row=row,
                    field=self.row_kind,
                )

    def upserts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are upserted. Of the others only the key is used."""
        if self.row_kind is None:
            return batch
        kinds = batch.column(self.row_kind)
        return batch.filter(pc.invert(pc.is_in(kinds, value_set=_deletes(kinds.type))))

    def _is_number(self, schema: pa.Schema) -> bool:
        return bool(pa.types.is_integer(schema.field(self.row_kind).type))


class EpochChanges:
    """Reduces the rows of each epoch to one change of each key.

    Args:
        uid: The uid of the sink.
        columns: Key and row kind.
    """

    def __init__(self, uid: str, columns: ChangeColumns) -> None:
        self._uid = uid
        self._columns = columns
        self._has_warned = False

    def last_of_each_key(self, parts: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
        """Split the rows of an epoch into upserts and deletes.

        Args:
            parts: The rows of each subtask, in the order of their arrival.

        Returns:
            Rows to upsert and rows to delete, without the column of kinds. No key occurs twice.

        Raises:
            ConfigurationError: The rows were staged for other key or kind columns, and lack these.
        """
        rows, key = pa.concat_tables(parts), list(self._columns.key)
        self._require_columns(rows.column_names)
        if not key:
            return _split(rows, self._columns)
        keys = pa.table({name: canonical_floats(rows.column(name)) for name in key})
        numbered = keys.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
        aggregations = [(_POSITION, "max")]
        warns = len(parts) > 1 and not self._has_warned
        if warns:
            places = [pa.repeat(pa.scalar(place, pa.int32()), part.num_rows) for place, part in enumerate(parts)]
            numbered = numbered.append_column(_PART, pa.chunked_array(places, pa.int32()))
            aggregations += [(_PART, "min"), (_PART, "max")]
        found = numbered.group_by(key).aggregate(aggregations)
        if warns:
            self._warn_of_shared_keys(found)
        last = found[f"{_POSITION}_max"]
        return _split(rows if len(last) == rows.num_rows else rows.take(last.combine_chunks().sort()), self._columns)

    def _require_columns(self, staged: Sequence[str]) -> None:
        kind = self._columns.row_kind
        missing = [name for name in (*self._columns.key, *([kind] if kind else [])) if name not in staged]
        if missing:
            raise ConfigurationError(
                f"The sink {self._uid!r} uses the columns {missing!r} as key or row_kind, but its uncommitted output "
                f"has only {list(staged)!r}: an earlier version of the program has staged it. Start that version once "
                "more, stop it with a savepoint so that it commits its output, and then change the sink."
            )

    def _warn_of_shared_keys(self, found: pa.Table) -> None:
        """Warn once if several subtasks have rows of one key: their order is unknown."""
        shared = found.filter(pc.not_equal(found[f"{_PART}_min"], found[f"{_PART}_max"]))
        if not shared.num_rows:
            return
        self._has_warned = True
        logger.warning(
            "the sink %r got rows of the same key from several subtasks in one epoch, for %d keys, for instance %r: "
            "the row of the highest subtask wins, which may not be the newest; key the stream with "
            "stream.key_by(%r).sink_to(...)",
            self._uid,
            shared.num_rows,
            shared.select(list(self._columns.key)).slice(0, 1).to_pylist()[0],
            list(self._columns.key),
        )


def _split(kept: pa.Table, columns: ChangeColumns) -> tuple[pa.Table, pa.Table]:
    written = columns.written(kept.column_names)
    if columns.row_kind is None:
        return kept.select(written), kept.select(written).slice(0, 0)
    kinds = kept[columns.row_kind]
    is_delete = pc.is_in(kinds, value_set=_deletes(kinds.type))
    return kept.filter(pc.invert(is_delete)).select(written), kept.filter(is_delete).select(written)


def columns_of(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _deletes(kind_type: pa.DataType) -> pa.Array:
    return _DELETES["string" if _is_text(kind_type) else "integer"].cast(kind_type)


def _is_text(kind_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind_type) or pa.types.is_large_string(kind_type))
