"""Types from DDL of Spark SQL, Arrow, PySpark and Python classes, without Spark.

``NOT NULL``, ``COMMENT`` and field metadata are ignored: every field may be null. ``VARCHAR(n)`` is a string. Types
without an Arrow form that Spark and Python share are rejected by name.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation, dataclass_type
from holdfast.types.opaque import PickledTypeInformation, SerializerTypeInformation
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    TypeInformation,
    ValueSerializer,
)
from holdfast.types.types import Types

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<word>[\w.\-]+)
      | (?P<sign>[<>(),:])
    )""",
    re.VERBOSE,
)
_SYNONYMS: Final = {
    "boolean": "boolean",
    "bool": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "binary": "binary",
}
_REFUSED: Final = {
    "variant": "cast it to a string or to a declared type first",
    "void": "give it a type, for instance CAST(... AS STRING)",
    "null": "give it a type, for instance CAST(... AS STRING)",
    "geometry": "convert it to binary first",
    "geography": "convert it to binary first",
    "calendarinterval": "use a day-time interval",
    "object": "convert it to a declared type first",
}
_DAY_TIME_UNITS: Final = ("day", "hour", "minute", "second")
BINARY_COLLATION: Final = "UTF8_BINARY"
_MAX_DIGITS: Final = 9


def parse_type(text: str) -> TypeInformation:
    """Parse one type, such as ``array<bigint>``.

    Raises:
        ConfigurationError: The text is not a type, or the type has no Arrow form.
    """
    parser = _Parser(text)
    result = parser.type()
    parser.end()
    return result


def parse_schema(text: str) -> RowTypeInformation:
    """Parse the columns of a table, such as ``a string, b bigint``. As in PySpark, a colon may follow a name.

    Raises:
        ConfigurationError: The text is not a list of columns, or a type has no Arrow form.
    """
    parser = _Parser(text)
    result = parser.fields(until=None)
    parser.end()
    return result


