"""Key groups against the golden vectors of Flink 2.3 (ranges, bounds, defaults) and against brute force."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import (
    AUTO_PARALLELISM,
    MAX_PARALLELISM,
    KeyGroupRange,
    KeyGroupRangeAssignment,
    default_max_parallelism,
    hash_range,
    key_group_of,
    key_groups_of,
    range_of,
    subtask_of,
)

HASHES = st.integers(0, 2**64 - 1)
MAX_PARALLELISMS = st.integers(1, MAX_PARALLELISM)


@st.composite
def assignments(draw):
    maximum = draw(MAX_PARALLELISMS)
    return maximum, draw(st.integers(1, maximum))


@pytest.mark.parametrize(
    ("maximum", "parallelism", "ranges"),
    [
        (128, 3, [(0, 42), (43, 85), (86, 127)]),
        (10, 3, [(0, 3), (4, 6), (7, 9)]),
        (10, 4, [(0, 2), (3, 4), (5, 7), (8, 9)]),
        (7, 3, [(0, 2), (3, 4), (5, 6)]),
        (128, 5, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
        (13, 2, [(0, 6), (7, 12)]),
        (32768, 3, [(0, 10922), (10923, 21845), (21846, 32767)]),
        (1, 1, [(0, 0)]),
    ],
)
def test_ranges_are_those_of_flink(maximum, parallelism, ranges):
    ours = [range_of(subtask, maximum, parallelism) for subtask in range(parallelism)]
    assert [(found.start, found.end) for found in ours] == ranges


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (2, 128),
        (85, 128),
        (86, 256),
        (127, 256),
        (128, 256),
        (170, 256),
        (171, 256),
        (1000, 2048),
        (20000, 32768),
        (21845, 32768),
        (32768, 32768),
        (AUTO_PARALLELISM, 32768),
    ],
)
def test_the_default_max_parallelism_is_that_of_flink(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("key_group", "maximum", "parallelism", "subtask"),
    # Flink's table of strings: key group at 128, operator index of 4.
    [(94, 128, 4, 2), (81, 128, 4, 2), (35, 128, 4, 1), (115, 128, 4, 3), (6, 128, 4, 0), (20, 128, 4, 0)],
)
def test_the_subtask_of_a_key_group_is_that_of_flink(key_group, maximum, parallelism, subtask):
    assert subtask_of(key_group, maximum, parallelism) == subtask


@given(assignments())
def test_ranges_cover_every_key_group_once_and_agree_with_the_subtask(assignment):
    maximum, parallelism = assignment
    if maximum > 2000:  # the oracle walks over all of them
        maximum, parallelism = maximum % 2000 + 1, parallelism % (maximum % 2000 + 1) + 1
    covered = [(group, subtask) for subtask in range(parallelism) for group in range_of(subtask, maximum, parallelism)]
    assert [group for group, _ in covered] == list(range(maximum))
    assert all(subtask_of(group, maximum, parallelism) == subtask for group, subtask in covered)


@pytest.mark.parametrize(
    ("subtask", "maximum", "parallelism"),
    [(0, 0, 1), (0, 32769, 1), (0, 4, 5), (0, 4, 0), (4, 8, 4), (-1, 8, 4), (0, True, 1), (0, 8, 1.5)],
)
def test_numbers_out_of_bounds_are_refused(subtask, maximum, parallelism):
    with pytest.raises(ConfigurationError):
        range_of(subtask, maximum, parallelism)


@given(st.lists(HASHES, max_size=50), MAX_PARALLELISMS)
def test_a_column_of_hashes_gives_the_same_as_each_of_them(hashes, maximum):
    column = key_groups_of(np.array(hashes, np.uint64), maximum)
    assert column.dtype == np.int32
    assert column.tolist() == [key_group_of(value, maximum) for value in hashes]
    assert all(0 <= group < maximum for group in column.tolist())


@given(HASHES, MAX_PARALLELISMS)
def test_a_signed_hash_as_the_jvm_has_it_gives_the_same_group(value, maximum):
    signed = value - 2**64 if value >= 2**63 else value
    assert key_group_of(signed, maximum) == key_group_of(value, maximum)


@given(HASHES, HASHES, MAX_PARALLELISMS)
def test_sorted_by_hash_is_sorted_by_key_group(one, other, maximum):
    low, high = sorted([one, other])
    assert key_group_of(low, maximum) <= key_group_of(high, maximum)


@given(MAX_PARALLELISMS, st.data())
def test_a_range_of_key_groups_is_exactly_one_range_of_hashes(maximum, data):
    start = data.draw(st.integers(0, maximum - 1))
    end = data.draw(st.integers(start, maximum - 1))
    low, high = hash_range(KeyGroupRange(start, end), maximum)
    assert key_group_of(low, maximum) == start
    assert key_group_of(high, maximum) == end
    assert low == 0 if start == 0 else key_group_of(low - 1, maximum) == start - 1
    assert high == 2**64 - 1 if end == maximum - 1 else key_group_of(high + 1, maximum) == end + 1


def test_an_empty_range_has_no_hashes():
    with pytest.raises(ConfigurationError):
        hash_range(KeyGroupRange.EMPTY, 128)
    with pytest.raises(ConfigurationError):
        hash_range(KeyGroupRange(0, 128), 128)


def test_all_empty_ranges_are_the_same():
    assert KeyGroupRange.of(5, 4) == KeyGroupRange.EMPTY == KeyGroupRange(0, -1)
    assert (KeyGroupRange.EMPTY.size, list(KeyGroupRange.EMPTY), bool(KeyGroupRange.EMPTY)) == (0, [], False)
    with pytest.raises(ConfigurationError):
        KeyGroupRange(-1, 3)


@given(st.integers(0, 30), st.integers(-1, 30), st.integers(0, 30), st.integers(-1, 30))
def test_ranges_are_sets_of_key_groups(start, end, other_start, other_end):
    one, other = KeyGroupRange(start, end), KeyGroupRange(other_start, other_end)
    assert list(one.intersection(other)) == sorted(set(one) & set(other))
    assert one.size == len(one) == len(set(one))
    assert [group for group in range(-2, 35) if one.contains(group)] == list(one)
    assert pickle.loads(pickle.dumps(one)) == one


def test_the_names_of_flink_lead_to_the_same_functions():
    assert KeyGroupRangeAssignment.compute_default_max_parallelism(86) == 256
    # Flink takes parallelism after max parallelism, and the subtask last.
    assert KeyGroupRangeAssignment.compute_key_group_range_for_operator_index(128, 3, 1) == KeyGroupRange(43, 85)
    assert KeyGroupRangeAssignment.compute_operator_index_for_key_group(128, 4, 94) == 2
    assert KeyGroupRangeAssignment.compute_key_group_for_key_hash(2**64 - 1, 128) == 127
    with pytest.raises(ConfigurationError):
        KeyGroupRangeAssignment.check_parallelism_preconditions(0)
