"""Keys of one simple type: dict keys from Arrow columns and back, their bytes and their hash."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from holdfast.errors import ConfigurationError
from holdfast.types.information.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    SqlTimestampTypeInformation,
    TypeInformation,
)

SEED: Final = 42
# Spark hashes the unscaled value of decimals up to this precision as a long, of others as bytes.
MAX_LONG_PRECISION: Final = 18
_LONG: Final = struct.Struct("<q")
_INT: Final = struct.Struct("<i")
_ORDERED_LONG: Final = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_DECIMAL_BYTES: Final = 16
_DECIMAL_SIGN: Final = 1 << 127
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


class AtomKey(ABC):
    """How keys of one simple type are converted."""

    filler: Any = 0
    """An Arrow-compatible value to stand where a part of a composite key is null."""

    is_plain: bool = False
    """Whether Arrow finds just those values equal that are the same key."""

    def __init__(self, key_type: TypeInformation) -> None:
        self.key_type = key_type
        self.arrow_type = key_type.arrow_type

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array of the key's Arrow type without nulls to dict keys."""

    @abstractmethod
    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Convert dict keys to an array of the key's Arrow type."""

    def from_value(self, value: Any) -> Any:
        """Convert an adopted value of the type to a dict key."""
        return value

    def to_value(self, dict_key: Any) -> Any:
        """Convert a dict key to a value of the type."""
        return dict_key

    @abstractmethod
    def to_bytes(self, dict_key: Any) -> bytes:
        """Return bytes that are sorted as the dict keys are."""

    @abstractmethod
    def read_bytes(self, column: pa.Array) -> list[Any]:
        """Return the dict keys of a column of such bytes without nulls; ValueError if one has none."""

    @abstractmethod
    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash as an unsigned number of 64 bits."""


class _Text(AtomKey):
    filler = ""

    def __init__(self, key_type: TypeInformation) -> None:
        super().__init__(key_type)
        self.is_plain = not isinstance(key_type, CharTypeInformation)

    def read(self, array: pa.Array) -> list[Any]:
        if isinstance(self.key_type, CharTypeInformation):
            array = pc.utf8_rpad(array, self.key_type.length)
        result: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return result

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(dict_keys, self.arrow_type)

    def to_bytes(self, dict_key: Any) -> bytes:
        result: bytes = dict_key.encode()
        return result

    def read_bytes(self, column: pa.Array) -> list[Any]:
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        return xxh64_intdigest(dict_key.encode(), seed)


class _Binary(AtomKey):
    filler = b""
    is_plain = True

    def read(self, array: pa.Array) -> list[Any]:
        result: list[Any] = array.to_pylist()
        return result

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(dict_keys, self.arrow_type)

    def to_bytes(self, dict_key: Any) -> bytes:
        return bytes(dict_key)

    def read_bytes(self, column: pa.Array) -> list[Any]:
        return self.read(column)

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        return xxh64_intdigest(dict_key, seed)


class _Number(AtomKey):
    """Whatever Arrow keeps as a whole number: the dict key is that number."""

    is_plain = True

    # The Arrow type of the same width that is a whole number.
    whole: ClassVar[dict[int, pa.DataType]] = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}

    def __init__(self, key_type: TypeInformation) -> None:
        super().__init__(key_type)
        self.whole_type = self.whole[self.arrow_type.bit_width]
        self._layout = _LONG if self.arrow_type.bit_width == 64 else _INT
        self._bound = 1 << max(self.arrow_type.bit_width - 1, 1)

    def read(self, array: pa.Array) -> list[Any]:
        result: list[Any] = array.view(self.whole_type).to_numpy().tolist()
        return result

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(dict_keys, self.whole_type).view(self.arrow_type)

    def to_bytes(self, dict_key: Any) -> bytes:
        return _ORDERED_LONG.pack(dict_key + _SIGN)

    def read_bytes(self, column: pa.Array) -> list[Any]:
        if not pc.all(pc.equal(pc.binary_length(column), _ORDERED_LONG.size), min_count=0).as_py():
            raise ValueError("a number has 8 bytes")
        start = column.offset
        offsets = np.frombuffer(column.buffers()[1], np.int32)[start : start + len(column) + 1] if len(column) else [0]
        content = column.buffers()[2] if len(column) else b""
        words = np.frombuffer(content, ">u8", len(column), int(offsets[0])).astype(np.uint64)
        numbers = (words ^ np.uint64(_SIGN)).view(np.int64)
        if ((numbers < -self._bound) | (numbers > self._bound - 1)).any():
            raise ValueError(f"a number has more bits than a {self.key_type}")
        return numbers.tolist()  # type: ignore[no-any-return]

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        return xxh64_intdigest(self._layout.pack(dict_key), seed)


class _Boolean(_Number):
    filler = False
    is_plain = False
    whole: ClassVar[dict[int, pa.DataType]] = {1: pa.int8()}

    def read(self, array: pa.Array) -> list[Any]:
        result: list[Any] = array.cast(pa.int8()).to_numpy().tolist()
        return result

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(dict_keys, pa.int8()).cast(pa.bool_())

    def from_value(self, value: Any) -> Any:
        return int(value)

    def to_value(self, dict_key: Any) -> Any:
        return bool(dict_key)


class _Float(_Number):
    """The dict key is the number that has the same bits; there is one zero and one NaN."""

    filler = 0.0
    is_plain = False

    def __init__(self, key_type: TypeInformation) -> None:
        super().__init__(key_type)
        wide = self.arrow_type.bit_width == 64
        self._float_layout = struct.Struct("<d" if wide else "<f")
        self._float_dtype = np.dtype(np.float64 if wide else np.float32)
        self._whole_dtype = np.dtype(np.int64 if wide else np.int32)

    def read(self, array: pa.Array) -> list[Any]:
        numbers = array.to_numpy() + self._float_dtype.type(0)  # which makes -0.0 to 0.0
        numbers[np.isnan(numbers)] = np.nan
        result: list[Any] = numbers.view(self._whole_dtype).tolist()
        return result

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(np.array(dict_keys, self._whole_dtype).view(self._float_dtype), self.arrow_type)

    def from_value(self, value: Any) -> Any:
        return self.read(pa.array([value], self.arrow_type))[0]

    def to_value(self, dict_key: Any) -> Any:
        return self._float_layout.unpack(self._layout.pack(dict_key))[0]


class _Date(_Number):
    def from_value(self, value: Any) -> Any:
        return value.toordinal() - _EPOCH_DAY

    def to_value(self, dict_key: Any) -> Any:
        return date.fromordinal(dict_key + _EPOCH_DAY)


class _Instant(_Number):
    def from_value(self, value: Any) -> Any:
        return (value - _EPOCH_UTC) // _MICROSECOND

    def to_value(self, dict_key: Any) -> Any:
        return _EPOCH_UTC + timedelta(microseconds=dict_key)


class _Local(_Number):
    def from_value(self, value: Any) -> Any:
        return (value - _EPOCH) // _MICROSECOND

    def to_value(self, dict_key: Any) -> Any:
        return _EPOCH + timedelta(microseconds=dict_key)


class _Time(_Number):
    def from_value(self, value: Any) -> Any:
        return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) * 1000

    def to_value(self, dict_key: Any) -> Any:
        seconds, nanos = divmod(dict_key, 1_000_000_000)
        minutes, second = divmod(seconds, 60)
        return time(minutes // 60, minutes % 60, second, nanos // 1000)


class _Interval(_Number):
    def from_value(self, value: Any) -> Any:
        return value // _MICROSECOND

    def to_value(self, dict_key: Any) -> Any:
        return timedelta(microseconds=dict_key)


class _Decimal(AtomKey):
    """The dict key is the unscaled value."""

    filler = Decimal(0)

    def __init__(self, key_type: DecimalTypeInformation) -> None:
        super().__init__(key_type)
        self._scale = key_type.scale
        self._as_int = key_type.as_int
        self._fits_long = key_type.precision <= MAX_LONG_PRECISION

    def read(self, array: pa.Array) -> list[Any]:
        start = array.offset * 2
        words = np.frombuffer(array.buffers()[1], np.int64)[start : start + 2 * len(array)]
        low: list[int] = words[0::2].tolist()
        if self._fits_long:
            return low
        mask = (1 << 64) - 1
        return [(high << 64) | (part & mask) for high, part in zip(words[1::2].tolist(), low, strict=True)]

    def write(self, dict_keys: Sequence[Any]) -> pa.Array:
        content = b"".join([key.to_bytes(_DECIMAL_BYTES, "little", signed=True) for key in dict_keys])
        return pa.Array.from_buffers(self.arrow_type, len(dict_keys), [None, pa.py_buffer(content)])

    def from_value(self, value: Any) -> Any:
        if self._as_int:
            return value
        sign, digits, _ = value.as_tuple()
        number = int("".join(map(str, digits)))
        return -number if sign else number

    def to_value(self, dict_key: Any) -> Any:
        if self._as_int:
            return dict_key
        return Decimal((int(dict_key < 0), tuple(map(int, str(abs(dict_key)))), -self._scale))

    def to_bytes(self, dict_key: Any) -> bytes:
        result: bytes = (dict_key + _DECIMAL_SIGN).to_bytes(_DECIMAL_BYTES, "big")
        return result

    def read_bytes(self, column: pa.Array) -> list[Any]:
        found: list[bytes] = column.to_pylist()
        if any(len(data) != _DECIMAL_BYTES for data in found):
            raise ValueError("a decimal has 16 bytes")
        return [int.from_bytes(data, "big") - _DECIMAL_SIGN for data in found]

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        if self._fits_long:
            return xxh64_intdigest(_LONG.pack(dict_key), seed)
        # As java.math.BigInteger.toByteArray: the fewest bytes that hold the number and its sign.
        magnitude = dict_key if dict_key >= 0 else ~dict_key
        return xxh64_intdigest(dict_key.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True), seed)


_BY_NAME: Final[dict[str, type[AtomKey]]] = {
    "string": _Text,
    "binary": _Binary,
    "boolean": _Boolean,
    "tinyint": _Number,
    "smallint": _Number,
    "int": _Number,
    "bigint": _Number,
    "float": _Float,
    "double": _Float,
    "date": _Date,
    "timestamp": _Instant,
    "timestamp_ntz": _Local,
    "time": _Time,
    "interval day to second": _Interval,
}


def atom_key_for(key_type: TypeInformation) -> AtomKey:
    """Return how keys of a type are converted.

    Raises:
        ConfigurationError: Keys cannot have this type; the message says why.
    """
    if isinstance(key_type, DecimalTypeInformation):
        return _Decimal(key_type)
    if isinstance(key_type, SqlTimestampTypeInformation):
        return _Local(key_type)
    if isinstance(key_type, AtomicTypeInformation):
        return _BY_NAME[key_type.name](key_type)
    if isinstance(key_type, MapTypeInformation):
        reason = "Spark has no hash for maps, because their entries have no order. Key by the entries that matter"
    elif isinstance(key_type, ListTypeInformation):
        reason = "lists are mutable and cannot be looked up. Key by a column for each element, or by to_json(column)"
    else:
        reason = "equal objects need not have equal bytes. Declare the type of the key, or key by its parts"
    raise ConfigurationError(f"Keys cannot be {key_type}: {reason}.")
