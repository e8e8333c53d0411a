"""Codecs of keys: keys in dictionaries, in files and for users, and the hash that decides which subtask owns them.

Keys of whole columns (`keys_of_columns`, `lazy_keys`) need no Python call per key where the type is declared. Only keys
without a declared type, long decimals and rows within rows are still converted one by one.

A *dict key* is the form in a task's dictionaries: hashable, and the same for all values that are the same key. It is a
str for STRING and CHAR, an int for numbers, dates and timestamps (the bits of a float, with one zero and one NaN; the
unscaled value of a decimal), bytes for BINARY, a tuple of dict keys for composite keys, and for keys without a declared
type the bytes of `holdfast.types.tagged.encode_key`.

The hash is Spark's ``xxhash64`` of the key's columns: XXH64 with seed 42, where the hash of a column is the seed of the
next one and a null leaves it unchanged.
"""

from __future__ import annotations

import reprlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from holdfast import errors
from holdfast.errors import ConfigurationError, CorruptFileError, NullKeyError, OutputTypeError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.types import tagged
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RecordTypeInformation, RowTypeInformation, StructTypeInformation
from holdfast.types.key_hash import Hashes, hash_bytes, hash_numbers
from holdfast.types.opaque import PickledTypeInformation, seal_json
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
    TypeInformation,
    type_from_json,
    with_nulls,
)

SEED: Final = 42
"""Seed of the hash of a key's first column."""
NULL_LENGTH: Final = 0xFFFF_FFFF
"""The length of a part that is null."""
_HEAD: Final = 4
_Positions = npt.NDArray[np.int64]
# Spark hashes the unscaled value of decimals up to this precision as a long, of others as bytes.
MAX_LONG_PRECISION: Final = 18
_LONG: Final = struct.Struct("<q")
_INT: Final = struct.Struct("<i")
_ORDERED_LONG: Final = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_DECIMAL_BYTES: Final = 16
_DECIMAL_SIGN: Final = 1 << 127
_LENGTH: Final = struct.Struct(">I")
_KEYS_AT_ONCE: Final = 1 << 16
"""Keys that are split together: it takes eight bytes of memory for each of their bytes."""


class KeyCodec(ABC):
    """Converts keys between columns, dict keys, files and what users see."""

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """The Arrow type of the key column in files."""

    @abstractmethod
    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Convert the key columns of a batch to dict keys.

        Raises:
            NullKeyError: A key is null as a whole.
        """

    def canonical_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the keys of a batch as files have them, if Arrow's equality of them is equality of keys.

        Returns:
            None if it is not, or if there are nulls.
        """
        return None

    def canonical_stored(self, stored: pa.Array) -> pa.Array | None:
        """Return keys of a file if Arrow's equality of them is equality of keys, else None."""
        return self.canonical_column([stored])

    @abstractmethod
    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Convert dict keys to the key column of a file."""

    @abstractmethod
    def from_storage(self, array: pa.Array) -> list[Any]:
        """Convert the key column of a file to dict keys."""

    @abstractmethod
    def user_key(self, dict_key: Any) -> Any:
        """Return the key as a user's function sees it."""

    @abstractmethod
    def dict_key(self, user_value: Any) -> Any:
        """Return the dict key of a user's value.

        Raises:
            NullKeyError: The value is None.
            OutputTypeError: The value does not have the declared type, or a class that keys may have.
        """

    @abstractmethod
    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return the key's unique bytes; keys of equal hash are sorted by them."""

    @abstractmethod
    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash as an unsigned number of 64 bits."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return a JSON value from which `codec_from_json` restores this codec."""

    def hashes(self, dict_keys: Sequence[Any]) -> npt.NDArray[np.uint64]:
        of = self.hash
        return np.fromiter((of(key) for key in dict_keys), np.uint64, len(dict_keys))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyCodec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))


# The canonical bytes of a composite key are its parts, each after its length (big-endian, four bytes).


