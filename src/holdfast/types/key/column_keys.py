"""Columns as keys: what files have of them and their hashes, column by column where their type is declared.

What `KeyCodec` does for one key after the other, for whoever has millions of them in columns. Only keys without a
declared type, long decimals and rows within rows are still looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError
from holdfast.types.information.type_information import CharTypeInformation, DecimalTypeInformation, TypeInformation
from holdfast.types.key.atom_key import MAX_LONG_PRECISION
from holdfast.types.key.column_hash import Hashes, hash_bytes, hash_numbers
from holdfast.types.key.key_codec import SEED, AtomicKeyCodec, CompositeKeyCodec, KeyCodec, TaggedKeyCodec

_NULL_LENGTH: Final = np.uint32(0xFFFF_FFFF)
_SIGN: Final = np.uint64(1 << 63)
_WHOLE: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def keys_of_columns(codec: KeyCodec, columns: Sequence[pa.Array]) -> tuple[pa.Array, Hashes]:
    """Return the keys of columns as files have them, and the hash of each.

    Args:
        codec: Of the keys.
        columns: The columns that make up the key, or one column of structs. Their types may be others than those that
            are declared if every value fits. Of keys without a declared type, one column of any type.

    Raises:
        NullKeyError: A key is null as a whole; says in which row.
        OutputTypeError: A value does not fit the declared type.
    """
    arrays = [_one_array(column) for column in columns]
    if isinstance(codec, AtomicKeyCodec) and _is_column_wise(codec.key_type):
        if len(arrays) != 1:
            raise ConfigurationError(f"A key of one column got {len(arrays)}.")
        _refuse_nulls(arrays[0])
        stored = _canonical(arrays[0], codec.key_type)
        return stored, _hashes(stored, codec.key_type, np.full(len(stored), SEED, np.uint64))
    if isinstance(codec, CompositeKeyCodec):
        if len(arrays) == 1 and pa.types.is_struct(arrays[0].type) and len(codec.key_type.names) > 0:
            _refuse_nulls(arrays[0])
            arrays = [_one_array(part) for part in arrays[0].flatten()]
        if len(arrays) != len(codec.key_type.types):
            raise ConfigurationError(f"A key of {len(codec.key_type.types)} columns got {len(arrays)}.")
        if all(map(_is_column_wise, codec.key_type.types)):
            return _composite(codec.key_type.types, arrays)
    return _one_by_one(codec, arrays)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # several arrays, because one would be too long
            column = pa.concat_arrays(column.chunks)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_column_wise(key_type: TypeInformation) -> bool:
    if isinstance(key_type, DecimalTypeInformation):
        return bool(key_type.precision <= MAX_LONG_PRECISION)
    return not pa.types.is_nested(key_type.arrow_type)


def _refuse_nulls(column: pa.Array) -> None:
    if column.null_count:
        raise NullKeyError(row=column.is_null().index(pa.scalar(True)).as_py())


def _one_by_one(codec: KeyCodec, arrays: list[pa.Array]) -> tuple[pa.Array, Hashes]:
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
    """The column as files have it: of its declared type, with one zero, one NaN and padded texts."""
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
    """The whole numbers that Arrow keeps for the values of a column without nulls."""
    if isinstance(key_type, DecimalTypeInformation):
        words = np.frombuffer(stored.buffers()[1], np.int64)[stored.offset * 2 : (stored.offset + len(stored)) * 2]
        return np.ascontiguousarray(words[0::2])
    if pa.types.is_boolean(stored.type):
        stored = stored.cast(pa.int8())
    numbers: npt.NDArray[np.signedinteger[Any]] = stored.view(_WHOLE[stored.type.bit_width]).to_numpy()
    return numbers


def _composite(types: Sequence[TypeInformation], arrays: Sequence[pa.Array]) -> tuple[pa.Array, Hashes]:
    count = len(arrays[0])
    hashes = np.full(count, SEED, np.uint64)
    pieces: list[pa.Array] = []
    for key_type, column in zip(types, arrays, strict=True):
        stored = _canonical(column, key_type)
        is_there = stored.is_valid().to_numpy(zero_copy_only=False)
        present = stored if not stored.null_count else stored.drop_null()
        hashes[is_there] = _hashes(present, key_type, hashes[is_there])
        content = _bytes_of(present, key_type)
        lengths = np.full(count, _NULL_LENGTH)
        lengths[is_there] = pc.binary_length(content).to_numpy(zero_copy_only=False)
        pieces += [_fixed(lengths.astype(">u4")), _spread(content, is_there)]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())), hashes


def _bytes_of(present: pa.Array, key_type: TypeInformation) -> pa.Array:
    if pa.types.is_string(present.type) or pa.types.is_binary(present.type):
        return present.cast(pa.binary())
    numbers = _numbers(present, key_type).astype(np.int64).view(np.uint64)
    if isinstance(key_type, DecimalTypeInformation):
        # 2 to the power of 127 more, of 16 bytes: of what fits into 64 bits, the upper half is that or one less.
        halves = np.empty((len(numbers), 2), ">u8")
        halves[:, 0] = np.where(numbers >> np.uint64(63), _SIGN - np.uint64(1), _SIGN)
        halves[:, 1] = numbers
        return _fixed(halves)
    return _fixed((numbers ^ _SIGN).astype(">u8"))


def _fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """Values of one width as a column of bytes."""
    content = np.ascontiguousarray(values)
    width = content.nbytes // max(1, len(content))
    fixed = pa.Array.from_buffers(pa.binary(max(1, width)), len(content), [None, pa.py_buffer(content)])
    return fixed.cast(pa.binary())


def _spread(content: pa.Array, is_there: npt.NDArray[np.bool_]) -> pa.Array:
    if is_there.all():
        return content
    positions = np.cumsum(is_there) - 1
    taken = content.take(pa.array(positions, mask=~is_there))
    return taken.fill_null(b"")
