"""JSON schemas as row types, and values of a declared type from JSON.

The JSON is in the form of `Encoder.json_encoder()` and most other writers.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.csv_value import truth_of_text
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
    TypeInformation,
)
from holdfast.types.types import Types

_UNIONS: Final = ("allOf", "anyOf", "not", "extends", "disallow")
_FORMATS: Final = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}
_MAX_DEPTH: Final = 100
_MAX_PARTS: Final = 20_000
Reader = Callable[[Any], Any]
_DIGITS: Final = 38
"""Digits of the largest decimal of Arrow and Spark."""
_OF_NUMBERS: Final = frozenset("0123456789+-.e")
_TEXTS: Final = (CharTypeInformation, SqlTimestampTypeInformation)


def row_type_of_json_schema(schema: str) -> RowTypeInformation:
    """Return the row type of a JSON schema, as PyFlink does.

    Objects are rows and arrays are lists. Numbers, also whole ones, are decimals, as in Flink. References within the
    schema are followed. A union may only be one type and null.

    Raises:
        ConfigurationError: The text is not JSON, not the schema of an object, or has no such type.
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
        if not isinstance(node, dict) or place.count("/") > _MAX_DEPTH:
            raise ConfigurationError(f"json_schema(): {place:.200} is not a schema, or is nested too deeply.")
        self._parts += 1  # a few nested references may stand for any number of parts
        if self._parts > _MAX_PARTS:
            raise ConfigurationError(f"json_schema(): it has more than {_MAX_PARTS} parts, references included.")
        if any(union in node for union in _UNIONS):
            raise ConfigurationError(f"json_schema(): {place} is a union or an extension, which has no type.")
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
            raise ConfigurationError(f"json_schema(): {place} refers to {reference!r}, which does not exist.") from None
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
        raise ConfigurationError(f"json_schema(): {place} has type {kind!r}; a list needs one schema as 'items'.")


def _text(place: str, node: Any) -> TypeInformation:
    if "format" in node:
        return _FORMATS.get(node["format"], Types.STRING)()
    encoding = node.get("contentEncoding")
    if encoding not in (None, "base64"):
        raise ConfigurationError(f"json_schema(): {place} has the encoding {encoding!r}, not 'base64'.")
    return Types.STRING() if encoding is None else Types.PRIMITIVE_ARRAY(Types.BYTE())


_FIRST_DAY: Final = date(1970, 1, 1)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


_decoder: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)
"""One decoder for all messages; `json.loads` creates one per call."""
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _decoder.scan_once  # type: ignore[attr-defined]


def parse_json(message: bytes) -> Any:
    """Parse JSON in UTF-8; numbers with a fraction become `Decimal`, so that no digit is lost.

    Raises:
        ValueError: The message is not JSON, has NaN or an infinity, or is nested too deeply.
    """
    try:
        is_plain = message[:1] == b"{" and message[1:2] != b"\0"
        text = message.decode("utf-8" if is_plain else json.detect_encoding(message), "surrogatepass")
        try:
            value, end = _scan(text, 0) if is_plain else (None, -1)
        except StopIteration:
            end = -1
        # Else there is whitespace around the value, or an error.
        return value if end == len(text) else _decoder.decode(text)
    except json.JSONDecodeError as error:  # its text has a line, which is none of the file
        raise ValueError(f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ArithmeticError:
        raise ValueError("it has a number whose exponent is too large for a decimal") from None


def json_reader(
    described: TypeInformation, *, needs_all: bool = False, is_lenient: bool = False, ignores_errors: bool = False
) -> Reader:
    """Return a function that converts a result of `parse_json` to a value of the type.

    The function does not check what `TypeInformation.adopt` checks, so call that on its result. It raises ValueError or
    TypeError for JSON that it cannot convert.

    Args:
        described: Type of the values. Dates and times are ISO 8601, binaries base64, decimals numbers or text.
        needs_all: Whether a row that lacks a field is an error; otherwise the field is null.
        is_lenient: Whether text is accepted for numbers and booleans, anything for text, and UTC times for types
            without a time zone, as in Flink.
        ignores_errors: Whether a part that cannot be converted becomes null.

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
            raise ConfigurationError(f"Names in JSON objects are texts, so JSON has no form for {described}.")
        return _map_reader(part(described.value_type))
    if isinstance(described, DecimalTypeInformation):
        return _nullable(_whole if described.as_int else _decimal)
    name = described.ddl if isinstance(described, (AtomicTypeInformation, *_TEXTS)) else ""
    known = atoms.get("string" if name.startswith("char") else name)
    if known is None:
        raise ConfigurationError(f"JSON has no form for {described}: declare its fields, or text.")
    return _nullable(known)


def column_reader(described: TypeInformation) -> Callable[[list[Any]], pa.Array]:
    """Return a function that converts results of `parse_json` to a column, each as `json_reader` with `is_lenient`.

    The function raises ValueError, TypeError, OverflowError or OutputTypeError for values that it cannot convert.

    Raises:
        ConfigurationError: JSON has no form for the type.
    """
    read, is_atom = json_reader(described, is_lenient=True), isinstance(described, AtomicTypeInformation)
    as_they_are = _AS_THEY_ARE.get(described.ddl, frozenset()) if is_atom else frozenset()

    def to_column(values: list[Any]) -> pa.Array:
        return described.to_array(values if as_they_are.issuperset(map(type, values)) else list(map(read, values)))

    return to_column


_AS_THEY_ARE: Final[dict[str, frozenset[type]]] = {
    "string": frozenset((str, NoneType)),
    "boolean": frozenset((bool, NoneType)),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), frozenset((int, NoneType))),
}
"""Classes of values that need no conversion."""


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
        raise ValueError(f"{value!r} is not a decimal number") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return int(_digits(value))
    if not isinstance(value, Decimal):
        return value
    if value.adjusted() > _DIGITS:
        raise ValueError(f"{value} has too many digits")  # int() would expand them
    if value != (number := int(value)):
        raise ValueError(f"{value} is not a whole number")
    return number


def _day(value: Any) -> date:
    """Read ISO 8601, or the number of days since 1970, as Debezium and Kafka Connect write it."""
    if type(value) is not int:
        return date.fromisoformat(value)
    try:
        return _FIRST_DAY + timedelta(days=value)
    except OverflowError:
        raise ValueError(f"day {value} is out of range") from None


def _instant(value: Any) -> datetime:
    return datetime.fromisoformat(value)


def as_bytes(value: Any) -> bytes:
    """Decode base64.

    Raises:
        ValueError: The text is not base64.
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
        return _json_text(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json_text(value: Any) -> str:
    """Return a result of `parse_json` as JSON without spaces, with all digits of numbers."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json_text(name)}:{_json_text(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def _truth_of(value: Any) -> bool:
    return truth_of_text(str(value))


def _whole_of(value: Any) -> Any:
    return int(_digits(value)) if isinstance(value, str) else value


def _float_of(value: Any) -> Any:
    return _float(_decimal(value))


def _without_utc(value: Any) -> Any:
    return value if value.utcoffset() else value.replace(tzinfo=None)


def _digits(text: str) -> str:
    if not set(text.strip().lower()) <= _OF_NUMBERS:  # Python accepts more, such as 1_000
        raise ValueError(f"{text!r} is not a number")
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
                raise ValueError(f"field {missing[0]!r} is missing")
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
