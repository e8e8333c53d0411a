"""Files in an S3-compatible object store: ``s3://bucket/prefix``.

An object appears whole or not at all, and every write is conditional (``If-None-Match: *``), so none is ever replaced.
Each write carries a nonce in the object's metadata: after a refusal or a lost answer the object is looked at, so that
a write that the client had to repeat is not taken for somebody else's.

A store that ignores the condition would let two drivers write the same version. It is refused before the first write:
one probe object is created twice, and the second attempt must fail.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Final

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system.file import FileStatus, FileSystem
from holdfast.storage.file_system.local import temporary_name
from holdfast.storage.file_system.object_reader import ObjectReader
from holdfast.storage.file_system.path import base_name, join, parent
from holdfast.storage.file_system.s3_connection import S3Options, brief, connect, is_refusal, translate
from holdfast.storage.file_system.s3_options import current_s3_options

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_Listing = list[FileStatus]
_Names = list[str]
SCHEME: Final = "s3"
_NONCE: Final = "holdfast-nonce"
_READ_AHEAD: Final = 4 * 1024 * 1024


def object_store_for(uri: str, options: S3Options | None = None) -> ObjectStoreFileSystem:
    """Return the file system of the bucket that a URI names.

    Without options those of this process count, and one is kept for each bucket as long as they and the environment
    variables stay the same, so that its connections and its probe are shared.

    Raises:
        ConfigurationError: The URI names no bucket, obstore is not installed, or the configuration is not valid.
    """
    bucket = uri.removeprefix(f"{SCHEME}://").partition("/")[0]
    if not uri.startswith(f"{SCHEME}://") or not bucket:
        raise ConfigurationError(f"{uri!r} names no bucket; write s3://bucket/directory.")
    if options is not None:
        return ObjectStoreFileSystem(bucket, options)
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _shared(bucket, current_s3_options(), variables, os.getpid())


@lru_cache(maxsize=32)
def _shared(
    bucket: str, options: S3Options, _variables: tuple[tuple[str, str], ...], _process: int
) -> ObjectStoreFileSystem:
    return ObjectStoreFileSystem(bucket, options)


class ObjectStoreFileSystem(FileSystem):
    """The objects of one bucket; a directory is what the names of objects have in common.

    A file that is written is held in memory until it is complete, and sent with one request: stores take up to 5 GB.

    Args:
        bucket: The bucket; it must exist.
        options: How to reach the store.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._store = connect(bucket, options)
        self._lock = threading.Lock()
        self._honours_conditions = False

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object from an offset; fewer than asked for if it ends before."""
        import obstore

        key = self._key(path)
        if length == 0:
            self._head(path, "read")
            return b""
        options: GetOptions = {}
        if length is not None:
            options["range"] = (offset, offset + length)
        elif offset:
            options["range"] = {"offset": offset}
        try:
            return obstore.get(self._store, key, options=options).bytes().to_bytes()
        except Exception as error:
            # The store refuses a range that begins at the end.
            if "status code: 416" in str(error) and self._head(path, "read")["size"] <= offset:
                return b""
            raise translate(error, "read", path) from error

    def open_input(self, path: str) -> BinaryIO:
        """Open an object for reading; it is fetched in pieces as they are needed."""
        size = self._head(path, "read")["size"]
        return io.BufferedReader(ObjectReader(self, path, size), min(_READ_AHEAD, max(size, 1)))

    def mmap(self, path: str) -> memoryview:
        """Fetch the whole object into memory."""
        return memoryview(self.read(path))

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Open a new object that appears when the context is left without an error."""
        self._key(path)
        with io.BytesIO() as buffer:
            yield buffer
            try:
                self.create_exclusive(path, buffer.getvalue())
            except PossibleInconsistentStateError as error:
                raise StorageError(str(error)) from error

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create an object if, and only if, nobody else has."""
        key = self._key(path)
        self._require_conditions(path)
        nonce = new_nonce()
        try:
            self._put(key, data, nonce)
        except Exception as error:
            failure = translate(error, "create", path)
            if isinstance(failure, NotExistError):  # no object has to be there; what is missing is the bucket
                failure = StorageError(f"Could not create {path!r}: {brief(error)}")
            if is_refusal(error) and not isinstance(failure, AlreadyExistError):
                raise failure from error
            if self._is_own(path, nonce, error):
                return
            if isinstance(failure, AlreadyExistError):
                raise failure from error
            raise _unknown_outcome(path, error) from error

    def _put(self, key: str, data: bytes, nonce: str) -> None:
        import obstore

        obstore.put(self._store, key, data, mode="create", use_multipart=False, attributes={_NONCE: nonce})

    def _is_own(self, path: str, nonce: str, error: Exception) -> bool:
        import obstore

        try:
            return obstore.get(self._store, self._key(path)).attributes.get(_NONCE) == nonce
        except FileNotFoundError:
            return False
        except Exception as second:
            raise _unknown_outcome(path, error) from second

    def _require_conditions(self, path: str) -> None:
        from obstore.exceptions import AlreadyExistsError

        with self._lock:
            if self._honours_conditions:
                return
            probe = join(parent(path), temporary_name("holdfast-probe"))
            key = self._key(probe)
            try:
                self._put(key, b"Made to see whether the store honours If-None-Match.\n", new_nonce())
                self._put(key, b"The store does not honour it.\n", new_nonce())
            except AlreadyExistsError:
                self._honours_conditions = True
            except Exception as error:
                failure = translate(error, "create", probe)
                if isinstance(failure, NotExistError):
                    failure = StorageError(f"Could not create {probe!r}: {brief(error)}")
                raise failure from error
            finally:
                with suppress(HoldfastError):
                    self.delete(probe)
            if not self._honours_conditions:
                raise StorageError(
                    f"The store of s3://{self._bucket} ignores the condition If-None-Match: it let the object "
                    f"{probe!r} be created twice, so two drivers could not be kept apart on it. Nothing was written. "
                    "Use a store, or a newer version of it, that has conditional writes."
                )

    def list(self, path: str) -> _Listing:
        """Return the entries of a directory in order of name; none if it does not exist."""
        import obstore

        key = self._key(path)
        try:
            found = obstore.list_with_delimiter(self._store, key or None)
        except Exception as error:
            raise translate(error, "list", path) from error
        entries = [FileStatus(base_name(prefix), 0, 0, True) for prefix in found["common_prefixes"]]
        # A console makes an empty object with the directory's own name.
        entries += [_status(entry) for entry in found["objects"] if entry["path"] != key]
        return sorted(entries)

    def list_names(self, path: str) -> _Names:
        """Return the names in a directory; none if it does not exist."""
        return [entry.name for entry in self.list(path)]

    def status(self, path: str) -> FileStatus:
        """Return size and time of an object."""
        try:
            return _status(self._head(path, "look at"))
        except NotExistError:
            if self._is_directory(path):
                return FileStatus(base_name(path), 0, 0, True)
            raise

    def exists(self, path: str) -> bool:
        """Whether there is an object, or one below."""
        try:
            self._head(path, "look at")
        except NotExistError:
            return self._is_directory(path)
        return True

    def _head(self, path: str, action: str) -> ObjectMeta:
        import obstore

        key = self._key(path)
        if not key:
            raise NotExistError(f"Could not {action} {path!r}: it is the bucket, and no object.")
        try:
            return obstore.head(self._store, key)
        except Exception as error:
            raise translate(error, action, path) from error

    def _is_directory(self, path: str) -> bool:
        import obstore

        key = self._key(path)
        try:
            return any(obstore.list(self._store, key or None, chunk_size=1))
        except Exception as error:
            raise translate(error, "look at", path) from error

    def mkdirs(self, path: str) -> None:
        """Do nothing: a directory is there as soon as something is in it."""
        self._key(path)

    def delete(self, path: str) -> bool:
        """Delete an object; returns whether it was there."""
        import obstore

        try:
            self._head(path, "delete")
        except NotExistError:
            return False
        try:
            obstore.delete(self._store, self._key(path))
        except Exception as error:
            raise translate(error, "delete", path) from error
        return True

    def delete_directory(self, path: str) -> bool:
        """Return whether nothing is in a directory, which then is not there."""
        return not self._is_directory(path)

    def link(self, source: str, target: str) -> None:
        """Refuse: an object has one name."""
        raise StorageError(f"{source!r} cannot get the second name {target!r}: an object has one. Copy it.")

    def rename(self, source: str, target: str) -> None:
        """Create the object again under another name, unless that is taken, and delete the first one.

        The content goes through this process: few stores can make a copy of their own conditional.
        """
        self.write_atomic(target, self.read(source))
        self.delete(source)

    def _key(self, path: str) -> str:
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != SCHEME or bucket != self._bucket:
            raise ConfigurationError(f"{path!r} is not in s3://{self._bucket}.")
        key = key.rstrip("/")
        if key and not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise ConfigurationError(f"{path!r} has an empty part, or one of dots alone; leave it out.")
        return key

    def __repr__(self) -> str:
        return f"ObjectStoreFileSystem({self._bucket!r})"


def _status(entry: ObjectMeta) -> FileStatus:
    return FileStatus(base_name(entry["path"]), entry["size"], int(entry["last_modified"].timestamp() * 1000))


def _unknown_outcome(path: str, error: Exception) -> PossibleInconsistentStateError:
    return PossibleInconsistentStateError(
        f"It is not known whether {path!r} was created, because the request failed: {brief(error)}"
    )
