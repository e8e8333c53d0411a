"""The type of rows that a JSON schema describes, as PyFlink takes it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.atomic import (
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
)
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

_UNIONS: Final = ("allOf", "anyOf", "not", "extends", "disallow")
_FORMATS: Final = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}
_DEEPEST: Final = 100
_MOST_PARTS: Final = 20_000


def row_type_of_json_schema(schema: str) -> RowTypeInformation:
    """Return the type of what a JSON schema describes.

    Objects are rows and arrays lists. Numbers, whole ones too, are decimals, as in Flink. References within the schema
    are followed; a union may only be one of a type and null.

    Raises:
        ConfigurationError: It is no JSON, no schema of an object, or has no such type.
    """
    try:
        root = json.loads(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"json_schema() takes a JSON schema as a text: {error}") from None
    found = _Schema(root).type_of("<root>", root)
    if not isinstance(found, RowTypeInformation) or not found.names:
        raise ConfigurationError(f"json_schema() takes the schema of an object with properties, not of {found}.")
    return found


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0

    def type_of(self, place: str, node: Any) -> TypeInformation:
        """The type of a node."""
        if not isinstance(node, dict) or place.count("/") > _DEEPEST:
            raise ConfigurationError(f"json_schema(): {place:.200} is no schema, or one without end.")
        self._parts += 1  # few references, each to two others, may stand for any number
        if self._parts > _MOST_PARTS:
            raise ConfigurationError(f"json_schema(): it has more than {_MOST_PARTS} parts, with what it refers to.")
        if any(union in node for union in _UNIONS):
            raise ConfigurationError(f"json_schema(): {place} is a union or an extension, of which there is no type.")
        if "$ref" in node and "type" not in node:
            return self.type_of(f"{place}/$ref", self._referred(place, str(node["$ref"])))
        declared = node.get("type", [])
        kinds = [declared] if isinstance(declared, str) else list(declared)
        types = [self._of_kind(place, kind, node) for kind in kinds if kind != "null"]
        types += [self.type_of(f"{place}/oneOf", one) for one in node.get("oneOf", ()) if one != {"type": "null"}]
        if not types or any(one != types[0] for one in types):
            raise ConfigurationError(f"json_schema(): {place} needs one type, which may be in a union with null.")
        return types[0]

    def _referred(self, place: str, reference: str) -> Any:
        found = self._root
        try:
            for step in reference.removeprefix("#").split("/")[1:]:
                found = found[step]
        except (KeyError, TypeError):
            raise ConfigurationError(f"json_schema(): {place} refers to {reference!r}, which is not in it.") from None
        return found

    def _of_kind(self, place: str, kind: str, node: Any) -> TypeInformation:
        if kind == "string":
            return _text(place, node)
        if kind in ("number", "integer"):
            return Types.BIG_DEC()
        if kind == "boolean":
            return Types.BOOLEAN()
        if kind == "object":
            fields = node.get("properties", {})
            return Types.ROW_NAMED(list(fields), [self.type_of(f"{place}/{name}", fields[name]) for name in fields])
        if kind == "array" and isinstance(node.get("items"), dict):
            return Types.OBJECT_ARRAY(self.type_of(f"{place}/items", node["items"]))
        raise ConfigurationError(f"json_schema(): {place} is of type {kind!r}, and of a list 'items' is one schema.")


def _text(place: str, node: Any) -> TypeInformation:
    if "format" in node:
        return _FORMATS.get(node["format"], Types.STRING)()
    encoding = node.get("contentEncoding")
    if encoding not in (None, "base64"):
        raise ConfigurationError(f"json_schema(): {place} has the encoding {encoding!r}, not 'base64'.")
    return Types.STRING() if encoding is None else Types.PRIMITIVE_ARRAY(Types.BYTE())


# Values of a declared type from JSON, as `Encoder.json_encoder()` and most other writers put them there.

Reader = Callable[[Any], Any]
_FIRST_DAY: Final = date(1970, 1, 1)
_DIGITS: Final = 38
"""Of the largest decimal that Arrow and Spark know."""
_OF_NUMBERS: Final = frozenset("0123456789+-.e")
_TEXTS: Final = (CharTypeInformation, SqlTimestampTypeInformation)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_decode: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse).decode
"""What `json.loads` makes anew for each message."""


def parse_json(message: bytes) -> Any:
    """Parses JSON in UTF-8; numbers with a fraction become `Decimal`, so that no digit is lost.

    Raises:
        ValueError: It is no JSON, or JSON that no program should have written (NaN, nesting without end).
    """
    try:
        is_plain = message[:1] == b"{" and message[1:2] != b"\0"
        return _decode(message.decode("utf-8" if is_plain else json.detect_encoding(message), "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ArithmeticError:
        raise ValueError("the exponent of a number in it is none of a decimal") from None


def json_reader(
    described: TypeInformation, *, needs_all: bool = False, is_lenient: bool = False, ignores_errors: bool = False
) -> Reader:
    """Returns a function that makes a value of the type from what `parse_json` has returned.

    The function checks nothing that `TypeInformation.adopt` checks, so call that on what it returns; it raises
    ValueError or TypeError for what it cannot read.

    Args:
        described: Type of the values. Dates and times are ISO 8601, binaries base64, decimals numbers or text.
        needs_all: Whether a row without one of the fields is refused; otherwise the field is null.
        is_lenient: Whether, as in Flink, a text is read for a number or a boolean, anything for a text, and times
            without a time zone that are said to be in UTC.
        ignores_errors: Whether what cannot be read is null, and what it is a part of stays.

    Raises:
        ConfigurationError: JSON has no form for the type.
    """
    part = partial(json_reader, needs_all=needs_all, is_lenient=is_lenient, ignores_errors=ignores_errors)
    read = _reader(described, part, needs_all, _LENIENT if is_lenient else _ATOMS)
    return _or_null(read, described) if ignores_errors else read


def _reader(
    described: TypeInformation, part: Callable[[TypeInformation], Reader], needs_all: bool, atoms: Mapping[str, Reader]
) -> Reader:
    if isinstance(described, RowTypeInformation):
        return _row_reader(described, part, needs_all)
    if isinstance(described, ListTypeInformation):
        return _list_reader(part(described.element_type))
    if isinstance(described, MapTypeInformation):
        if described.key_type.ddl != "string":
            raise ConfigurationError(f"JSON has objects whose names are texts, so it has no form for {described}.")
        return _map_reader(part(described.value_type))
    if isinstance(described, DecimalTypeInformation):
        return _nullable(_whole if described.as_int else _decimal)
    name = described.ddl if isinstance(described, (AtomicTypeInformation, *_TEXTS)) else ""
    known = atoms.get("string" if name.startswith("char") else name)
    if known is None:
        raise ConfigurationError(f"JSON has no form for {described}: declare its fields, or text.")
    return _nullable(known)


def _or_null(read: Reader, described: TypeInformation) -> Reader:
    def read_if_possible(value: Any) -> Any:
        try:
            return described.adopt(read(value))
        except (TypeError, ValueError, OutputTypeError):
            return None

    return read_if_possible


def _nullable(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _same(value: Any) -> Any:
    return value


def _float(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    result = float(value)
    if math.isinf(result):
        raise ValueError(f"{value} is too large for a double")
    return result


def _decimal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return Decimal(_digits(value))
    except ArithmeticError:
        raise ValueError(f"{value!r} is no decimal number") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return int(_digits(value))
    if not isinstance(value, Decimal):
        return value
    if value.adjusted() > _DIGITS:
        raise ValueError(f"{value} has too many digits")  # which nobody should write out
    if value != (number := int(value)):
        raise ValueError(f"{value} is no whole number")
    return number


def _day(value: Any) -> date:
    """ISO 8601, or as Debezium and Kafka Connect write it: the number of days since 1970."""
    if type(value) is not int:
        return date.fromisoformat(value)
    try:
        return _FIRST_DAY + timedelta(days=value)
    except OverflowError:
        raise ValueError(f"day {value} is none of a calendar") from None


def _instant(value: Any) -> datetime:
    return datetime.fromisoformat(value)


def as_bytes(value: Any) -> bytes:
    """What base64 stands for.

    Raises:
        ValueError: It is none.
    """
    return base64.b64decode(value, validate=True)


_ATOMS: Final[dict[str, Reader]] = {
    **dict.fromkeys(("string", "boolean", "tinyint", "smallint", "int", "bigint"), _same),
    "float": _float,
    "double": _float,
    "binary": as_bytes,
    "date": _day,
    "time": time.fromisoformat,
    "timestamp": _instant,
    "timestamp_ntz": _instant,
}


def _text_of(value: Any) -> str:
    if not isinstance(value, (bool, dict, list)):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _truth_of(value: Any) -> bool:
    return str(value).strip().lower() == "true"


def _whole_of(value: Any) -> Any:
    return int(_digits(value)) if isinstance(value, str) else value


def _float_of(value: Any) -> Any:
    return _float(_decimal(value))


def _without_utc(value: Any) -> Any:
    return value if value.utcoffset() else value.replace(tzinfo=None)


def _digits(text: str) -> str:
    if not set(text.strip().lower()) <= _OF_NUMBERS:  # Python reads more than these
        raise ValueError(f"{text!r} is no number")
    return text


_LENIENT: Final[dict[str, Reader]] = {
    **_ATOMS,
    "string": _text_of,
    "boolean": _truth_of,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _whole_of),
    **dict.fromkeys(("float", "double"), _float_of),
    "time": lambda value: _without_utc(time.fromisoformat(value)),
    "timestamp_ntz": lambda value: _without_utc(_instant(value)),
}


def _row_reader(described: RowTypeInformation, of_part: Callable[[TypeInformation], Reader], needs_all: bool) -> Reader:
    fields = [(name, of_part(part)) for name, part in zip(described.names, described.types, strict=True)]

    def read(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict:
            raise ValueError(f"an object with {list(described.names)!r} is needed, not {type(value).__name__}")
        if needs_all:
            missing = [name for name in described.names if name not in value]
            if missing:
                raise ValueError(f"there is no field {missing[0]!r}")
        values = []
        for name, part in fields:
            try:
                values.append(part(value.get(name)))
            except (TypeError, ValueError) as error:
                raise ValueError(f"field {name!r}: {error}") from None
        return described.row_type.make(values)

    return read


def _list_reader(part: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError(f"an array is needed, not {type(value).__name__}")
        return list(map(part, value))

    return _nullable(read)


def _map_reader(part: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"an object is needed, not {type(value).__name__}")
        return {name: part(item) for name, item in value.items()}

    return _nullable(read)
