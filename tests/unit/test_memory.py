"""Where the tests keep their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import memory


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       99999999 kB\nMemAvailable:   88888888 kB\n")
    return path


def test_a_directory_of_64_mb_has_no_room(tmp_path: Path, meminfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_BYTES", 1)
    assert memory.has_room(tmp_path, meminfo)
    monkeypatch.setattr(memory, "_BYTES", 1 << 60)
    assert not memory.has_room(tmp_path, meminfo)


def test_a_machine_without_much_memory_has_no_room(
    tmp_path: Path, meminfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_BYTES", 1)
    meminfo.write_text("MemTotal:       99999999 kB\nMemAvailable:    4000000 kB\n")
    assert not memory.has_room(tmp_path, meminfo)
    meminfo.write_text("of another system\n")
    assert not memory.has_room(tmp_path, meminfo)


def test_where_there_is_no_such_directory_or_nothing_says_how_much_is_free_there_is_no_room(
    tmp_path: Path, meminfo: Path
) -> None:
    assert not memory.has_room(tmp_path / "nowhere", meminfo)
    assert not memory.has_room(tmp_path, tmp_path / "nowhere")


def test_tests_and_their_processes_are_told_the_same_place(tmp_path: Path) -> None:
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        pytest.skip("there is no room in memory here")
    assert tmp_path.is_relative_to(os.environ["PYTEST_DEBUG_TEMPROOT"])
