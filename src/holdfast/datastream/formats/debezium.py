"""`DebeziumJsonDeserializationSchema`: reads changes of tables from Debezium's JSON, as rows with kinds.

A message is an object with `before`, `after` and `op`, or has such an object as `payload` beside a `schema`::

    {"before": {"id": 1, "name": "kelp"}, "after": {"id": 1, "name": "rock"}, "op": "u", "source": {"lsn": 17}}

`c` and `r` (of a snapshot) are `+I`, `u` is `-U` and `+U`, `d` is `-D`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.json_value import json_reader, parse_json
from holdfast.types.row import Row, RowKind, row_class
from holdfast.types.serialization import DeserializationSchema
from holdfast.types.type_parser import to_row_type

__all__ = ["DebeziumJsonDeserializationSchema"]

_INSERTS: Final = ("c", "r")

_TIMES: Final = ("date", "time", "timestamp_ntz", "timestamp")

_UNAVAILABLE: Final = b"__debezium_unavailable_value"
"""Debezium's placeholder for an unchanged value that Postgres stores out of line (TOAST) and does not send again."""
_UNAVAILABLE_VALUES: Final = (
    _UNAVAILABLE.decode(),
    b64encode(_UNAVAILABLE).decode(),
    [_UNAVAILABLE.decode()],
    list(_UNAVAILABLE),
)
_UNAVAILABLE_FORMS: Final = (_UNAVAILABLE, b64encode(_UNAVAILABLE), b"[95,95,100,101,98")
"""Bytes of a message that may contain one of them."""


