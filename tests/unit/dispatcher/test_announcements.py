"""Notes by which clients find a job manager with a working directory of its own; processes die between two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dispatcher.announcements import announced, announced_directories


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home" / ".holdfast" / "jobmanagers"


def manager(place: Path) -> Path:
    place.mkdir()
    return place


def test_a_directory_is_found_while_its_job_manager_works(notes: Path, tmp_path: Path) -> None:
    directory = manager(tmp_path / "manager")
    assert announced_directories() == []
    with announced(directory):
        assert announced_directories() == [directory]
    assert announced_directories() == [] and list(notes.iterdir()) == []


def test_a_job_manager_that_died_before_its_note_was_complete_is_not_found(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    directory = manager(tmp_path / "manager")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", die)
        with announced(directory):
            pytest.fail("it has died")
    assert announced_directories() == []
    with announced(directory):
        assert announced_directories() == [directory], "the next one is found"


def test_the_note_of_a_killed_job_manager_goes_with_its_directory(notes: Path, tmp_path: Path) -> None:
    directory = manager(tmp_path / "manager")
    killed = announced(directory)
    killed.__enter__()
    assert announced_directories() == [directory], "clients then ask whether it answers"
    directory.rmdir()
    assert announced_directories() == [] and list(notes.iterdir()) == []


@pytest.mark.parametrize("text", ["", ".", "relative"])
def test_a_torn_note_names_no_directory(notes: Path, text: str) -> None:
    notes.mkdir(parents=True)
    (notes / "torn").write_text(text)
    assert announced_directories() == []


def test_a_home_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with announced(tmp_path):
        assert announced_directories() == []
