"""Versioned files, of which leases and stores are made, judged by the suite of fenced registers.

A register over a versioned file is fenced if the file's compare-and-set is one: with a writer stopped at any request
to the file system while others write up to a hundred versions and delete those behind the window.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ConflictError, CorruptFileError, FormatVersionError, StorageError
from holdfast.ha.file_system import NEVER_WRITTEN, FileVersion, VersionedFile
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system import FileSystem
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import GENESIS, FencedRegister, RegisterRecord
from holdfast.storage.state_handle import encode_document
from tests.contract.register_contract import Gate, RegisterContract, RegisterSite
from tests.stories.gated_file_system import GatedFileSystem


class VersionedRegister(FencedRegister):
    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._file = VersionedFile(fs, directory, "test", 1)
        self._versions: dict[str, FileVersion] = {GENESIS.nonce: NEVER_WRITTEN}

    def _load(self) -> RegisterRecord:
        version = self._file.load()
        record = GENESIS
        if version.number > 0:
            record = RegisterRecord.decode(version.body["record"].encode(), "test")
        self._versions[record.nonce] = version
        return record

    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        if base.nonce not in self._versions:
            raise ConflictError("never seen")
        self._versions[new.nonce] = self._file.swap(self._versions[base.nonce], {"record": new.encode().decode()})


class VersionedSite(RegisterSite):
    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def open(self, gate: Gate | None = None) -> FencedRegister:
        fs: FileSystem = LocalFileSystem()
        return VersionedRegister(fs if gate is None else GatedFileSystem(fs, gate), self._directory)


class TestVersionedFile(RegisterContract):
    ahead = (1, 2, 64, 65, 100)

    @pytest.fixture
    def new_site(self, tmp_path: Path) -> Callable[[], RegisterSite]:
        return lambda: VersionedSite(tmp_path / new_nonce())


def test_old_versions_are_deleted_and_what_crashed_writers_left_is_swept(tmp_path: Path) -> None:
    file = VersionedFile(LocalFileSystem(), str(tmp_path), "test", 1)
    version = file.load()
    for number in range(200):
        version = file.swap(version, {"number": number})
    (tmp_path / ".v-00000000000000000201.0123456789ab.tmp").write_bytes(b"half a ver")
    (tmp_path / "v-00000000000000000007").write_bytes(b"in a hole")
    file.sweep()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 65 and "trimmed" in names
    assert file.load().body == {"number": 199}
    file.remove()
    assert not tmp_path.exists()
    assert file.load() is NEVER_WRITTEN


def test_the_form_on_disk_is_that_of_earlier_releases(tmp_path: Path) -> None:
    file = VersionedFile(LocalFileSystem(), str(tmp_path), "test", 1)
    first = file.swap(file.load(), {"number": 0})
    document = encode_document("test", 1, {"body": {"number": 0}, "history": [first.nonce]})
    assert (tmp_path / "v-00000000000000000001").read_bytes() == document
    version = first
    for number in range(1, 65):
        version = file.swap(version, {"number": number})
    assert (tmp_path / "trimmed").read_bytes() == b"Version 1 was deleted.\n"


def test_damage_is_named(tmp_path: Path) -> None:
    file = VersionedFile(LocalFileSystem(), str(tmp_path), "test", 1)
    first = file.swap(file.load(), {"number": 1})
    path = tmp_path / "v-00000000000000000001"
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole.replace(b"number", b"numbeR"), b"", encode_document("test", 1, {"history": []})):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=path.name):
            file.load()
    path.write_bytes(encode_document("test", 2, {}))
    with pytest.raises(FormatVersionError, match=path.name):
        file.load()
    path.write_bytes(whole)
    assert file.load() == first


def test_files_that_were_deleted_by_hand_are_an_error_and_not_an_older_version(tmp_path: Path) -> None:
    file = VersionedFile(LocalFileSystem(), str(tmp_path), "test", 1)
    version = file.load()
    for number in range(3):
        version = file.swap(version, {"number": number})
    (tmp_path / "v-00000000000000000002").unlink()
    with pytest.raises(StorageError, match="bring them back"):
        file.load()


def test_a_writer_that_slept_while_the_document_was_removed_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "document"
    sleeper, other = (VersionedFile(LocalFileSystem(), str(directory), "test", 1) for _ in range(2))
    version = sleeper.load()
    for number in range(10):
        version = sleeper.swap(version, {"number": number})
    other.remove()
    with pytest.raises(ConflictError):
        sleeper.swap(version, {"number": 10})
    fresh = other.swap(other.load(), {"number": 100})
    with pytest.raises(ConflictError):
        sleeper.swap(version, {"number": 11})
    assert other.load() == fresh
