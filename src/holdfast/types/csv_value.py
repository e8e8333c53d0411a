"""Values of simple types from and to the fields of CSV."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.types.atomic import (
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
)
from holdfast.types.type_information import TypeInformation


def csv_value_reader(described: TypeInformation) -> Callable[[str], Any]:
    """Return a function that converts a text to a value of a simple type; it raises ValueError if it cannot.

    Args:
        described: Type of the values. Dates and times are ISO 8601, binaries base64; surrounding spaces are ignored.

    Raises:
        ConfigurationError: The type is not simple.
    """
    if isinstance(described, DecimalTypeInformation):
        return _of_number(int if described.as_int else _decimal)
    name = described.ddl if isinstance(described, _SIMPLE) else ""
    known = _READERS.get("string" if name.startswith("char") else name)
    if known is None:
        raise ConfigurationError(
            f"CSV has no form for {described}. Declare the column as text, and parse it in a map()."
        )
    return known


def csv_text(value: Any) -> str:
    """Return the text of a value of a simple type that is not None."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _of_number(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_number(text: str) -> Any:
        if "_" in text or not text.isascii():  # Python accepts 1_000 and digits of other scripts
            raise ValueError(f"{text!r:.100} is not a number")
        return read(text)

    return read_number


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text.strip())
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a decimal number") from None


def _boolean(text: str) -> bool:
    return text.strip().lower() == "true"


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_SIMPLE: Final = (AtomicTypeInformation, CharTypeInformation, SqlTimestampTypeInformation)
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "boolean": _boolean,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _of_number(int)),
    **dict.fromkeys(("float", "double"), _of_number(float)),
    "binary": _bytes,
    "date": lambda text: date.fromisoformat(text.strip()),
    "time": lambda text: time.fromisoformat(text.strip()),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), lambda text: datetime.fromisoformat(text.strip())),
}
