"""Keys of whole columns: their stored form and hashes, without a Python call per key where the type is declared.

`KeyCodec` does the same key by key. Only keys without a declared type, long decimals and rows within rows are still
converted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError
from holdfast.types.atomic import CharTypeInformation, DecimalTypeInformation
from holdfast.types.key_codec import (
    MAX_LONG_PRECISION,
    SEED,
    AtomicKeyCodec,
    CompositeKeyCodec,
    KeyCodec,
    TaggedKeyCodec,
    fixed_bytes,
    join_parts,
)
from holdfast.types.key_hash import Hashes, hash_bytes, hash_numbers
from holdfast.types.type_information import TypeInformation


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


_SIGN: Final = np.uint64(1 << 63)
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


def _refuse_nulls(column: pa.Array) -> None:
    if column.null_count:
        raise NullKeyError(row=column.is_null().index(pa.scalar(True)).as_py())


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
        # 16 bytes with an offset of 2**127. For a number that fits into 64 bits, the upper half is _SIGN, or one less.
        halves = np.empty((len(numbers), 2), ">u8")
        halves[:, 0] = np.where(numbers >> np.uint64(63), _SIGN - np.uint64(1), _SIGN)
        halves[:, 1] = numbers
        content = fixed_bytes(halves.reshape(-1).view("V16"))
    else:
        content = fixed_bytes((numbers ^ _SIGN).astype(">u8"))
    if not column.null_count:
        return content
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    return content.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))