class DebeziumJsonDeserializationSchema(DeserializationSchema):
    """Reads rows with kinds from Debezium's JSON, with or without its schema.

    Tombstones, which follow a deletion in compacted topics, have no value and are skipped. An update without the old
    row (Postgres without `REPLICA IDENTITY FULL`) is `+U` alone, which is enough for a table with a key: Debezium sends
    a changed key as a deletion and an insertion.

    Args:
        row_type: The columns of the table, as `output_type` takes them: `"id bigint, name string"`. Dates are numbers
            of days or text. Other times must be text (`timestamp with time zone` always is, others with the connector's
            `time.precision.mode=isostring`), and decimals too (`decimal.handling.mode=string`). Declare numbers as
            `bigint`.
        metadata: Columns that are not from the table, and their paths in the message, such as `{"lsn": "source.lsn"}`.
        ignore_parse_errors: Whether to skip invalid messages; otherwise they fail the job.

    Raises:
        ConfigurationError: JSON has no form for a column, or `metadata` names an undeclared column.

    Example:
        >>> from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
        >>> schema = DebeziumJsonDeserializationSchema("id bigint, name string")
        >>> update = b'{"before": {"id": 1, "name": "kelp"}, "after": {"id": 1, "name": "rock"}, "op": "u"}'
        >>> [(row.get_row_kind().name, row.name) for row in schema.deserialize_all(update)]
        [('UPDATE_BEFORE', 'kelp'), ('UPDATE_AFTER', 'rock')]
    """

    def __init__(
        self, row_type: Any, *, metadata: Mapping[str, str] | None = None, ignore_parse_errors: bool = False
    ) -> None:
        declared = to_row_type(row_type)
        self._rows = declared.plain if isinstance(declared, ChangelogTypeInformation) else declared
        self._metadata = dict(metadata or {})
        self._ignores_errors = ignore_parse_errors
        unknown = [name for name in self._metadata if name not in self._rows.names]
        if unknown:
            raise ConfigurationError(f"metadata names {unknown[0]!r}, and the columns are {list(self._rows.names)!r}.")
        self._type = ChangelogTypeInformation(self._rows.names, self._rows.types)
        self._read = json_reader(self._rows)
        kinds = zip(self._rows.names, self._rows.types, strict=True)
        self._times = [(name, kind.ddl) for name, kind in kinds if kind.ddl in _TIMES]

    def deserialize(self, message: bytes) -> Any:
        """Return the row of a message with one row.

        Raises:
            ValueError: The message is not a change, or has two rows or none.
        """
        rows = self.deserialize_all(message)
        if len(rows) != 1:
            raise ValueError(f"a message of Debezium stands for {len(rows)} rows: call deserialize_all()")
        return rows[0]

    def deserialize_all(self, message: bytes) -> list[Row]:
        """Return the rows of a message: two for an update, none for a message that changes no row.

        Raises:
            ValueError: The message is not a change.
        """
        try:
            return self._changes(parse_json(message), any(form in message for form in _UNAVAILABLE_FORMS))
        except (ValueError, OutputTypeError) as error:
            if self._ignores_errors:
                return []
            raise ValueError(f"the message is not a Debezium change event of {self._rows}: {error!s:.1000}") from None

    def get_produced_type(self) -> ChangelogTypeInformation:
        return self._type

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._rows, self._metadata, self._ignores_errors)

    def _changes(self, message: Any, may_have_placeholders: bool) -> list[Row]:
        if isinstance(message, dict) and "op" not in message and isinstance(message.get("payload"), dict):
            message = message["payload"]
        if not isinstance(message, dict) or "op" not in message:
            raise ValueError("there is no 'op' in it")
        if may_have_placeholders:
            self._check_available(message.get("after"))
        operation = message["op"]
        if operation in _INSERTS:
            return [self._row(RowKind.INSERT, message, "after")]
        if operation == "u":
            after = self._row(RowKind.UPDATE_AFTER, message, "after")
            if message.get("before") is None:
                return [after]
            return [self._row(RowKind.UPDATE_BEFORE, message, "before"), after]
        if operation == "d":
            return [self._row(RowKind.DELETE, message, "before")]
        if operation == "m":  # a logical message that a program has written into the WAL of Postgres
            return []
        if operation == "t":
            raise ValueError(
                "the table was truncated, which changelog rows cannot express; clear the results and restart the job"
            )
        raise ValueError(f"its operation is {operation!r}")

    def _check_available(self, fields: Any) -> None:
        """Reject a row with a placeholder instead of a value."""
        for name in self._rows.names:
            if isinstance(fields, dict) and fields.get(name) in _UNAVAILABLE_VALUES:
                raise ValueError(
                    f"column {name!r} is missing, because Postgres does not send unchanged out-of-line values; "
                    "'alter table ... replica identity full' sends them"
                )

    def _row(self, kind: RowKind, message: dict[str, Any], where: str) -> Row:
        fields = message.get(where)
        if not isinstance(fields, dict):
            raise ValueError(  # noqa: TRY004 - the message is wrong, not the caller
                f"{where!r} of an operation {message['op']!r} is no row, but {fields!r:.100}"
            )
        if self._times:
            fields = fields | {name: _time(name, kind, fields.get(name)) for name, kind in self._times}
        if self._metadata:
            fields = fields | {name: _value_at(message, path) for name, path in self._metadata.items()}
        row: Row = self._type.adopt(self._read(fields))
        return row_class(type(row)._names, kind).make(row)


def _time(name: str, kind: str, value: Any) -> Any:
    """Normalize a time: Debezium appends a Z even to times without a zone."""
    if type(value) is int and kind != "date":
        raise ValueError(
            f"field {name!r}: {value} is a number of an unknown unit: let the connector write texts "
            "(time.precision.mode=isostring), or declare the field as bigint"
        )
    return value.removesuffix("Z") if kind != "timestamp" and isinstance(value, str) else value


def _value_at(message: Any, path: str) -> Any:
    """Return the value at a path such as `a.b` in a message."""
    for step in path.split("."):
        if not isinstance(message, dict) or step not in message:
            raise ValueError(f"there is no {path!r} in it")
        message = message[step]
    return message


def _rebuild(
    row_type: RowTypeInformation, metadata: dict[str, str], ignore_parse_errors: bool
) -> DebeziumJsonDeserializationSchema:
    return DebeziumJsonDeserializationSchema(row_type, metadata=metadata, ignore_parse_errors=ignore_parse_errors)
