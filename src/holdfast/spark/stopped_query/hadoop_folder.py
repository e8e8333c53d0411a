"""A directory on any file system that Spark reads, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.errors import NotExistError, StorageError


class HadoopFolder:
    """Lists and reads what lies below a directory; hidden files, such as checksums, are not there.

    Args:
        session: Of Spark, which knows the file systems.
        path: The directory, as Spark takes it.

    Raises:
        StorageError: Spark knows no such file system.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        jvm = session.sparkContext._jvm
        assert jvm is not None
        self._jvm: Any = jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        try:
            self._fs: Any = place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            raise _failed("list", path, error) from error
        whole = self._fs.makeQualified(place)
        self.path = str(whole.toString())
        self.is_escaped = str(whole.toUri().toString()) != self.path  # a space, a % or the like is in it

    def names(self, folder: str = "") -> list[str]:
        """The files and folders in a folder; none if it does not exist. Blocks.

        Raises:
            StorageError: It cannot be listed.
        """
        return [name for name, _ in self._entries(folder)]

    def files(self, folder: str) -> Iterator[str]:
        """All files below a folder, by their paths below it, in order. Blocks.

        Raises:
            StorageError: Something cannot be listed.
        """
        for name, is_folder in self._entries(folder):
            if is_folder:
                yield from (f"{name}/{inner}" for inner in self.files(f"{folder}/{name}"))
            else:
                yield name

    def read(self, file: str) -> bytes:
        """What is in a file. Blocks.

        Raises:
            NotExistError: It is not there.
            StorageError: It cannot be read.
        """
        place = self._place(file)
        try:
            if not self._fs.exists(place):
                raise NotExistError(f"There is no file {self.path}/{file}.")
            stream = self._fs.open(place)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _failed("read", f"{self.path}/{file}", error) from error

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        place = self._place(folder)
        try:
            if not self._fs.exists(place):
                return []
            found = [(str(one.getPath().getName()), bool(one.isDirectory())) for one in self._fs.listStatus(place)]
        except Py4JJavaError as error:
            raise _failed("list", f"{self.path}/{folder}", error) from error
        return sorted((name, is_folder) for name, is_folder in found if not name.startswith((".", "_")))

    def _place(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)


def _failed(what: str, path: str, error: Py4JJavaError) -> StorageError:
    return StorageError(f"Spark cannot {what} {path!r}: {error.java_exception.getMessage()}")
