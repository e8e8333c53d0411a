"""Data files of a table in an object store, where a mark says that a file is not the table's yet.

An object has one name. So when the table gets a file, the store makes a copy of it where tools look that clean tables
up; and what a suffix says of files elsewhere, an object beside it says, because earlier releases left files of tables
where they were staged::

    <table>/_holdfast/marks/<incarnation>-<sink>/<name>.staged    before the file is written, as long as it is staged
                     /<incarnation>-<sink>/<name>.parquet         the file
           /data/<incarnation>-<sink>/<name>.parquet              its copy, when its checkpoint is complete

    marked --write--> staged --copy, commit--> the table has the copy --> the file goes, then the mark
      |                 |
      +-----------------+-- attempt is dead --> the file goes, then the mark

Marks have a folder of their own, because a sweep lists it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

from holdfast.datastream.connectors.table_directory import FOLDER, DataFile, TableDirectory, data_name, published_name
from holdfast.datastream.sinks.output_bucket import of_each
from holdfast.errors import NotExistError, StorageError
from holdfast.runtime.function.sink import CommitRequest
from holdfast.storage.file_system.scheme import join, local_path
from holdfast.storage.file_system.uploads import uploads_for

_MARKS: Final = f"{FOLDER}/marks"
_TEXT: Final = b"While this is here, the file of the same name is staged and no part of the table.\n"


class TableBucket(TableDirectory):
    """The directory of a table in an object store.

    Args:
        path: Its URI.
    """

    @contextmanager
    def open_staged(self, committable: dict[str, Any]) -> Iterator[BinaryIO]:
        """Opens an object for what a task stages, which is marked before it is there."""
        mark, target = self._mark(committable["staged"]), join(self.path, published_name(committable["staged"]))
        self._fs.write_atomic(mark, _TEXT)
        with uploads_for(self.path).open_object(target) as file:
            yield file
        if not self._fs.exists(mark):
            # Nobody would find what a task leaves that outlives its attempt.
            self._fs.delete(target)
            raise StorageError(f"{target!r} was swept while it was written: its attempt is dead.")

    def publish(self, requests: Sequence[CommitRequest]) -> list[DataFile]:
        """Copies files to where the table gets them."""
        of_each(requests, self._copy)
        return of_each(requests, self.whole_file)

    def _copy(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        source, target = (join(self.path, name(staged)) for name in (published_name, data_name))
        with suppress(NotExistError):
            uploads_for(target).copy(source, target)

    def release(self, requests: Sequence[CommitRequest]) -> None:
        """Removes what was copied, and the marks; a file without one may be the table's own."""
        of_each(requests, self._remove)

    def _remove(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        if self._fs.exists(self._mark(staged)):
            self._fs.delete(join(self.path, published_name(staged)))
            self._fs.delete(self._mark(staged))

    def staged_names(self, folder: str) -> list[str]:
        """The names of the marks."""
        return self._fs.list_names(self._mark(folder))

    def discard(self, folder: str, name: str) -> bool:
        """Removes a file and its mark, and uploads of it."""
        target = join(self.path, folder, published_name(name))
        uploads_for(target).abort_all(target)
        self._fs.delete(target)
        return self._fs.delete(self._mark(join(folder, name)))

    def _mark(self, staged: str) -> str:
        return join(self.path, _MARKS, staged.removeprefix(f"{FOLDER}/"))


def table_at(path: str) -> TableDirectory:
    """The directory of a table at an absolute path or URI."""
    return TableDirectory(path) if local_path(path) is not None else TableBucket(path)


def release(path: str, requests: Sequence[CommitRequest]) -> StorageError | None:
    """Lets go of the names under which tasks staged what the table has now; what stood against it, None for nothing."""
    try:
        if "staged" in requests[0].committable:
            table_at(path).release(requests)
    except StorageError as error:
        return error
    return None
