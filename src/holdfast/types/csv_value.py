"""Values and columns of simple types from and to the fields of CSV."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError
from holdfast.types.type_information import (
    MAX_DECIMAL_PRECISION,
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
    TypeInformation,
)

_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?"
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}
_SIMPLE: Final = (AtomicTypeInformation, CharTypeInformation, SqlTimestampTypeInformation)


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


class CsvColumnReader:
    """Converts columns of texts to a simple type, each value as `csv_value_reader` does.

    Values in their usual form are converted all at once. An empty text is null, as `is_null_if_empty` says.

    Args:
        described: The type.

    Raises:
        ConfigurationError: The type is not simple.
    """

    def __init__(self, described: TypeInformation) -> None:
        self._described = described
        self._kind = described.arrow_type
        self._read = csv_value_reader(described)
        self._has_null = is_null_if_empty(described)
        is_padded = isinstance(described, CharTypeInformation)
        self._is_text = pa.types.is_string(self._kind) and not is_padded
        self._usual = None if is_padded else _usual_form(self._kind)

    def __call__(self, texts: pa.StringArray) -> pa.Array:
        """Convert a column.

        Raises:
            ValueError, OutputTypeError: A value is not of the type.
        """
        if self._is_text:
            return texts
        if self._usual is None:
            return self._read_values(texts)
        if pa.types.is_decimal(self._kind) and _are_short_decimals(texts, self._kind.scale):
            with contextlib.suppress(pa.ArrowInvalid):
                found = texts.cast(self._kind)
                found.validate(full=True)
                return found
        is_usual = pc.match_substring_regex(texts, self._usual)
        if pc.all(is_usual, min_count=0).as_py():
            return _cast(texts, self._kind)
        found = _cast(pc.if_else(is_usual, texts, None), self._kind)
        is_unusual = pc.invert(is_usual)
        return pc.replace_with_mask(found, is_unusual, self._read_values(texts.filter(is_unusual)))

    def _read_values(self, texts: pa.StringArray) -> pa.Array:
        adopt, read, has_null = self._described.adopt, self._read, self._has_null
        values = [None if not text and has_null else adopt(read(text)) for text in texts.to_pylist()]
        return self._described.to_array(values)

    def __reduce__(self) -> tuple[Any, ...]:
        return CsvColumnReader, (self._described,)


def _are_short_decimals(texts: pa.StringArray, scale: int) -> bool:
    """Return whether texts have no exponents, and so few digits that Arrow casts or refuses them.

    Arrow multiplies by ten for each digit of the scale, without checking whether 128 bits are enough.
    """
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > MAX_DECIMAL_PRECISION - scale:
        return False
    first, end = texts.offset, texts.offset + len(texts)
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[[first, end]].astype(np.int64)
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(bounds), texts.buffers()[2]])
    return not pc.match_substring_regex(whole, "[^-0-9.]")[0].as_py()


def is_null_if_empty(described: TypeInformation) -> bool:
    """Return whether an empty text is null, and not a value, of a simple type."""
    return not (pa.types.is_string(described.arrow_type) or pa.types.is_binary(described.arrow_type))


def _usual_form(kind: pa.DataType) -> str | None:
    """Return an expression for texts that Arrow casts exactly to a type; None if there are none."""
    if pa.types.is_decimal(kind):
        before = f"[0-9]{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
        return rf"^-?{before}(?:[.][0-9]{{1,{kind.scale}}})?$" if kind.scale else f"^-?{before}$"
    if pa.types.is_integer(kind):
        return f"^-?[0-9]{{1,{len(str(1 << (kind.bit_width - 1))) - 1}}}$"
    if pa.types.is_floating(kind):
        exponent = "[0-9]{1,2}" if kind.bit_width > 32 else "[0-9]"
        return rf"^-?[0-9]{{1,17}}(?:[.][0-9]{{1,30}})?(?:[eE][-+]?{exponent})?$"
    if pa.types.is_boolean(kind):
        return "^(?:true|false|1|0)$"
    if pa.types.is_time(kind):
        return f"^{_CLOCK}$"
    if pa.types.is_date(kind):
        return f"^{_DAY}$"
    return f"^{_DAY}[ T]{_CLOCK}$" if pa.types.is_timestamp(kind) else None


def _cast(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_time(kind):  # Arrow reads times only after a date
        return pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_floating(kind):
        return texts.cast(pa.float64()).cast(kind)
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)


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


def truth_of_text(text: str) -> bool:
    """Return the truth value that a text names: `true` or `false` in any case, `1` or `0`.

    Raises:
        ValueError: It names none.
    """
    found = _TRUTHS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r:.100} is not true or false")
    return found


def _float(text: str) -> float:
    found = float(text)
    if math.isinf(found) and any(character.isdigit() for character in text):
        raise ValueError(f"{text:.100} is too large for a double")
    return found


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "boolean": truth_of_text,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _of_number(int)),
    **dict.fromkeys(("float", "double"), _of_number(_float)),
    "binary": _bytes,
    "date": lambda text: date.fromisoformat(text.strip()),
    "time": lambda text: time.fromisoformat(text.strip()),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), lambda text: datetime.fromisoformat(text.strip())),
}
