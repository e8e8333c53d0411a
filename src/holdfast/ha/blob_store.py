"""Blobs: files of a job that every leader must be able to read, such as its code.

A key has the digest of the content, so that a damaged blob is noticed; and a random part, so that the same bytes stored
for two jobs are two blobs, and the end of one job deletes nothing of the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.errors import AlreadyExistError, CorruptFileError, NotExistError, StorageError
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.storage.file_system import FileSystem, join, parent

_CHUNK: Final = 1 << 20
_KEY: Final = re.compile(r"p-([0-9a-f]{64})-([0-9a-f]{32})")


@dataclass(frozen=True, order=True)
class BlobKey:
    """The name of a permanent blob.

    Attributes:
        digest: SHA-256 of its content in hexadecimal.
        random: 32 random hexadecimal digits.
    """

    digest: str
    random: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return a new key for the content of a file."""
        return cls(_digest(_chunks(path)), secrets.token_hex(16))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form of a key.

        Raises:
            ValueError: It is not one.
        """
        match = _KEY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the key of a blob.")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"p-{self.digest}-{self.random}"


class BlobStore(ABC):
    """Stores blobs where every process of the cluster can read them. All methods block; keys are unique."""

    @abstractmethod
    def put(self, local_file: Path, job_id: JobID, blob_key: BlobKey) -> bool:
        """Copy a local file into the store; return whether it is kept there.

        Raises:
            CorruptFileError: The file's content does not match the key.
            StorageError: It could not be written.
        """

    @abstractmethod
    def get(self, job_id: JobID, blob_key: BlobKey, local_file: Path) -> bool:
        """Copy a blob to a local file, which appears whole or not at all; return whether the store keeps blobs.

        Raises:
            NotExistError: There is no such blob.
            CorruptFileError: Its content does not match the key; no local file was made.
        """

    @abstractmethod
    def delete(self, job_id: JobID, blob_key: BlobKey) -> bool:
        """Delete a blob; return whether it is gone, also if it never existed."""

    @abstractmethod
    def delete_all(self, job_id: JobID) -> bool:
        """Delete all blobs of a job; return whether they are gone."""


class BlobStoreService(BlobStore):
    """A blob store that can be closed, and cleaned up."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; the blobs stay."""

    @abstractmethod
    def cleanup_all_data(self) -> None:
        """Delete all blobs of all jobs."""


class VoidBlobStore(BlobStoreService):
    """Keeps nothing, for clusters that do not outlive their process."""

    def put(self, local_file: Path, job_id: JobID, blob_key: BlobKey) -> bool:
        return False

    def get(self, job_id: JobID, blob_key: BlobKey, local_file: Path) -> bool:
        return False

    def delete(self, job_id: JobID, blob_key: BlobKey) -> bool:
        return True

    def delete_all(self, job_id: JobID) -> bool:
        return True

    def close(self) -> None: ...

    def cleanup_all_data(self) -> None: ...


class FileSystemBlobStore(BlobStoreService):
    """Blobs as files ``job_<job id>/blob_<key>`` of a directory that only the user of this process can read.

    Args:
        fs: The file system.
        directory: The directory; it is made when first needed.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def put(self, local_file: Path, job_id: JobID, blob_key: BlobKey) -> bool:
        if _digest(_chunks(local_file)) != blob_key.digest:
            raise CorruptFileError(str(local_file), None, f"its content is not that of blob {blob_key}.")
        self._fs.mkdirs(self._directory)
        self._fs.make_private(self._directory)
        with suppress(AlreadyExistError):
            self._fs.write_atomic(self._path(job_id, blob_key), _chunks(local_file))
        return True

    def get(self, job_id: JobID, blob_key: BlobKey, local_file: Path) -> bool:
        path = self._path(job_id, blob_key)
        temporary = local_file.with_name(f".{local_file.name}.{new_nonce()}.tmp")
        try:
            digest = hashlib.sha256()
            with self._fs.open_input(path) as source, temporary.open("xb") as target:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            if digest.hexdigest() != blob_key.digest:
                raise CorruptFileError(path, None, "its content is not what its key says; put the blob again.")
            temporary.replace(local_file)
        except OSError as error:
            raise StorageError(f"Could not copy blob {blob_key} to {str(local_file)!r}: {error}.") from error
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def delete(self, job_id: JobID, blob_key: BlobKey) -> bool:
        self._fs.delete_in(self._job_directory(job_id), f"blob_{blob_key}")
        self._fs.delete_directory(self._job_directory(job_id))
        return True

    def delete_all(self, job_id: JobID) -> bool:
        return self._delete_directory(self._job_directory(job_id))

    def close(self) -> None: ...

    def cleanup_all_data(self) -> None:
        """Delete all blobs, and the directory above them if nothing else is in it."""
        for entry in self._fs.list(self._directory):
            if entry.is_directory:
                self._delete_directory(join(self._directory, entry.name))
        self._fs.delete_directory(self._directory)
        self._fs.delete_directory(parent(self._directory))

    def _delete_directory(self, directory: str) -> bool:
        for name in self._fs.list_names(directory):
            self._fs.delete_in(directory, name)
        return self._fs.delete_directory(directory)

    def _job_directory(self, job_id: JobID) -> str:
        return join(self._directory, f"job_{job_id}")

    def _path(self, job_id: JobID, blob_key: BlobKey) -> str:
        return join(self._job_directory(job_id), f"blob_{blob_key}")

    def __repr__(self) -> str:
        return f"FileSystemBlobStore({self._directory!r})"


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError as error:
        raise NotExistError(f"There is no file {str(path)!r} to put.") from error
    except OSError as error:
        raise StorageError(f"Could not read {str(path)!r}: {error}.") from error


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
