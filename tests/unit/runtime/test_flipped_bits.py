"""Bits of a small checkpoint are flipped: each is refused by the name of its file, and no value is ever wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.stories import flipped
from tests.stories.flipped import Small

STEP = 997
"""A prime: so all bits of a byte, and all parts of a file, have their turn. `tests/soak` flips every bit."""


def test_a_flipped_bit_anywhere_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    small = Small(tmp_path)
    assert small.values["ada"] == (2, ["n1", "n2"], {"r1": 0.5, "r2": 1.0})
    refused_of = {}
    for path in small.files():
        size = 8 * path.stat().st_size
        found = small.flipped(path, [*range(0, size, STEP), size - 1])
        refused_of[path.parent.name] = found.refused
        # Versions of the register before the last two are there for writers that slept.
        assert not found.harmless or path.parent.name == "register"
    assert refused_of.keys() == {"chk-1", "register", "shared"} and all(refused_of.values())
    assert small.read() == small.values


def fills() -> None:
    bytes(b"x" * (2 * flipped.MEBIBYTES << 20))


def asks_for_room() -> None:
    np.empty(2**36, np.uint8)


def spins() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("reads", "told"),
    [(fills, "MiB of memory"), (asks_for_room, "Unable to allocate"), (spins, "keeps the processor busy")],
)
def test_a_look_that_takes_long_or_much_room_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Callable[[], None], told: str
) -> None:
    small = Small(tmp_path)
    monkeypatch.setattr(flipped, "SECONDS", 0.2)
    monkeypatch.setattr(small, "read", lambda: reads() or small.values)
    with pytest.raises((AssertionError, MemoryError), match=told):
        small.flipped(small.files()[0], [0])
