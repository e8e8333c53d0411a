"""Several files are moved as one by one, only cheaper: what cannot be moved is said, and never stops the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import AlreadyExistError, NotExistError, StorageError
from holdfast.storage.file_system import FileSystem
from holdfast.storage.local import LocalFileSystem


class OneByOne(LocalFileSystem):
    """The local file system with the moving of the interface, which other file systems inherit."""

    rename_all = FileSystem.rename_all


@pytest.mark.parametrize("fs", [LocalFileSystem(), OneByOne()], ids=["at once", "one by one"])
def test_what_can_be_moved_is_moved_and_the_rest_is_told(fs: FileSystem, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    for name in ("a", "b", "taken"):
        (old / name).write_text(name)
    (new / "taken").write_text("before")
    names = ("a", "taken", "missing", "b")

    outcomes = fs.rename_all([(str(old / name), str(new / name)) for name in names])

    kinds = [None if outcome is None else type(outcome) for outcome in outcomes]
    assert kinds == [None, AlreadyExistError, NotExistError, None]
    assert [path.name for path in old.iterdir()] == ["taken"]
    assert {path.name: path.read_text() for path in new.iterdir()} == {"a": "a", "b": "b", "taken": "before"}
    assert fs.rename_all([]) == []


@pytest.mark.parametrize("fs", [LocalFileSystem(), OneByOne()], ids=["at once", "one by one"])
def test_what_fails_for_good_is_raised(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(StorageError):
        fs.rename_all([(str(tmp_path / "file"), str(tmp_path / "file" / "below"))])
