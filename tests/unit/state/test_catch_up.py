"""A cache is brought up to a version by reading what it has missed, whatever was merged meanwhile: never less."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.run_file import RECENT, Lineage, RunHandle
from holdfast.state.version import StateVersion, catch_up


def leaf(number: int) -> Lineage:
    return Lineage.of_leaf(f"run-{number}")


def prefix(count: int) -> Lineage:
    """What a cache has that followed `count` epochs."""
    return Lineage.of_all(map(leaf, range(count)))


def run(start: int, end: int) -> RunHandle:
    """The run of one epoch, or one that was merged from those of several."""
    merged = None if end == start + 1 else Lineage.of_all(map(leaf, range(start, end)))
    return RunHandle(f"run-{start}", 1, 1, "", (0, 7), {}, 1, end, compacted=merged)


@given(st.lists(st.sampled_from([1, 1, 1, 2, 3, 7]), max_size=8), st.data())
def test_nothing_that_was_missed_is_left_out(sizes: list[int], data: st.DataObject) -> None:
    ends = list(accumulate(sizes))
    version = StateVersion(tuple(run(end - size, end) for size, end in zip(sizes, ends, strict=True)))
    known = data.draw(st.integers(0, sum(sizes)))
    found = catch_up(version, prefix(known), None)
    if found is None:
        assert sum(sizes) - known > RECENT or known not in (0, *ends)
        return
    before = sum(sizes[: found.after])
    if found.is_within:
        assert before < known < before + sizes[found.after]
    else:
        assert before == known


@given(st.lists(st.sampled_from([1, 1, 2, 3]), max_size=8), st.integers(0, 30))
def test_a_cache_that_is_ahead_by_its_own_run_goes_on_from_what_it_had_before(sizes: list[int], known: int) -> None:
    ends = list(accumulate(sizes))
    version = StateVersion(tuple(run(end - size, end) for size, end in zip(sizes, ends, strict=True)))
    lost = prefix(known) + Lineage.of_leaf("lost")
    found = catch_up(version, lost, prefix(known))
    expected = catch_up(version, prefix(known), None)
    assert catch_up(version, lost, None) is None
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.after, found.is_within, found.is_own_lost) == (expected.after, expected.is_within, True)
