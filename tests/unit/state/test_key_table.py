"""Keys that arrive in columns: found without an object for each, never with the slot of another key."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import NullKeyError
from holdfast.state.hashmap.key_table import KeyTable
from holdfast.state.hashmap.store import Store
from holdfast.types.arrived_keys import ArrivedKeys, arrived_keys
from holdfast.types.ddl import parse_type
from holdfast.types.key import KeyCodec, key_codec_for

STRINGS = key_codec_for(parse_type("string"))


def store_of(codec: KeyCodec, keys: list[Any], hashes: Any) -> Store:
    store = Store(codec)
    for key in keys:
        assert store.index[key] == len(store.index) - 1
    store.add(keys, hashes, [], {})
    return store


def spread(keys: list[Any], buckets: int) -> Any:
    """Hashes of which many are the same, and that crowd in the same places."""
    return np.array([STRINGS.hash(key) % buckets << 20 for key in keys], np.uint64)


@settings(deadline=None)
@given(
    known=st.lists(st.text(max_size=3), unique=True, max_size=60),
    more=st.lists(st.text(max_size=3), unique=True, max_size=60),
    wanted=st.lists(st.text(max_size=3), max_size=60),
    buckets=st.sampled_from([1, 3, 50, 1 << 40]),
    fewest=st.integers(1, 8),
)
def test_whatever_it_finds_is_what_a_dictionary_finds(
    known: list[str], more: list[str], wanted: list[str], buckets: int, fewest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.state.hashmap.key_table._FEWEST", fewest)
        table = KeyTable(STRINGS)
        for keys in (known, known + [key for key in more if key not in known]):
            hashes = spread(keys, buckets)
            table.cover(list(keys), hashes)
            found = table.find(pa.array(wanted, pa.string()), spread(wanted, buckets), hashes).tolist()
            for key, slot in zip(wanted, found, strict=True):
                assert slot == -1 or keys[slot] == key
            if len(table) == len(keys) and buckets > 1 << 30:
                # Where no two keys share a hash, each known one is found.
                assert [slot >= 0 for slot in found] == [key in keys for key in wanted]


def test_known_keys_are_found_and_others_are_not() -> None:
    keys = [f"key {number}" for number in range(5_000)]
    store = store_of(STRINGS, keys, STRINGS.hashes(keys))
    wanted = [*keys[::7], "another", *keys[::-3]]
    found = store.find(pa.array(wanted), STRINGS.hashes(wanted)).tolist()
    assert found == [store.index.get(key, -1) for key in wanted]


def test_after_keys_were_given_up_no_slot_is_an_old_one() -> None:
    keys = [f"key {number}" for number in range(5_000)]
    hashes = STRINGS.hashes(keys)
    store = store_of(STRINGS, keys, hashes)
    store.find(pa.array(keys), hashes)
    store.keep(np.arange(1, 5_000, 2))
    found = store.find(pa.array(keys), hashes).tolist()
    assert found == [store.index.get(key, -1) for key in keys]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["", "ü", "x" * 100]),
        ("binary", [b"", b"\0", b"x"]),
        ("int", [-1, 0, 2**31 - 1]),
        ("bigint", [-(2**63), 0, 5]),
        ("date", [date(1, 1, 1), date(1970, 1, 1), date(2026, 11, 22)]),
    ],
)
def test_keys_of_plain_types_stay_in_their_column(kind: str, values: list[Any]) -> None:
    codec = key_codec_for(parse_type(kind))
    column = pa.array(values, codec.storage_type)
    arrived = arrived_keys(codec, [column])
    assert isinstance(arrived, ArrivedKeys)
    assert list(arrived) == codec.dict_keys([column])
    assert arrived.take([2, 0]) == [arrived[2], arrived[0]]
    assert arrived == ArrivedKeys(codec, column)
    assert arrived == codec.dict_keys([column])
    assert arrived != ArrivedKeys(codec, column[:2])


@pytest.mark.parametrize("kind", ["double", "char(4)", "boolean", "decimal(5,2)", "struct<a: int, b: string>"])
def test_keys_that_have_several_forms_become_objects(kind: str) -> None:
    codec = key_codec_for(parse_type(kind))
    column = parse_type(kind).to_array([])
    assert arrived_keys(codec, [column]) == []
    assert not isinstance(arrived_keys(codec, [column]), ArrivedKeys)


def test_a_null_is_refused() -> None:
    with pytest.raises(NullKeyError):
        arrived_keys(STRINGS, [pa.array(["a", None])])
