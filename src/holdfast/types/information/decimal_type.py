"""Decimal numbers."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.information.abstract_type import Compatibility, TypeInformation, register_type
from holdfast.types.information.atom import read_objects
from holdfast.types.information.atomic_type import AtomicTypeInformation
from holdfast.types.serializer import TypeSerializerSchemaCompatibility

MAX_DECIMAL_PRECISION: Final = 38
_MORE: Final = (
    "Declare DECIMAL(precision, scale) with more of the 38 digits there, or PICKLED_BYTE_ARRAY for any number of digits"
)
_WIDE: Final = decimal.Context(prec=200)
_INTEGER_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def scaled(unscaled: int, scale: int) -> Decimal:
    """Return a number with all of its digits; what Python computes with decimals is rounded to 28 of them."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


class DecimalTypeInformation(TypeInformation):
    """Decimal numbers of a fixed precision and scale; `as_int` ones are Python integers."""

    is_immutable = True
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, precision: int = MAX_DECIMAL_PRECISION, scale: int = 18, *, as_int: bool = False) -> None:
        if not (1 <= precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision):
            raise ConfigurationError(
                f"DECIMAL has a precision from 1 to {MAX_DECIMAL_PRECISION} and a scale from 0 to the precision, not "
                f"{precision!r} and {scale!r}."
            )
        self.precision = precision
        self.scale = scale
        self.as_int = as_int
        self.ddl = f"decimal({precision},{scale})"
        self.arrow_type = pa.decimal128(precision, scale)
        self._unit = Decimal((0, (1,), -scale))

    def to_json(self) -> Any:
        """Return precision and scale."""
        document = {"type": "decimal", "precision": self.precision, "scale": self.scale}
        return document | {"as_int": True} if self.as_int else document

    def adopt(self, value: Any) -> Any:
        """Check one number and give it the scale of the type."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise self.mismatch(value, "a Decimal or a whole number is needed")
        if self.as_int and not isinstance(value, int):
            raise self.mismatch(value, "a whole number is needed")
        try:
            result = Decimal(value).quantize(self._unit, context=_WIDE)
        except decimal.InvalidOperation:
            raise self.mismatch(value, "it is not finite, or too large") from None
        if result != value:
            raise self.mismatch(value, f"it has more than {self.scale} digits behind the point. {_MORE}")
        if result.adjusted() >= self.precision - self.scale and result:
            raise self.mismatch(
                value, f"it has more than {self.precision - self.scale} digits before the point. {_MORE}"
            )
        return int(result) if self.as_int else result

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column."""
        if not {int if self.as_int else Decimal, type(None)}.issuperset(map(type, values)):
            values = [self.adopt(value) for value in values]
        return pa.array(values, self.arrow_type)

    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array to Python."""
        values = read_objects(array)
        return [value if value is None else int(value) for value in values] if self.as_int else values

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        digits = -1
        if isinstance(old, DecimalTypeInformation) and old.scale <= self.scale and old.as_int == self.as_int:
            digits = old.precision - old.scale
        elif isinstance(old, AtomicTypeInformation):
            digits = _INTEGER_DIGITS.get(old.name, -1)
        if 0 <= digits <= self.precision - self.scale:
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        return super()._resolve_other(old)

    def __reduce__(self) -> tuple[Any, ...]:
        return _decimal, (self.precision, self.scale, self.as_int)


def _decimal(precision: int, scale: int, as_int: bool) -> DecimalTypeInformation:
    return DecimalTypeInformation(precision, scale, as_int=as_int)


register_type(
    "decimal",
    lambda document: _decimal(document["precision"], document["scale"], document.get("as_int", False)),
)
