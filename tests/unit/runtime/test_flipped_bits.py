"""Bits of a small checkpoint are flipped: each is refused by the name of its file, and no value is ever wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.stories import flipped
from tests.stories.flipped import KINDS, Full, Small

STEP = 997
"""A prime: so all bits of a byte, and all parts of a file, have their turn. `tests/soak` flips every bit."""


@pytest.mark.parametrize(
    ("kind", "directories"),
    [
        ("keyed state", {"chk-1", "register", "shared"}),
        ("everything", {"chk-1", "register", "shared", "taskowned"}),
        ("savepoint", {"savepoint", "shared"}),
    ],
)
def test_a_flipped_bit_anywhere_is_rejected_with_the_file_name(
    tmp_path: Path, kind: str, directories: set[str]
) -> None:
    small, refused_of = KINDS[kind](tmp_path), Counter[str]()
    for path in small.files():
        size = 8 * path.stat().st_size
        found = small.flipped(path, [*range(0, size, STEP), size - 1])
        refused_of[path.parent.name.partition("-")[0] if kind == "savepoint" else path.parent.name] += found.refused
        # Versions of the register before the last two are there for writers that slept.
        assert not found.harmless or path.parent.name == "register"
    assert refused_of.keys() == directories and all(refused_of.values())
    assert small.read() == small.values


def test_the_flipped_checkpoint_has_every_kind_of_state(tmp_path: Path) -> None:
    assert Small(tmp_path / "small").values["ada"] == (2, ["n1", "n2"], {"r1": 0.5, "r2": 1.0})
    for is_savepoint in (False, True):
        metadata, tables, printed = Full(tmp_path / str(is_savepoint), is_savepoint=is_savepoint).values
        assert metadata.is_savepoint is is_savepoint
        rows = [row for table in tables.values() for row in table if "domain" in row]
        timers = {(row["key"], row["domain"], row["timestamp"]) for row in rows}
        assert timers == {
            ("kelp", "event", 10_001), ("kelp", "processing", 20_001),
            ("rock", "event", 10_002), ("rock", "processing", 20_002),
        }  # fmt: skip
        assert [row["value"] for row in tables["dealing", "split"]] == [1, 2]
        assert [row["value"] for row in tables["dealing", "union"]] == ["kelp", "rock"]
        assert tables["dealing", "shared"] == [{"key": "kelp", "value": 1}, {"key": "rock", "value": 2}]
        assert printed == ("" if is_savepoint else "+I[kelp,1]\n+I[rock,2]\n")


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
    if reads is spins:
        monkeypatch.setattr(flipped, "SECONDS", 0.2)
    monkeypatch.setattr(small, "read", lambda: reads() or small.values)
    with pytest.raises((AssertionError, MemoryError), match=told):
        small.flipped(small.files()[0], [0])
