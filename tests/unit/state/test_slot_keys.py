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
from holdfast.state.hashmap.slots import GrowingArray, KeyTable, SlotKeys
from holdfast.types.key_codec import LazyKeys, key_codec_for, lazy_keys
from holdfast.types.type_parser import parse_type
from tests.examples import examples

STRINGS = key_codec_for(parse_type("string"))


def spread(keys: list[Any], buckets: int) -> Any:
    """Hashes of which many are the same, and that crowd in the same places."""
    return np.array([STRINGS.hash(key) % buckets << 20 for key in keys], np.uint64)


BATCHES = st.lists(
    st.tuples(st.sampled_from(["column", "objects", "known", "keep"]), st.lists(st.text(max_size=3), max_size=30))
)


@settings(deadline=None)
@given(batches=BATCHES, buckets=st.sampled_from([1, 3, 50, 1 << 40]))
def test_in_whatever_form_keys_come_each_has_the_slot_that_a_dictionary_would_give(
    batches: list[tuple[str, list[str]]], buckets: int
) -> None:
    slot_keys, model = SlotKeys(STRINGS), Model()
    for form, keys in batches:
        hashes = spread(keys, buckets)
        if form == "keep":
            kept = np.array([slot for slot, key in enumerate(slot_keys) if key not in keys], np.int64)
            slot_keys.keep(kept)
            model.keep(kept)
        elif form == "known":
            expected = [model.slots.get(key, -1) for key in keys]
            assert slot_keys.find(keys).tolist() == expected
            assert slot_keys.find_column(pa.array(keys, pa.string()), hashes).tolist() == expected
        elif form == "objects":
            model.see(keys, slot_keys.slots_of(keys, hashes))
        else:
            model.see(keys, slot_keys.slots_of_column(pa.array(keys, pa.string()), hashes).tolist())
        everything = np.arange(len(slot_keys))
        assert len(slot_keys) == len(model.slots)
        assert slot_keys.stored(everything[::2]).to_pylist() == model.keys()[::2]
        assert [*slot_keys] == slot_keys.objects(everything) == model.keys()
        assert [slot_keys[slot] for slot in everything.tolist()] == model.keys()
        assert slot_keys.hashes[: len(slot_keys)].tolist() == spread(model.keys(), buckets).tolist()


