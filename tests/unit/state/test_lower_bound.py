"""Guessing where hashes stand finds what a binary search finds, also where somebody has chosen the hashes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state import probe
from holdfast.state.probe import lower_bounds

Hashes = npt.NDArray[np.uint64]
MOST = 2**64 - 1
LONG = 600_000


def evenly(random: np.random.Generator) -> Hashes:
    return random.integers(0, MOST, LONG, np.uint64, endpoint=True)


def of_a_quarter(random: np.random.Generator) -> Hashes:
    return evenly(random) // np.uint64(4) + np.uint64(2**63)


def mostly_of_one_key(random: np.random.Generator) -> Hashes:
    hashes = evenly(random)
    hashes[: LONG * 9 // 10] = hashes[0]
    return hashes


def in_two_corners(random: np.random.Generator) -> Hashes:
    near: Hashes = random.integers(0, 1000, LONG).astype(np.uint64)
    near[::2] = np.uint64(MOST) - near[::2]
    return near


def ever_denser(random: np.random.Generator) -> Hashes:
    return np.exp(random.uniform(0, 44, LONG)).astype(np.uint64)


def of_one_key(random: np.random.Generator) -> Hashes:
    return np.full(LONG, 7, np.uint64)


@pytest.mark.parametrize(
    "made",
    [evenly, of_a_quarter, mostly_of_one_key, in_two_corners, ever_denser, of_one_key],
    ids=lambda it: it.__name__,
)
def test_long_columns_of_any_hashes(made: Callable[[np.random.Generator], Hashes]) -> None:
    random = np.random.default_rng(5)
    stored = np.sort(made(random))
    there = random.choice(stored, 2_000)
    between = random.integers(stored[0], stored[-1], 2_000, np.uint64, endpoint=True)
    wanted = np.sort(np.concatenate([there, between, stored[[0, -1]]]))
    with np.errstate(all="raise"):
        found = lower_bounds(stored, wanted)
    assert (found == np.searchsorted(stored, wanted)).all()


@given(
    st.lists(st.integers(0, MOST) | st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, MOST]), min_size=1, max_size=60),
    st.lists(st.integers(0, MOST), max_size=20),
)
def test_short_columns_whatever_is_in_them(stored: list[int], others: list[int]) -> None:
    column = np.array(sorted(stored), np.uint64)
    wanted = np.array(sorted(stored + [one for one in others if column[0] <= one <= column[-1]]), np.uint64)
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="raise"):
        patch.setattr(probe, "_LONG", 0)
        patch.setattr(probe, "_MANY", 0)
        patch.setattr(probe, "_STEPS", 2)
        assert (lower_bounds(column, wanted) == np.searchsorted(column, wanted)).all()
