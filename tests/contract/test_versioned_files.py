"""Versioned files, on which leases and stores are built, pass the contract of fenced registers.

A register over a versioned file is fenced if the file's compare-and-set is one: with a writer stopped at any request
to the file system while others write up to a hundred versions and delete those behind the window.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConflictError, CorruptFileError, FormatVersionError, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system import FileSystem
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import GENESIS, REGISTER_FORMAT, FencedRegister, RegisterRecord
from holdfast.storage.state_handle import encode_document
from holdfast.storage.versioned_document import (
    BodyVersion,
    DocumentFormat,
    FileDocument,
    VersionedDocument,
    body_format,
)
from tests.contract.register_contract import Gate, RegisterContract, RegisterSite
from tests.stories.gated_file_system import GatedFileSystem

Body = dict[str, Any]
FORMAT: DocumentFormat[BodyVersion[Body]] = body_format("test", 1, {}, lambda body: body, dict)


class FileBody(FileDocument[BodyVersion[Body]]):
    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__(fs, directory, FORMAT)

    def write(self, base: BodyVersion[Body], body: Body) -> BodyVersion[Body]:
        new = base.successor(body)
        self.replace(base, new)
        return new


class RegisterInBody(VersionedDocument[RegisterRecord]):
    """A register whose every version is the body of a version of a file."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        super().__init__(REGISTER_FORMAT)
        self._file = FileBody(fs, directory)
        self._versions = {GENESIS.nonce: FORMAT.never_written}

    def read(self) -> RegisterRecord:
        version = self._file.read()
        record = GENESIS
        if version.number > 0:
            record = RegisterRecord.decode(version.body["record"].encode(), "test")
        self._versions[record.nonce] = version
        return record

    def _write_next(self, base: RegisterRecord, new: RegisterRecord) -> None:
        if base.nonce not in self._versions:
            raise ConflictError("never seen")
        self._versions[new.nonce] = self._file.write(self._versions[base.nonce], {"record": new.encode().decode()})


class VersionedSite(RegisterSite):
    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def open(self, gate: Gate | None = None) -> FencedRegister:
        fs: FileSystem = LocalFileSystem()
        return FencedRegister(RegisterInBody(fs if gate is None else GatedFileSystem(fs, gate), self._directory))


class TestVersionedFile(RegisterContract):
    ahead = (1, 2, 64, 65, 100)

    @pytest.fixture
    def new_site(self, tmp_path: Path) -> Callable[[], RegisterSite]:
        return lambda: VersionedSite(tmp_path / new_nonce())


def test_old_versions_are_deleted_and_files_of_crashed_writers_are_swept(tmp_path: Path) -> None:
    file = FileBody(LocalFileSystem(), str(tmp_path))
    version = file.read()
    for number in range(200):
        version = file.write(version, {"number": number})
    (tmp_path / ".v-00000000000000000201.0123456789ab.tmp").write_bytes(b"half a ver")
    (tmp_path / "v-00000000000000000007").write_bytes(b"in a hole")
    file.sweep()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 65 and "trimmed" in names
    assert file.read().body == {"number": 199}
    file.delete_all()
    assert not tmp_path.exists()
    assert file.read() is FORMAT.never_written


def test_the_format_on_disk_is_that_of_earlier_releases(tmp_path: Path) -> None:
    file = FileBody(LocalFileSystem(), str(tmp_path))
    first = file.write(file.read(), {"number": 0})
    document = encode_document("test", 1, {"body": {"number": 0}, "history": [first.nonce]})
    assert (tmp_path / "v-00000000000000000001").read_bytes() == document
    version = first
    for number in range(1, 65):
        version = file.write(version, {"number": number})
    assert (tmp_path / "trimmed").read_bytes() == b"Version 1 was deleted.\n"


def test_a_damaged_version_is_named(tmp_path: Path) -> None:
    file = FileBody(LocalFileSystem(), str(tmp_path))
    first = file.write(file.read(), {"number": 1})
    path = tmp_path / "v-00000000000000000001"
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole.replace(b"number", b"numbeR"), b"", encode_document("test", 1, {"history": []})):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=path.name):
            file.read()
    path.write_bytes(encode_document("test", 2, {}))
    with pytest.raises(FormatVersionError, match=path.name):
        file.read()
    path.write_bytes(whole)
    assert file.read() == first


def test_files_that_were_deleted_by_hand_are_an_error_and_not_an_older_version(tmp_path: Path) -> None:
    file = FileBody(LocalFileSystem(), str(tmp_path))
    version = file.read()
    for number in range(3):
        version = file.write(version, {"number": number})
    (tmp_path / "v-00000000000000000002").unlink()
    with pytest.raises(StorageError, match="bring them back"):
        file.read()


def test_a_writer_that_slept_while_the_document_was_removed_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "document"
    sleeper, other = (FileBody(LocalFileSystem(), str(directory)) for _ in range(2))
    version = sleeper.read()
    for number in range(10):
        version = sleeper.write(version, {"number": number})
    other.delete_all()
    with pytest.raises(ConflictError):
        sleeper.write(version, {"number": 10})
    fresh = other.write(other.read(), {"number": 100})
    with pytest.raises(ConflictError):
        sleeper.write(version, {"number": 11})
    assert other.read() == fresh
