"""Elements as text, as Flink and PyFlink print them: values as in Java, rows with their kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np

from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.row import Row
from holdfast.types.serialization import JsonNumber
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

Text = Callable[[Any], str]

_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
"""Java formats floating-point numbers between these without an exponent."""


def flink_formatter(kind: TypeInformation) -> Text:
    """Return a function that formats an element: ``(kelp,1)``, ``+I[kelp, 1]``, ``[1, 2]``, ``{a=1}``, ``true``.

    Values without a declared type, and of types that Flink does not have, are formatted by `str`.
    """
    show = _text_of(kind)
    if show is str and isinstance(kind, OpaqueTypeInformation):
        return str
    return lambda value: "null" if value is None else show(value)


def pyflink_print_formatter(kind: TypeInformation) -> Text:
    """Return a function that formats an element as PyFlink prints it: fields of rows by Python, ``+I[kelp,None]``."""
    if isinstance(kind, RowTypeInformation):
        return lambda row: f"{row.get_row_kind()}[{','.join(map(str, row))}]"
    return flink_formatter(kind)


def _text_of(kind: TypeInformation) -> Text:
    if isinstance(kind, TupleTypeInformation):
        parts = [flink_formatter(part) for part in kind.get_field_types()]
        return lambda value: f"({','.join(show(part) for show, part in zip(parts, value, strict=True))})"
    if isinstance(kind, RowTypeInformation):
        return _row_text([flink_formatter(part) for part in kind.get_field_types()])
    if isinstance(kind, ListTypeInformation):
        item = flink_formatter(kind.element_type)
        return lambda value: f"[{', '.join(map(item, value))}]"
    if isinstance(kind, MapTypeInformation):
        key, entry = flink_formatter(kind.key_type), flink_formatter(kind.value_type)
        return lambda value: f"{{{', '.join(f'{key(k)}={entry(v)}' for k, v in value.items())}}}"
    return _TEXTS.get(kind, str)


def _row_text(parts: list[Text]) -> Text:
    # Types of changelogs have one part more, for the kind.
    def show(value: Any) -> str:
        kind = value.get_row_kind() if isinstance(value, Row) else "+I"
        return f"{kind}[{', '.join(part(field) for part, field in zip(parts, value, strict=False))}]"

    return show


def _double(value: float) -> str:
    return _floating(value, repr(value))


def _float(value: float) -> str:
    return _floating(value, str(np.float32(value)))


def _floating(value: float, shortest: str) -> str:
    """Return the text of a number whose shortest decimal form is given."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).rstrip("0") or "0"
    magnitude = len(digits) + exponent - 1
    before = "-" if sign else ""
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        plain = f"{Decimal(shortest):f}"
        return plain if "." in plain else f"{plain}.0"
    return f"{before}{significant[0]}.{significant[1:] or '0'}E{magnitude}"


def _timestamp(value: datetime) -> str:
    """Return the text of an instant; one without a time zone is an `SQL_TIMESTAMP`, otherwise the same type."""
    microsecond = value.microsecond
    if value.tzinfo is None:
        return f"{value:%Y-%m-%d %H:%M:%S}.{f'{microsecond:06}'.rstrip('0') or '0'}"
    fraction = "" if not microsecond else f".{microsecond:06}" if microsecond % 1000 else f".{microsecond // 1000:03}"
    return f"{value:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _bytes(value: bytes) -> str:
    return f"[{', '.join(str(byte - 256 if byte > 127 else byte) for byte in value)}]"


def json_number_formatter(kind: TypeInformation) -> Callable[[Any], Any] | None:
    """Return a function that replaces floating-point numbers by the JSON numbers that Flink writes.

    The function turns rows into dicts of their fields; rows of changes are dicts with their kind already.

    Returns:
        None if the type has no floating-point numbers.
    """
    if kind in (Types.FLOAT(), Types.DOUBLE()):
        show = _TEXTS[kind]
        return lambda value: None if value is None else JsonNumber(show(value))
    if isinstance(kind, ListTypeInformation):
        item = json_number_formatter(kind.element_type)
        return None if item is None else lambda value: None if value is None else list(map(item, value))
    if isinstance(kind, MapTypeInformation):
        key, entry = json_number_formatter(kind.key_type) or _same, json_number_formatter(kind.value_type) or _same
        if key is entry:
            return None
        return lambda value: None if value is None else {key(k): entry(v) for k, v in value.items()}
    if isinstance(kind, RowTypeInformation):
        parts = [json_number_formatter(part) for part in kind.types]
        return _in_fields([part or _same for part in parts]) if any(parts) else None
    return None


def _in_fields(parts: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def replace(value: Any) -> Any:
        if not (isinstance(value, dict) or hasattr(value, "as_dict")):
            return None if value is None else [part(field) for part, field in zip(parts, value, strict=True)]
        fields = value if isinstance(value, dict) else value.as_dict()
        return {name: part(field) for (name, field), part in zip(fields.items(), parts, strict=True)}

    return replace


def _same(value: Any) -> Any:
    return value


_TEXTS: Final[dict[TypeInformation, Text]] = {
    Types.BOOLEAN(): lambda value: "true" if value else "false",
    Types.FLOAT(): _float,
    Types.DOUBLE(): _double,
    Types.INSTANT(): _timestamp,
    Types.BINARY(): _bytes,
}