class Model:
    """A dictionary: new keys get the next slots, in whatever order."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def keys(self) -> list[str]:
        return sorted(self.slots, key=self.slots.__getitem__)

    def see(self, keys: list[str], slots: list[int]) -> None:
        for key, slot in zip(keys, slots, strict=True):
            assert self.slots.setdefault(key, slot) == slot
        assert sorted(self.slots.values()) == list(range(len(self.slots)))

    def keep(self, kept: Any) -> None:
        keys = self.keys()
        self.slots = {keys[old]: new for new, old in enumerate(kept.tolist())}


def test_keys_that_were_made_to_share_a_hash_are_not_added_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"key {number}" for number in range(2_000)]
    same = np.full(len(keys), 7, np.uint64)
    slot_keys = SlotKeys(STRINGS)
    appended, append = [], KeyTable.append
    monkeypatch.setattr(
        KeyTable, "append", lambda self, stored, *more: appended.append(1) or append(self, stored, *more)
    )
    slots = slot_keys.slots_of_column(pa.array(keys), same)
    assert sorted(slots.tolist()) == list(range(len(keys)))
    assert slot_keys.find_column(pa.array(keys[::-1]), same).tolist() == slots.tolist()[::-1]
    assert slot_keys.stored(slots).to_pylist() == keys
    assert len(appended) < 20


def test_known_keys_are_found_and_others_are_not() -> None:
    keys = [f"key {number}" for number in range(5_000)]
    slot_keys = SlotKeys(STRINGS)
    slots = dict(zip(keys, slot_keys.slots_of_column(pa.array(keys), STRINGS.hashes(keys)).tolist(), strict=True))
    wanted = [*keys[::7], "another", *keys[::-3]]
    found = slot_keys.find_column(pa.array(wanted), STRINGS.hashes(wanted)).tolist()
    assert found == [slots.get(key, -1) for key in wanted]


def test_after_keys_were_given_up_no_slot_is_an_old_one() -> None:
    keys = [f"key {number}" for number in range(5_000)]
    hashes = STRINGS.hashes(keys)
    slot_keys = SlotKeys(STRINGS)
    slot_keys.slots_of(keys, hashes)
    slot_keys.find_column(pa.array(keys), hashes)
    slot_keys.keep(np.arange(1, 5_000, 2))
    assert [*slot_keys] == keys[1::2]
    assert slot_keys.find_column(pa.array(keys), hashes).tolist() == [
        -1 if at % 2 == 0 else at // 2 for at in range(5_000)
    ]


@pytest.mark.parametrize(
    "kind", ["string", "binary", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz"]
)
@settings(deadline=None, max_examples=examples(20))
@given(data=st.data())
def test_a_growing_array_has_what_was_added_in_order(kind: str, data: Any) -> None:
    codec = key_codec_for(parse_type(kind))
    array, expected, views = GrowingArray(codec.storage_type), [], []
    for _ in range(data.draw(st.integers(1, 5))):
        count = data.draw(st.integers(0, 3_000))
        added = pa.array([at * 7 % 100 for at in range(count + 3)], pa.int64())
        if pa.types.is_integer(codec.storage_type) or pa.types.is_temporal(codec.storage_type):
            small = added.cast(pa.int32()) if pa.types.is_date32(codec.storage_type) else added
            stored = small.cast(codec.storage_type)
        else:
            stored = added.cast(pa.string()).cast(codec.storage_type)
        stored = stored.slice(2, count)
        array.extend(stored)
        expected += stored.to_pylist()
        views.append((array.view(), len(expected)))
    array.view().validate(full=True)
    for view, length in views:
        assert view.cast(codec.storage_type).to_pylist() == expected[:length]


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
    arrived = lazy_keys(codec, [column])
    assert isinstance(arrived, LazyKeys)
    assert list(arrived) == codec.dict_keys([column])
    assert arrived == LazyKeys(codec, column)
    assert arrived == codec.dict_keys([column])
    assert arrived != LazyKeys(codec, column[:2])


@pytest.mark.parametrize("kind", ["double", "char(4)", "boolean", "decimal(5,2)", "struct<a: int, b: struct<c: int>>"])
def test_keys_that_have_several_forms_become_objects(kind: str) -> None:
    codec = key_codec_for(parse_type(kind))
    column = parse_type(kind).to_array([])
    assert lazy_keys(codec, [column]) == []
    assert not isinstance(lazy_keys(codec, [column]), LazyKeys)


PARTS = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.text(max_size=2))


@settings(deadline=None)
@given(batches=st.lists(st.tuples(st.booleans(), st.lists(PARTS, max_size=20))))
def test_keys_of_several_columns_have_the_slots_that_a_dictionary_would_give(
    batches: list[tuple[bool, list[tuple[int | None, str | None]]]],
) -> None:
    kind = parse_type("struct<a: int, b: string>")
    codec = key_codec_for(kind)
    slot_keys, slots = SlotKeys(codec), dict[Any, int]()
    for in_columns, keys in batches:
        hashes = codec.hashes(keys)
        if in_columns:
            arrived = lazy_keys(
                codec, [pa.array([a for a, _ in keys], pa.int32()), pa.array([b for _, b in keys], pa.string())]
            )
            assert isinstance(arrived, LazyKeys) and list(arrived) == keys
            found = slot_keys.slots_of_column(arrived.stored, hashes).tolist()
        else:
            found = slot_keys.slots_of(keys, hashes)
        for key, slot in zip(keys, found, strict=True):
            assert slots.setdefault(key, slot) == slot
        assert sorted(slots.values()) == list(range(len(slot_keys)))
    assert [*slot_keys] == sorted(slots, key=slots.__getitem__)
    assert codec.from_storage(slot_keys.stored(np.arange(len(slot_keys)))) == [*slot_keys]


def test_a_null_is_refused() -> None:
    with pytest.raises(NullKeyError):
        lazy_keys(STRINGS, [pa.array(["a", None])])
