"""Which checkpoints go when a newer one has completed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.completed_checkpoint import subsume


def split(names, retained):
    return subsume(names, retained, lambda name: name.startswith(("sp", "stop")), lambda name: name.startswith("stop"))


@pytest.mark.parametrize(
    ("before", "retained", "after"),
    [
        (["cp1", "cp2", "sp1", "sp2", "sp3"], 1, ["cp2", "sp3"]),
        (["cp1", "sp1", "cp2"], 1, ["cp2"]),
        (["cp1", "sp1", "stop-sp"], 1, ["stop-sp"]),
        (["cp1", "cp2", "cp3"], 3, ["cp1", "cp2", "cp3"]),
        (["cp1", "cp2", "cp3", "cp4"], 3, ["cp2", "cp3", "cp4"]),
        (["cp1", "sp1"], 1, ["cp1", "sp1"]),
        (["sp1"], 1, ["sp1"]),
        (["sp1", "sp2"], 1, ["sp2"]),
        ([], 1, []),
    ],
)
def test_examples_of_the_contract(before, retained, after):
    stay, go = split(before, retained)
    assert stay == after
    assert go == [name for name in before if name not in after]


def test_at_least_one_is_retained():
    with pytest.raises(ValueError, match="At least one"):
        split(["cp1"], 0)


KINDS = st.lists(st.sampled_from(["cp", "sp", "stop"]), max_size=8)


@given(KINDS, st.integers(1, 4))
def test_a_recovery_always_finds_the_newest_and_the_newest_checkpoint(kinds, retained):
    before = [f"{kind}{number}" for number, kind in enumerate(kinds)]
    stay, _ = split(before, retained)
    assert stay[-1:] == before[-1:]
    checkpoints = [name for name in before if name.startswith("cp")]
    if checkpoints and not before[-1].startswith("stop"):
        assert checkpoints[-1] in stay
    assert len(stay) <= max(retained, 2)
    assert stay == [name for name in before if name in stay]
