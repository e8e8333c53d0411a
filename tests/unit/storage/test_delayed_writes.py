"""Files of state that become durable later: they can be read at once, and none is written twice or lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import AlreadyExistError, StorageError
from holdfast.kernel import fault
from holdfast.storage.delayed_writes import DelayedWrites
from holdfast.storage.local import LocalFileSystem


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def path_of(tmp_path: Path, name: str) -> str:
    return str(tmp_path / name)


def test_a_file_can_be_read_before_and_after_it_is_durable(tmp_path: Path) -> None:
    files, path = DelayedWrites(LocalFileSystem()), path_of(tmp_path, "a")
    files.write_state(path, [b"con", memoryview(b"tent")])
    assert not Path(path).exists()
    for _ in range(2):
        assert files.read(path) == b"content"
        assert files.read(path, 2, 3) == b"nte"
        assert files.read(path, 4) == b"ent"
        assert files.open_input(path).read() == b"content"
        assert bytes(files.mmap(path)) == b"content"
        assert files.exists(path)
        assert files.has_file(path)
        assert files.keeps_mapped(path)
        files.make_all_durable(files.kept())
    assert Path(path).read_bytes() == b"content"
    assert files.kept() == []


def test_only_the_files_of_a_snapshot_are_written(tmp_path: Path) -> None:
    files = DelayedWrites(LocalFileSystem())
    files.write_state(path_of(tmp_path, "a"), b"1")
    snapshot = files.kept()
    files.write_state(path_of(tmp_path, "b"), b"2")
    files.make_all_durable(snapshot)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert files.kept() == [path_of(tmp_path, "b")]


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_file_that_could_not_be_written_is_written_with_the_next_ones(tmp_path: Path, moment: str) -> None:
    files = DelayedWrites(LocalFileSystem())
    for name in "abc":
        files.write_state(path_of(tmp_path, name), name.encode())
    fault.install(f"{moment}:run.write:2=enospc")
    with pytest.raises((StorageError, fault.FaultInjectedError)):
        files.make_all_durable(files.kept())
    assert files.kept() == [path_of(tmp_path, "b"), path_of(tmp_path, "c")]
    assert files.read(path_of(tmp_path, "b")) == b"b"
    files.make_all_durable(files.kept())
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"a": "a", "b": "b", "c": "c"}


def test_a_file_of_somebody_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    files, path = DelayedWrites(LocalFileSystem()), path_of(tmp_path, "a")
    files.write_state(path, b"ours")
    Path(path).write_bytes(b"theirs")
    with pytest.raises(AlreadyExistError):
        files.make_all_durable(files.kept())
    assert Path(path).read_bytes() == b"theirs"
    assert files.read(path) == b"ours"
