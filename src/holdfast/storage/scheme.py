"""The file system of a path or URI, chosen by its scheme."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.storage.file_system import FileStatus, FileSystem, join, local_path
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.object_store import SCHEME, object_store_for

__all__ = ["FileStatus", "FileSystem", "LocalFileSystem", "file_system_for", "join", "local_path"]


def file_system_for(uri: str) -> FileSystem:
    """Return the file system of a path or URI; ``s3://`` is reached as the `s3.*` options of this process say.

    Raises:
        ConfigurationError: The path is empty, its scheme is unknown, or the package for it is not installed.
    """
    if not uri:
        raise ConfigurationError("The path is empty; name a directory, such as file:///data/checkpoints.")
    if local_path(uri) is not None:
        return LocalFileSystem()
    scheme = uri.partition("://")[0]
    if scheme == SCHEME:
        return object_store_for(uri)
    raise ConfigurationError(
        f"No file system for scheme {scheme!r} of {uri!r}; known are file://, s3:// and plain paths."
    )
