"""Bits of a small checkpoint are flipped: each is refused by the name of its file, and no value is ever wrong."""

from __future__ import annotations

from pathlib import Path

from tests.stories.flipped import Small

STEP = 997
"""A prime: so all bits of a byte, and all parts of a file, have their turn. `tests/soak` flips every bit."""


def test_a_flipped_bit_anywhere_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    small = Small(tmp_path)
    assert small.values["ada"] == (2, ["n1", "n2"], {"r1": 0.5, "r2": 1.0})
    refused_of = {}
    for path in small.files():
        size = 8 * path.stat().st_size
        refused, harmless = small.flipped(path, iter([*range(0, size, STEP), size - 1]))
        refused_of[path.parent.name] = refused
        # Versions of the register before the last two are there for writers that slept.
        assert not harmless or path.parent.name == "register"
    assert refused_of.keys() == {"chk-1", "register", "shared"} and all(refused_of.values())
    assert small.read() == small.values