def join_parts(parts: Sequence[pa.Array]) -> pa.Array:
    """Return composite keys' canonical bytes from the bytes of each part, which are null where the part is null."""
    pieces: list[pa.Array] = []
    for part in parts:
        lengths = pc.binary_length(part).cast(pa.uint32()).fill_null(NULL_LENGTH)
        pieces += [fixed_bytes(lengths.to_numpy(zero_copy_only=False).astype(">u4")), part.fill_null(b"")]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def split_parts(stored: pa.Array, count: int) -> list[pa.Array]:
    """Return the bytes of each part of composite keys, null where the part is null.

    Args:
        stored: The canonical bytes, without nulls.
        count: Number of parts.

    Raises:
        ValueError: The bytes are not such keys.
    """
    if not len(stored):
        return [stored] * count
    offsets = np.frombuffer(stored.buffers()[1], np.int32)[stored.offset : stored.offset + len(stored) + 1]
    content = stored.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    at, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    parts = []
    for _ in range(count):
        if (at + _HEAD > ends).any():
            raise ValueError("too short")
        lengths = np.ascontiguousarray(data[at[:, None] + np.arange(_HEAD)]).view(">u4")[:, 0].astype(np.int64)
        is_null = lengths == NULL_LENGTH
        lengths[is_null] = 0
        at += _HEAD
        if (at + lengths > ends).any():
            raise ValueError("too short")
        parts.append(_gathered(data, at, lengths, is_null))
        at += lengths
    if (at != ends).any():
        raise ValueError("too long")
    return parts


def _gathered(data: npt.NDArray[np.uint8], starts: _Positions, lengths: _Positions, is_null: Any) -> pa.Array:
    """Return stretches of bytes as a column."""
    ends = np.cumsum(lengths)
    wanted = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[wanted])]
    column = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
    return pc.if_else(pa.array(~is_null), column, None) if is_null.any() else column


def fixed_bytes(values: npt.NDArray[np.generic]) -> pa.Array:
    """Return values of one width as a column of bytes."""
    width = values.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(values)]).cast(pa.binary())


_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