class _Parser:
    """Reads tokens from left to right, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"{text[position:].strip()[:20]!r} is not valid")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at][1]!r} is not expected")

    def type(self) -> TypeInformation:
        kind, name = self._next("a type")
        lower = name.lower()
        if kind != "word":
            raise self._error(f"a type is expected, not {name!r}")
        if lower in _REFUSED:
            raise self._error(f"type {lower!r} has no form that Spark and Python share; {_REFUSED[lower]}")
        simple = _SYNONYMS.get(lower)
        if simple is not None:
            return AtomicTypeInformation(simple)
        special = _SPECIAL.get(lower)
        if special is None:
            raise self._error(f"{name!r} is not a type")
        return special(self)

    def string(self) -> TypeInformation:
        if not self._take("collate"):
            return AtomicTypeInformation("string")
        collation = self._next("a collation")[1].strip("`").upper()
        if collation == BINARY_COLLATION:
            return AtomicTypeInformation("string")
        return CollatedStringTypeInformation(collation)

    def character(self) -> TypeInformation:
        numbers = self._numbers()
        if len(numbers) > 1:
            raise self._error("CHAR has one length")
        return CharTypeInformation(*numbers)

    def varying(self) -> TypeInformation:
        """VARCHAR is a string here; Spark enforces the length."""
        self._numbers()
        return AtomicTypeInformation("string")

    def decimal(self) -> TypeInformation:
        numbers = self._numbers()
        if len(numbers) > 2:
            raise self._error("DECIMAL has a precision and a scale")
        return DecimalTypeInformation(*(*numbers, *(10, 0)[len(numbers) :]))

    def time(self) -> TypeInformation:
        """The precision is ignored: Python has microseconds in any case."""
        self._numbers()
        return AtomicTypeInformation("time")

    def interval(self) -> TypeInformation:
        """Only intervals from day to second have an Arrow form."""
        units = []
        while self._peek()[1].lower() in (*_DAY_TIME_UNITS, "to", "year", "month"):
            units.append(self._next("a unit")[1].lower())
        if units and all(unit in (*_DAY_TIME_UNITS, "to") for unit in units):
            return AtomicTypeInformation("interval day to second")
        name = " ".join(["interval", *units])
        raise self._error(f"type {name!r} has no form that Spark and Python share; use a day-time interval or numbers")

    def array(self) -> TypeInformation:
        self._expect("<")
        element = self.type()
        self._expect(">")
        return ListTypeInformation(element)

    def map(self) -> TypeInformation:
        self._expect("<")
        key = self.type()
        self._expect(",")
        value = self.type()
        self._expect(">")
        return MapTypeInformation(key, value)

    def struct(self) -> TypeInformation:
        self._expect("<")
        result = self.fields(until=">")
        self._expect(">")
        return result

    def changelog(self) -> TypeInformation:
        """Rows of changes; a type for streams, which Spark does not have."""
        self._expect("<")
        rows = self.fields(until=">")
        self._expect(">")
        return ChangelogTypeInformation(rows.names, rows.types)

    def fields(self, until: str | None) -> RowTypeInformation:
        names: list[str] = []
        types: list[TypeInformation] = []
        while self._at < len(self._tokens) and self._peek()[1] != until:
            if names:
                self._expect(",")
            kind, name = self._next("a field's name")
            if kind not in ("word", "quoted"):
                raise self._error(f"a field's name is expected, not {name!r}")
            names.append(name[1:-1].replace("``", "`") if kind == "quoted" else name)
            self._take(":")
            types.append(self.type())
            if self._take("not"):
                self._expect("null")
            if self._take("comment"):
                self._next("a comment")
        if until is None and not names:
            raise self._error("there are no columns")
        return RowTypeInformation(names, types)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._take("("):
            while not numbers or self._take(","):
                word = self._next("a number")[1]
                if not word.isdecimal() or len(word) > _MAX_DIGITS:
                    raise self._error(f"a number is expected, not {word!r:.80}")
                numbers.append(int(word))
            self._expect(")")
        return numbers

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self, what: str) -> tuple[str, str]:
        token = self._peek()
        if not token[0]:
            raise self._error(f"{what} is missing at the end")
        self._at += 1
        return token

    def _take(self, word: str) -> bool:
        if self._peek()[1].lower() == word and self._peek()[0] != "quoted":
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._error(f"{word!r} is expected, not {self._peek()[1]!r}")

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"In the type {self._text!r}: {problem}.")


_SPECIAL: Final[dict[str, Callable[[_Parser], TypeInformation]]] = {
    "string": _Parser.string,
    "char": _Parser.character,
    "character": _Parser.character,
    "varchar": _Parser.varying,
    "decimal": _Parser.decimal,
    "dec": _Parser.decimal,
    "numeric": _Parser.decimal,
    "time": _Parser.time,
    "interval": _Parser.interval,
    "array": _Parser.array,
    "map": _Parser.map,
    "struct": _Parser.struct,
    "changelog": _Parser.changelog,
}


_CLASSES: Final[dict[Any, TypeInformation]] = {
    str: Types.STRING(),
    bool: Types.BOOLEAN(),
    int: Types.LONG(),
    float: Types.DOUBLE(),
    bytes: Types.BINARY(),
    Decimal: Types.BIG_DEC(),
    date: Types.SQL_DATE(),
    datetime: Types.INSTANT(),
    time: Types.SQL_TIME(),
    timedelta: Types.DURATION(),
}


def to_type(described: Any) -> TypeInformation:
    """Return the type that is described by almost anything.

    Accepted are a TypeInformation, a TypeSerializer, DDL of a type or of columns, an Arrow type or schema, a data type
    or schema of PySpark, a Python class such as `int`, ``list[str]`` or a dataclass (a class without information about
    its content, such as `dict` or another user class, means pickled values), and None, which means pickled values.

    Raises:
        ConfigurationError: It is none of these, or a type without an Arrow form.
    """
    if described is None:
        return PickledTypeInformation()
    if isinstance(described, TypeInformation):
        return described
    if isinstance(described, ValueSerializer):
        return described.type_information
    if isinstance(described, TypeSerializer):
        return SerializerTypeInformation(described)
    if isinstance(described, str):
        return _from_ddl(described)
    if isinstance(described, pa.Schema):
        return RowTypeInformation(described.names, [_from_field(field) for field in described])
    if isinstance(described, pa.DataType):
        return _from_arrow(described)
    if isinstance(described, type) or typing.get_origin(described) is not None:
        return _from_class(described)
    describe = getattr(described, "jsonValue", None)
    if callable(describe):
        return _from_spark(describe())
    raise ConfigurationError(
        f"{described!r} does not describe a type. Use Types.*, DDL such as 'array<bigint>', or a Python class."
    )


def to_row_type(described: Any, names: Iterable[str] | None = None) -> RowTypeInformation:
    """Return the row type that is described by almost anything; see `to_type`.

    Args:
        described: The type; a tuple becomes a row as well.
        names: New names for the fields.

    Raises:
        ConfigurationError: It is not a row or tuple, or the number of names differs.
    """
    found = to_type(described)
    if not isinstance(found, (RowTypeInformation, TupleTypeInformation)):
        raise ConfigurationError(
            f"A row type is needed here, not {found}. Use Types.ROW_NAMED or 'a string, b bigint'."
        )
    if names is None and isinstance(found, RowTypeInformation):
        return found
    return RowTypeInformation(found.names if names is None else names, found.types)


def _from_ddl(text: str) -> TypeInformation:
    try:
        return parse_type(text)
    except ConfigurationError as error:
        try:
            return parse_schema(text)
        except ConfigurationError:
            raise error from None


def _from_class(described: Any) -> TypeInformation:
    known = _CLASSES.get(described)
    if known is not None:
        return known
    if isinstance(described, type) and dataclasses.is_dataclass(described):
        return dataclass_type(described, to_type)
    origin, arguments = typing.get_origin(described), typing.get_args(described)
    if origin is list and len(arguments) == 1:
        return ListTypeInformation(to_type(arguments[0]))
    if origin is dict and len(arguments) == 2:
        return MapTypeInformation(to_type(arguments[0]), to_type(arguments[1]))
    if origin is tuple and Ellipsis not in arguments:
        return TupleTypeInformation(map(to_type, arguments))
    if origin in (typing.Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        # None belongs to every type.
        return to_type(rest[0]) if len(rest) == 1 else PickledTypeInformation()
    return PickledTypeInformation()


def _from_field(field: pa.Field) -> TypeInformation:
    try:
        return _from_arrow(field.type)
    except ConfigurationError as error:
        raise ConfigurationError(f"Column {field.name!r}: {error}") from None


def _from_arrow(kind: pa.DataType) -> TypeInformation:
    if pa.types.is_dictionary(kind):
        return _from_arrow(kind.value_type)
    if pa.types.is_timestamp(kind):
        return Types.INSTANT() if kind.tz is not None else Types.TIMESTAMP_NTZ()
    if pa.types.is_decimal(kind):
        if kind.precision > 38:
            raise ConfigurationError(f"{kind} has more than 38 digits. Cast the column first.")
        return DecimalTypeInformation(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return MapTypeInformation(_from_arrow(kind.key_type), _from_arrow(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ListTypeInformation(_from_arrow(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return RowTypeInformation([field.name for field in fields], [_from_field(field) for field in fields])
    for test, found in _ARROW:
        if test(kind):
            return found
    raise ConfigurationError(f"The Arrow type {str(kind)!r} has no counterpart here. Cast the column first.")


_ARROW: Final = (
    (pa.types.is_boolean, Types.BOOLEAN()),
    (pa.types.is_int8, Types.BYTE()),
    (pa.types.is_int16, Types.SHORT()),
    (pa.types.is_int32, Types.INT()),
    (pa.types.is_int64, Types.LONG()),
    (pa.types.is_float32, Types.FLOAT()),
    (pa.types.is_float64, Types.DOUBLE()),
    (pa.types.is_string, Types.STRING()),
    (pa.types.is_large_string, Types.STRING()),
    (pa.types.is_binary, Types.BINARY()),
    (pa.types.is_large_binary, Types.BINARY()),
    (pa.types.is_date32, Types.SQL_DATE()),
    (pa.types.is_time, Types.SQL_TIME()),
    (pa.types.is_duration, Types.DURATION()),
)


def _from_spark(document: Any, metadata: Mapping[str, Any] | None = None, path: str = "") -> TypeInformation:
    """Read the JSON form of PySpark's types; collations and CHAR are in the metadata of the field."""
    metadata = metadata or {}
    if isinstance(document, str):
        return _simple_from_spark(document, metadata, path)
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{document!r} is not the JSON form of a type of Spark.")
    kind = document.get("type")
    if kind == "array":
        return ListTypeInformation(_from_spark(document["elementType"], metadata, f"{path}.element"))
    if kind == "map":
        return MapTypeInformation(
            _from_spark(document["keyType"], metadata, f"{path}.key"),
            _from_spark(document["valueType"], metadata, f"{path}.value"),
        )
    if kind == "struct":
        fields = document["fields"]
        found = [_from_spark(field["type"], field.get("metadata"), field["name"]) for field in fields]
        return RowTypeInformation([field["name"] for field in fields], found)
    if kind == "udt" and "sqlType" in document:
        return _from_spark(document["sqlType"])
    raise ConfigurationError(f"The type {document!r} of Spark has no counterpart here. Cast the column first.")


def _simple_from_spark(name: str, metadata: Mapping[str, Any], path: str) -> TypeInformation:
    if name == "string":
        collation = str(metadata.get("__COLLATIONS", {}).get(path, "")).rpartition(".")[2]
        if collation and collation != BINARY_COLLATION:
            return CollatedStringTypeInformation(collation)
        declared = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
        if declared.startswith("char("):
            return CharTypeInformation(int(declared[5:-1]))
    return parse_type(name)
