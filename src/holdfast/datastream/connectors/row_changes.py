"""What the rows of an epoch do to a table with a key: the last row of each key counts, and says put or delete.

Rows of a stream of changes have a `RowKind`. Other streams may say what a row does in a column, with the words or
numbers of it: `+I` or 0, `-U` or 1, `+U` or 2, `-D` or 3. `+I` and `+U` put the row, `-U` and `-D` delete its key; the
column itself is not written. So a change that moves a row from one key to another, `-U` of the old one and `+U` of the
new one, does both.
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
from holdfast.types.type_information import TypeInformation

logger = get_logger(__name__)

_WORDS: Final = ("+I", "-U", "+U", "-D")
_DELETES: Final = {"string": pa.array(["-U", "-D"]), "integer": pa.array([1, 3])}
_POSITION: Final = "__position"
_PART: Final = "__part"


@dataclass(frozen=True)
class ChangeColumns:
    """The columns by which rows change a table.

    Attributes:
        key: The columns of the key; without any, each row is added.
        row_kind: The column that says what a row does; None if each row puts itself.
    """

    key: tuple[str, ...] = ()
    row_kind: str | None = None

    def written(self, names: Sequence[str]) -> list[str]:
        """The columns that are written, of all that the stream has."""
        return [name for name in names if name != self.row_kind]

    def of_stream(self, sink: str, element_type: TypeInformation) -> ChangeColumns:
        """The columns for a stream: rows with a kind (`Types.CHANGELOG`) say by themselves what they do.

        Raises:
            ConfigurationError: The stream has not these columns, or they do not go together.
        """
        if not isinstance(element_type, ChangelogTypeInformation):
            self._check_type(sink, element_type)
            return self
        if self.row_kind not in (None, ROW_KIND):
            raise ConfigurationError(
                f"{sink} has row_kind={self.row_kind!r}, and the rows of the stream have kinds themselves: leave "
                "row_kind out."
            )
        if not self.key:
            raise ConfigurationError(
                f"{sink} without a key adds rows, and those of the stream also change and delete ({element_type.ddl}): "
                "name the columns by which a row is found, for instance key='id'."
            )
        found = replace(self, row_kind=ROW_KIND)
        found._check_type(sink, element_type)
        return found

    def _check_type(self, sink: str, element_type: TypeInformation) -> None:
        schema = element_schema(element_type)
        if self.row_kind is not None and not self.key:
            raise ConfigurationError(
                f"{sink} has row_kind={self.row_kind!r} and no key: name the columns by which a row is found that is "
                "to be changed or deleted, for instance key='id'."
            )
        for name in (*self.key, *([self.row_kind] if self.row_kind else [])):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{sink} names the column {name!r}, but the elements of the stream have only {schema.names!r}."
                )
        if self.row_kind in self.key:
            raise ConfigurationError(
                f"{sink} has the column {self.row_kind!r} in its key and as row_kind, which is not written: leave it "
                "out of the key."
            )
        for name in self.key:
            if pa.types.is_nested(schema.field(name).type):
                raise ConfigurationError(
                    f"{sink} finds rows by the key {name!r}, which is {schema.field(name).type}: use a column of a "
                    "simple type."
                )
            if self.key.count(name) > 1:
                raise ConfigurationError(f"{sink} has the column {name!r} twice in its key, {list(self.key)!r}.")
        if self.row_kind is not None and not (_is_word(schema.field(self.row_kind).type) or self._is_number(schema)):
            raise ConfigurationError(
                f"The column {self.row_kind!r}, by which {sink} knows what a row does, is "
                f"{schema.field(self.row_kind).type}: it must be a string ({', '.join(_WORDS)}) or an integer (0 to 3)."
            )

    def check_rows(self, sink: str, uid: str, batch: pa.RecordBatch) -> None:
        """Looks whether rows can be written, before they are staged and a checkpoint promises them.

        Raises:
            OutputTypeError: A row has no key, or a kind that does not exist.
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
            known = pa.array(_WORDS) if _is_word(kinds.type) else pa.array(range(len(_WORDS)))
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

    def puts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are put; of those that delete only the key counts."""
        if self.row_kind is None:
            return batch
        kinds = batch.column(self.row_kind)
        return batch.filter(pc.invert(pc.is_in(kinds, value_set=_deletes(kinds.type))))

    def _is_number(self, schema: pa.Schema) -> bool:
        return bool(pa.types.is_integer(schema.field(self.row_kind).type))


class EpochChanges:
    """Finds what the rows of each epoch of a sink do to its table.

    Args:
        uid: The sink.
        columns: Key and kind.
    """

    def __init__(self, uid: str, columns: ChangeColumns) -> None:
        self._uid = uid
        self._columns = columns
        self._has_told = False

    def last_of_each_key(self, parts: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
        """Splits the rows of an epoch into those that are put and those whose key is deleted.

        Args:
            parts: Rows of each subtask, in the order in which they came.

        Returns:
            Rows to put and rows to delete, without the column of kinds; no key is there twice.

        Raises:
            ConfigurationError: The rows were staged for a key, or a kind, of other columns, and have not these.
        """
        rows, key = pa.concat_tables(parts), list(self._columns.key)
        self._require_columns(rows.column_names)
        if not key:
            return _split(rows, self._columns)
        keys = _equal_where_tables_are(rows.select(key))
        numbered = keys.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
        asked = [(_POSITION, "max")]
        looks = len(parts) > 1 and not self._has_told
        if looks:
            places = [pa.repeat(pa.scalar(place, pa.int32()), part.num_rows) for place, part in enumerate(parts)]
            numbered = numbered.append_column(_PART, pa.chunked_array(places, pa.int32()))
            asked += [(_PART, "min"), (_PART, "max")]
        found = numbered.group_by(key).aggregate(asked)
        if looks:
            self._tell_shared(found)
        last = found[f"{_POSITION}_max"]
        return _split(rows if len(last) == rows.num_rows else rows.take(last.combine_chunks().sort()), self._columns)

    def _require_columns(self, staged: Sequence[str]) -> None:
        kind = self._columns.row_kind
        missing = [name for name in (*self._columns.key, *([kind] if kind else [])) if name not in staged]
        if missing:
            raise ConfigurationError(
                f"The sink {self._uid!r} goes by the columns {missing!r}, which the output that waits to be committed "
                f"does not have, only {list(staged)!r}: an earlier version of the program has staged it. Start that "
                "one once more, so that it commits its output (stop it with a savepoint), and then change the sink."
            )

    def _tell_shared(self, found: pa.Table) -> None:
        """Says once that a key has come from several subtasks, of which nobody knows who was the last."""
        shared = found.filter(pc.not_equal(found[f"{_PART}_min"], found[f"{_PART}_max"]))
        if not shared.num_rows:
            return
        self._has_told = True
        logger.warning(
            "the sink %r got rows of one key from several subtasks in one epoch, of %d keys, for instance %r: the row "
            "of the last subtask counts, which need not be the newest; bring the rows of a key together, by "
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


def _equal_where_tables_are(keys: pa.Table) -> pa.Table:
    """Keys in which numbers are the same bits where they are equal: 0.0 and -0.0 are one row of a table."""
    for at, field in enumerate(keys.schema):
        if pa.types.is_floating(field.type):
            keys = keys.set_column(at, field, pc.add(keys.column(at), pa.scalar(0, field.type)))
    return keys


def columns_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def _deletes(kind_type: pa.DataType) -> pa.Array:
    return _DELETES["string" if _is_word(kind_type) else "integer"].cast(kind_type)


def _is_word(kind_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind_type) or pa.types.is_large_string(kind_type))