class AtomKey(ABC):
    """Conversion of keys of one simple type."""

    filler: Any = 0
    """Placeholder in Arrow columns where a part of a composite key is null."""

    is_plain: bool = False
    """Whether Arrow's equality of values is equality of keys."""

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
        """Return the dict keys of a column of such bytes without nulls.

        Raises:
            ValueError: A value is not such bytes.
        """

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
    """Types that Arrow stores as a whole number, which is the dict key."""

    is_plain = True

    # Arrow's whole number of each width.
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
    """The dict key is the whole number with the same bits. There is one zero and one NaN."""

    filler = 0.0
    is_plain = False

    def __init__(self, key_type: TypeInformation) -> None:
        super().__init__(key_type)
        wide = self.arrow_type.bit_width == 64
        self._float_layout = struct.Struct("<d" if wide else "<f")
        self._float_dtype = np.dtype(np.float64 if wide else np.float32)
        self._whole_dtype = np.dtype(np.int64 if wide else np.int32)

    def read(self, array: pa.Array) -> list[Any]:
        numbers = array.to_numpy() + self._float_dtype.type(0)  # turns -0.0 into 0.0
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
        # As java.math.BigInteger.toByteArray: the fewest bytes for the number and its sign.
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
    """Return the conversion of keys of a type.

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


class AtomicKeyCodec(KeyCodec):
    """Keys of one column with a simple type."""

    def __init__(self, key_type: TypeInformation) -> None:
        self.key_type = key_type
        self._atom: AtomKey = atom_key_for(key_type)
        self.hash = self._atom.hash  # type: ignore[method-assign]  # saves a call per key

    @property
    def storage_type(self) -> pa.DataType:
        return self.key_type.arrow_type

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        column = _one(columns)
        _refuse_nulls(column)
        return self._atom.read(_as(column, self.storage_type))

    def canonical_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        column = _one(columns)
        return _as(column, self.storage_type) if self._atom.is_plain and not column.null_count else None

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        return self._atom.write(dict_keys)

    def from_storage(self, array: pa.Array) -> list[Any]:
        return self.dict_keys([array])

    def user_key(self, dict_key: Any) -> Any:
        """Return the key as the type's Python value.

        Raises:
            OutputTypeError: Python has no such value, for instance a day after the year 9999.
        """
        try:
            return self._atom.to_value(dict_key)
        except (ArithmeticError, ValueError) as error:
            raise OutputTypeError(None, f"The key {dict_key!r:.80} is not of type {self.key_type}: {error}.") from error

    def dict_key(self, user_value: Any) -> Any:
        if user_value is None:
            raise NullKeyError
        return self._atom.from_value(self.key_type.adopt(user_value))

    def canonical_bytes(self, dict_key: Any) -> bytes:
        return self._atom.to_bytes(dict_key)

    def from_bytes_column(self, column: pa.Array) -> list[Any]:
        return self._atom.read_bytes(column)

    def read_nullable(self, column: pa.Array) -> list[Any]:
        """Convert a column of a composite key, with None for nulls."""
        filled = _as(column, self.storage_type)
        keys = self._atom.read(filled.fill_null(self._atom.filler) if filled.null_count else filled)
        return with_nulls(keys, column)

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        return self._atom.hash(dict_key, seed)

    def to_json(self) -> Any:
        return {"kind": "atomic", "type": self.key_type.to_json()}

    def __reduce__(self) -> tuple[Any, ...]:
        return AtomicKeyCodec, (self.key_type,)


class CompositeKeyCodec(KeyCodec):
    """Keys of several columns. Parts may be null, even all of them."""

    storage_type = pa.binary()

    def __init__(self, key_type: StructTypeInformation) -> None:
        self.key_type = key_type
        self._parts: list[AtomicKeyCodec | CompositeKeyCodec] = []
        for name, part in zip(key_type.names, key_type.types, strict=True):
            try:
                self._parts.append(_declared(part))
            except ConfigurationError as error:
                raise ConfigurationError(f"Field {name!r} of the key: {error}") from None
        if not self._parts:
            raise ConfigurationError("A key needs at least one column.")

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Convert the key columns of a batch, or one struct column."""
        return list(zip(*self._columns(self.part_columns(columns)), strict=True))

    def part_columns(self, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
        """Return a column for each part of the key.

        Args:
            columns: Those columns, or one column of structs that are whole keys. If the only part is a struct itself,
                the depth of the structs decides which it is.
        """
        if len(columns) != 1 or not pa.types.is_struct(columns[0].type):
            return columns
        if len(self._parts) == 1 and _depth(columns[0].type) < _depth(self.key_type.arrow_type):
            return columns
        _refuse_nulls(columns[0])
        parts: list[pa.Array] = columns[0].flatten()
        return parts

    def read_nullable(self, column: pa.Array) -> list[Any]:
        """Convert a struct column of another composite key, with None for nulls."""
        return with_nulls(list(zip(*self._columns(column.flatten()), strict=True)), column)

    def _columns(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        if len(columns) != len(self._parts):
            raise ConfigurationError(f"A key of {len(self._parts)} columns received {len(columns)} columns.")
        return [part.read_nullable(column) for part, column in zip(self._parts, columns, strict=True)]

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array([self.canonical_bytes(key) for key in dict_keys], pa.binary())

    def canonical_stored(self, stored: pa.Array) -> pa.Array | None:
        """Return the bytes as they are: a key has only one form."""
        return stored

    def from_storage(self, array: pa.Array) -> list[Any]:
        """Convert canonical bytes to dict keys.

        Raises:
            CorruptFileError: They are not keys of this type.
        """
        try:
            return self._read(array)
        except ValueError as error:
            wrong = next(data for data in array.to_pylist() if not self._is_key(data))
            raise CorruptFileError("key column", None, f"{wrong[:64]!r} is not a key of {self.key_type}") from error

    def from_bytes_column(self, column: pa.Array) -> list[Any]:
        return self._read(column)

    def _read(self, stored: pa.Array) -> list[Any]:
        keys: list[Any] = []
        for start in range(0, len(stored), _KEYS_AT_ONCE):
            columns = split_parts(stored.slice(start, _KEYS_AT_ONCE), len(self._parts))
            keys += zip(*map(_from_bytes, self._parts, columns), strict=True)
        return keys

    def _is_key(self, data: bytes) -> bool:
        try:
            return bool(self._read(pa.array([data], pa.binary())))
        except ValueError:
            return False

    def user_key(self, dict_key: Any) -> Any:
        values = [None if key is None else part.user_key(key) for part, key in zip(self._parts, dict_key, strict=True)]
        kind = self.key_type
        return kind.make(values) if isinstance(kind, RecordTypeInformation) else tuple.__new__(kind.row_type, values)

    def dict_key(self, user_value: Any) -> Any:
        if user_value is None:
            raise NullKeyError
        values = self.key_type.arrange(user_value)
        return tuple(
            None if value is None else part.dict_key(value) for part, value in zip(self._parts, values, strict=True)
        )

    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return the parts' bytes, each after its length."""
        out = []
        for part, key in zip(self._parts, dict_key, strict=True):
            if key is None:
                out.append(_LENGTH.pack(NULL_LENGTH))
            else:
                content = part.canonical_bytes(key)
                out += [_LENGTH.pack(len(content)), content]
        return b"".join(out)

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash, in which the hash of a part is the seed of the next."""
        for part, key in zip(self._parts, dict_key, strict=True):
            if key is not None:
                seed = part.hash(key, seed)
        return seed

    def to_json(self) -> Any:
        return {"kind": "composite", "type": self.key_type.to_json()}

    def __reduce__(self) -> tuple[Any, ...]:
        return CompositeKeyCodec, (self.key_type,)


def _from_bytes(part: AtomicKeyCodec | CompositeKeyCodec, column: pa.Array) -> list[Any]:
    if not column.null_count:
        return part.from_bytes_column(column)
    present = iter(part.from_bytes_column(column.drop_null()))
    return [None if is_null else next(present) for is_null in column.is_null().to_pylist()]


class TaggedKeyCodec(KeyCodec):
    """Keys without a declared type: one column of tagged bytes."""

    storage_type = pa.binary()

    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        column = _one(columns)
        _refuse_nulls(column)
        return _as(column, self.storage_type).to_pylist()  # type: ignore[no-any-return]

    def canonical_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        column = _one(columns)
        return None if column.null_count else _as(column, self.storage_type)

    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        return pa.array(dict_keys, pa.binary())

    def from_storage(self, array: pa.Array) -> list[Any]:
        return array.to_pylist()  # type: ignore[no-any-return]

    def user_key(self, dict_key: Any) -> Any:
        return tagged.decode(dict_key)

    def dict_key(self, user_value: Any) -> Any:
        if user_value is None:
            raise NullKeyError
        try:
            return tagged.encode_key(user_value)
        except tagged.TaggedValueError as error:
            raise OutputTypeError(None, f"A key is not usable: {error}") from error

    def canonical_bytes(self, dict_key: Any) -> bytes:
        result: bytes = dict_key
        return result

    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        return xxh64_intdigest(dict_key, seed)

    def to_json(self) -> Any:
        return {"kind": "tagged"}


def key_codec_for(key_type: TypeInformation | None, names: tuple[str, ...] = ()) -> KeyCodec:
    """Return the codec of keys.

    Args:
        key_type: The type of the key: a row or tuple for several columns; None or pickled if it is not declared.
        names: Names of the key's columns, which the Row of a composite key has; default: those of the type.

    Raises:
        ConfigurationError: Keys cannot have this type; the message says why.
    """
    if key_type is None or isinstance(key_type, PickledTypeInformation):
        return TaggedKeyCodec()
    if isinstance(key_type, RowTypeInformation) and names and tuple(names) != key_type.names:
        key_type = RowTypeInformation(names, key_type.types)
    return _declared(key_type)


def describe_key_type(document: Any) -> str:
    """Format the result of `to_json` for people."""
    return str(type_from_json(seal_json(document["type"]))) if "type" in document else str(document["kind"])


def codec_from_json(document: Any) -> KeyCodec:
    """Restore a codec from the result of `to_json`.

    Raises:
        StateMigrationError: This release does not know such a codec.
    """
    try:
        return TaggedKeyCodec() if document["kind"] == "tagged" else _declared(type_from_json(document["type"]))
    except (*PARSE_ERRORS, ConfigurationError) as error:
        raise errors.StateMigrationError(
            f"{reprlib.repr(document)} is not a kind of key that this release knows. Upgrade, or check the file."
        ) from error


def _declared(key_type: TypeInformation) -> AtomicKeyCodec | CompositeKeyCodec:
    if isinstance(key_type, CollatedStringTypeInformation):
        raise ConfigurationError(
            f"Keys cannot be {key_type}: texts that are equal under this collation have different hashes. "
            "Key by a normalised text, for instance lower(column), or cast it to STRING COLLATE UTF8_BINARY."
        )
    if isinstance(key_type, RecordTypeInformation):
        key_type.check_equality()
    if isinstance(key_type, StructTypeInformation):
        return CompositeKeyCodec(key_type)
    return AtomicKeyCodec(key_type)


def _depth(kind: pa.DataType) -> int:
    """Return the depth of nested structs."""
    if not pa.types.is_struct(kind):
        return 0
    return 1 + max((_depth(kind.field(at).type) for at in range(kind.num_fields)), default=0)


def _one(columns: Sequence[pa.Array]) -> pa.Array:
    if len(columns) != 1:
        raise ConfigurationError(f"A key of one column received {len(columns)} columns.")
    return columns[0]


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def _refuse_nulls(column: pa.Array) -> None:
    if column.null_count:
        raise NullKeyError(row=column.is_null().index(pa.scalar(True)).as_py())


class LazyKeys(Sequence[Any]):
    """The dict keys of a batch, made from their column on first use: most batches have no new keys.

    Args:
        codec: Codec of the keys.
        stored: The keys as files have them, without nulls; equal values are equal keys.
        make: Makes the dict keys, if that is faster than `KeyCodec.from_storage`.
    """

    def __init__(self, codec: KeyCodec, stored: pa.Array, make: Callable[[], list[Any]] | None = None) -> None:
        self._codec = codec
        self._make = make
        self.stored = stored

    @cached_property
    def _dict_keys(self) -> list[Any]:
        return self._codec.from_storage(self.stored) if self._make is None else self._make()

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        return self._dict_keys[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict_keys)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyKeys):
            return bool(self.stored.equals(other.stored))
        return isinstance(other, Sequence) and self._dict_keys == list(other)

    __hash__ = None  # type: ignore[assignment]


_SIGN_BIT: Final = np.uint64(1 << 63)
_WHOLE: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def keys_of_columns(codec: KeyCodec, columns: Sequence[pa.Array]) -> tuple[pa.Array, Hashes]:
    """Return the keys of columns as files have them, and the hash of each.

    Args:
        codec: Codec of the keys.
        columns: The columns of the key, or one column of structs. They may have other types than the declared ones if
            every value fits. For keys without a declared type, one column of any type.

    Raises:
        NullKeyError: A key is null as a whole; the error has its row.
        OutputTypeError: A value does not fit the declared type.
    """
    arrays = [_one_array(column) for column in columns]
    if isinstance(codec, AtomicKeyCodec) and _is_column_wise(codec.key_type):
        if len(arrays) != 1:
            raise ConfigurationError(f"A key of one column received {len(arrays)} columns.")
        _refuse_nulls(arrays[0])
        stored = _canonical(arrays[0], codec.key_type)
        return stored, _hashes(stored, codec.key_type, np.full(len(stored), SEED, np.uint64))
    if isinstance(codec, CompositeKeyCodec):
        types = codec.key_type.types
        parts = _parts(codec, arrays)
        if parts is not None:
            return _composite(types, parts), _composite_hashes(types, parts)
    return _key_by_key(codec, arrays)


def hashes_of_columns(codec: KeyCodec, columns: Sequence[pa.Array]) -> Hashes:
    """Return only the hashes; see `keys_of_columns`."""
    if isinstance(codec, CompositeKeyCodec):
        parts = _parts(codec, [_one_array(column) for column in columns])
        if parts is not None:
            return _composite_hashes(codec.key_type.types, parts)
    return keys_of_columns(codec, columns)[1]


def lazy_keys(codec: KeyCodec, columns: Sequence[pa.Array]) -> Sequence[Any]:
    """Return the dict keys of a batch, as `LazyKeys` where the type of the key permits.

    Raises:
        NullKeyError: A key is null.
    """
    if isinstance(codec, CompositeKeyCodec):
        arrays = [_one_array(column) for column in columns]
        parts = _parts(codec, arrays)
        if parts is not None:
            return LazyKeys(codec, _composite(codec.key_type.types, parts), partial(codec.dict_keys, arrays))
    stored = codec.canonical_column(columns)
    return codec.dict_keys(columns) if stored is None else LazyKeys(codec, stored)


def _parts(codec: CompositeKeyCodec, arrays: list[pa.Array]) -> list[pa.Array] | None:
    """Return the parts of a composite key as columns; None if they must be converted key by key."""
    types = codec.key_type.types
    arrays = [_one_array(part) for part in codec.part_columns(arrays)]
    if len(arrays) != len(types):
        raise ConfigurationError(f"A key of {len(types)} columns received {len(arrays)} columns.")
    if not all(map(_is_column_wise, types)):
        return None
    return [_canonical(column, key_type) for column, key_type in zip(arrays, types, strict=True)]


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # too long for one array
            column = pa.concat_arrays(column.chunks)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_column_wise(key_type: TypeInformation) -> bool:
    if isinstance(key_type, DecimalTypeInformation):
        return bool(key_type.precision <= MAX_LONG_PRECISION)
    return not pa.types.is_nested(key_type.arrow_type)


def _key_by_key(codec: KeyCodec, arrays: list[pa.Array]) -> tuple[pa.Array, Hashes]:
    if isinstance(codec, TaggedKeyCodec):
        if len(arrays) == 1:
            _refuse_nulls(arrays[0])
            values = arrays[0].to_pylist()
        else:
            values = list(zip(*(array.to_pylist() for array in arrays), strict=True))
        keys = [codec.dict_key(value) for value in values]
    else:
        keys = codec.dict_keys(arrays)
    return codec.storage_array(keys), codec.hashes(keys)


def _canonical(column: pa.Array, key_type: TypeInformation) -> pa.Array:
    """Return the column as files have it: of its declared type, with one zero, one NaN and padded texts."""
    kind = key_type.arrow_type
    try:
        stored = column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise OutputTypeError(None, f"A key does not fit {key_type}: {error}.", declared=str(key_type)) from error
    if isinstance(key_type, CharTypeInformation):
        longest = pc.max(pc.utf8_length(stored)).as_py() or 0
        if longest > key_type.length:
            raise OutputTypeError(None, f"A key is longer than {key_type}: it has {longest} characters.")
        return pc.utf8_rpad(stored, key_type.length)
    if pa.types.is_floating(kind):
        numbers = stored.fill_null(0).to_numpy(zero_copy_only=False) + kind.to_pandas_dtype()(0)  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan
        mask = None if not stored.null_count else stored.is_null().to_numpy(zero_copy_only=False)
        return pa.array(numbers, kind, mask=mask)
    return stored


def _hashes(stored: pa.Array, key_type: TypeInformation, seeds: Hashes) -> Hashes:
    if pa.types.is_string(stored.type) or pa.types.is_binary(stored.type):
        return hash_bytes(stored, seeds)
    numbers = _numbers(stored, key_type)
    is_wide = numbers.dtype.itemsize == 8
    return hash_numbers(numbers if is_wide else numbers.astype(np.int32), seeds)


def _numbers(stored: pa.Array, key_type: TypeInformation) -> npt.NDArray[np.signedinteger[Any]]:
    """Return the whole numbers that Arrow stores for the values of a column without nulls."""
    if isinstance(key_type, DecimalTypeInformation):
        words = np.frombuffer(stored.buffers()[1], np.int64)[stored.offset * 2 : (stored.offset + len(stored)) * 2]
        return np.ascontiguousarray(words[0::2])
    if pa.types.is_boolean(stored.type):
        stored = stored.cast(pa.int8())
    numbers: npt.NDArray[np.signedinteger[Any]] = stored.view(_WHOLE[stored.type.bit_width]).to_numpy()
    return numbers


def _composite(types: Sequence[TypeInformation], columns: Sequence[pa.Array]) -> pa.Array:
    return join_parts([_bytes_of(column, key_type) for key_type, column in zip(types, columns, strict=True)])


def _composite_hashes(types: Sequence[TypeInformation], columns: Sequence[pa.Array]) -> Hashes:
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for key_type, column in zip(types, columns, strict=True):
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        present = column if not column.null_count else column.drop_null()
        hashes[is_there] = _hashes(present, key_type, hashes[is_there])
    return hashes


def _bytes_of(column: pa.Array, key_type: TypeInformation) -> pa.Array:
    """Return the canonical bytes of values, null where they are null."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.binary())
    present = column if not column.null_count else column.drop_null()
    numbers = _numbers(present, key_type).astype(np.int64).view(np.uint64)
    if isinstance(key_type, DecimalTypeInformation):
        # 16 bytes, offset 2**127. For a number that fits into 64 bits, the upper half is _SIGN_BIT or one less.
        halves = np.empty((len(numbers), 2), ">u8")
        halves[:, 0] = np.where(numbers >> np.uint64(63), _SIGN_BIT - np.uint64(1), _SIGN_BIT)
        halves[:, 1] = numbers
        content = fixed_bytes(halves.reshape(-1).view("V16"))
    else:
        content = fixed_bytes((numbers ^ _SIGN_BIT).astype(">u8"))
    if not column.null_count:
        return content
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    return content.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))
