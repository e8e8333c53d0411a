"""Keys of whole columns are those that are made one by one, with the same hashes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from holdfast.errors import ConfigurationError, CorruptFileError, NullKeyError, OutputTypeError
from holdfast.types import key_hash as quick_hash_module
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import LazyKeys, hashes_of_columns, key_codec_for, keys_of_columns, lazy_keys
from holdfast.types.key_hash import hash_bytes, hash_with_polars
from holdfast.types.type_parser import to_type
from tests.unit.types.type_strategies import ATOMIC

COLUMNS = st.sampled_from(ATOMIC).flatmap(
    lambda typed: st.tuples(st.just(typed[0]), st.lists(st.none() | typed[1], min_size=1, max_size=6))
)


@given(column=COLUMNS)
def test_keys_of_one_column(column) -> None:
    key_type, values = column
    array = key_type.to_array([value for value in values if value is not None])
    codec = key_codec_for(key_type)
    stored, hashes = keys_of_columns(codec, [array])
    one_by_one = codec.dict_keys([array])
    assert codec.from_storage(stored) == one_by_one
    assert stored.equals(codec.storage_array(one_by_one))
    assert hashes.tolist() == codec.hashes(one_by_one).tolist()


@given(columns=st.lists(COLUMNS, min_size=1, max_size=4))
def test_keys_of_several_columns_of_which_some_are_null(columns) -> None:
    count = min(len(values) for _, values in columns)
    arrays = [key_type.to_array(values[:count]) for key_type, values in columns]
    row_type = RowTypeInformation([f"c{at}" for at in range(len(columns))], [key_type for key_type, _ in columns])
    codec = key_codec_for(row_type)
    one_by_one = codec.dict_keys(arrays)
    struct = pa.StructArray.from_arrays(arrays, names=list(row_type.names))
    for given_as in (arrays, [struct]):
        stored, hashes = keys_of_columns(codec, given_as)
        assert stored.equals(codec.storage_array(one_by_one))
        assert hashes.tolist() == codec.hashes(one_by_one).tolist() == hashes_of_columns(codec, given_as).tolist()
        arrived = lazy_keys(codec, given_as)
        assert list(arrived) == one_by_one
        if isinstance(arrived, LazyKeys):
            assert arrived.stored.equals(stored)
    padded = pa.concat_arrays([pa.array([b"something else"], pa.binary()), stored]).slice(1)
    assert codec.from_storage(padded) == one_by_one


@given(data=st.data(), at=st.integers(0, 40), bit=st.integers(0, 7), shorter=st.integers(0, 3))
def test_damaged_bytes_of_several_columns_are_refused_by_name_or_another_key(data, at, bit, shorter) -> None:
    codec = key_codec_for(to_type("struct<a: bigint, b: string, c: int>"))
    good = codec.canonical_bytes(codec.dict_key((data.draw(st.integers(0, 9)), data.draw(st.text(max_size=9)), 7)))
    damaged = bytearray(good[: len(good) - shorter])
    damaged[at % len(damaged)] ^= 1 << bit
    stored = pa.array([good, bytes(damaged), good], pa.binary())
    try:
        keys = codec.from_storage(stored)
    except CorruptFileError as error:
        assert repr(bytes(damaged)[:64]) in str(error)
    else:
        assert codec.storage_array(keys).equals(stored)


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 3))
def test_bytes_of_any_length_and_from_any_offset(values, skipped) -> None:
    column = pa.array([*[b"x"] * skipped, *values], pa.binary()).slice(skipped)
    seeds = pa.array(range(len(values)), pa.uint64()).to_numpy()
    expected = [xxh64_intdigest(value, seed) for seed, value in enumerate(values)]
    assert hash_bytes(column, seeds).tolist() == expected


@given(
    st.lists(st.binary(max_size=100) | st.text().map(str.encode), min_size=1, max_size=20), st.integers(0, 2**64 - 1)
)
def test_a_package_that_hashes_columns_gives_the_same_hashes(values, seed) -> None:
    many = values * (1 + 4096 // len(values))
    column = pa.array([b"x", *many], pa.binary()).slice(1)
    found = hash_with_polars(column, np.full(len(many), seed, np.uint64))
    assert found is not None
    assert found[: len(values)].tolist() == [xxh64_intdigest(value, seed) for value in values]
    assert (found.reshape(-1, len(values)) == found[: len(values)]).all()


def test_without_that_package_numpy_makes_the_hashes(monkeypatch) -> None:
    column = pa.array([f"key-{n:0{n % 50}d}" for n in range(5000)])
    seeds = np.full(len(column), 42, np.uint64)
    quick = hash_bytes(column, seeds)
    monkeypatch.setattr(quick_hash_module, "_packages", lambda: None)
    assert hash_with_polars(column, seeds) is None
    assert (hash_bytes(column, seeds) == quick).all()


def test_what_cannot_be_a_key_says_why() -> None:
    with pytest.raises(NullKeyError) as error:
        keys_of_columns(key_codec_for(to_type("string")), [pa.array(["a", None])])
    assert error.value.row == 1
    with pytest.raises(OutputTypeError, match="does not fit int"):
        keys_of_columns(key_codec_for(to_type("int")), [pa.array([2**40])])
    with pytest.raises(OutputTypeError, match="longer"):
        keys_of_columns(key_codec_for(to_type("char(2)")), [pa.array(["abc"])])
    with pytest.raises(ConfigurationError, match="2 columns received 1"):
        keys_of_columns(key_codec_for(to_type("a int, b int")), [pa.array([1])])
    stored, _ = keys_of_columns(key_codec_for(to_type("bigint")), [pa.array([1], pa.int8())])
    assert stored.type == pa.int64()
