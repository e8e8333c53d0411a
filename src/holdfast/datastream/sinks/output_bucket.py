"""Output in an object store, where a staged file is an upload that nobody has completed.

An object cannot be renamed. So a task begins an upload of the object with the final name, and the driver completes it::

    <path>/.holdfast/<incarnation>-<sink>/<token>-<epoch>-...staged   says which object is uploaded, before it is
    <path>/<bucket>/part-<epoch>-<subtask>-<nonce>                    an upload, then an object

    marked --begin, send parts--> uploaded --complete--> object        the mark goes then
      |                             |
      +-- attempt is dead ----------+--> aborted, then the mark goes

Completing an upload takes it away, so it comes to readers once, as a file does that is renamed. But where neither the
upload nor the object is there, and the commit had begun, nobody can tell whether a reader has taken the object or the
store has dropped the upload: that is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, TypeVar

from holdfast.datastream.sinks.output_directory import OutputDirectory, StagedFile, StagedFiles
from holdfast.errors import ConfigurationError, CorruptFileError, NotExistError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import RefusedElementError
from holdfast.storage.file_system.path import is_in_directory
from holdfast.storage.file_system.scheme import join, local_path
from holdfast.storage.file_system.uploads import Uploads, uploads_for
from holdfast.storage.handle.document import decode_document, encode_document

logger = get_logger(__name__)

_KIND: Final = "staged-upload"
_VERSION: Final = 1
_LONGEST_KEY: Final = 1024
"""Bytes of UTF-8 that S3 takes as a key."""
_REQUESTS: Final = 16
"""So many are sent at once: each is a journey to the store and back."""
_T = TypeVar("_T")
_Item = TypeVar("_Item")


class OutputBucket(OutputDirectory):
    """A directory of output in an object store.

    Args:
        path: Its URI.
    """

    @property
    def _uploads(self) -> Uploads:
        return uploads_for(self.path)

    def require_nameable(self, final: str) -> None:
        try:
            key = join(self.path, final).removeprefix("s3://").partition("/")[2].encode()
        except UnicodeEncodeError as error:
            raise RefusedElementError(f"no object can be called {final!r:.60}: {error}") from error
        if len(key) > _LONGEST_KEY:
            raise RefusedElementError(
                f"an object for {final!r:.60}... would have a key of {len(key):,} bytes, of which object stores take "
                f"{_LONGEST_KEY:,}"
            )

    @contextmanager
    def open_staged(self, committable: dict[str, Any]) -> Iterator[BinaryIO]:
        """Begins an upload, whose id the committable gets."""
        target = join(self.path, committable["final"])
        # Whoever sweeps after a task that has died finds its upload by this, so it is there first.
        mark = encode_document(_KIND, _VERSION, {"final": committable["final"]})
        self._fs.write_atomic(join(self.path, committable["staged"]), mark)
        upload = committable["upload"] = self._uploads.begin(target)
        with self._uploads.open_output(target, upload) as file:
            yield file

    def missing(self, files: StagedFiles) -> list[str]:
        """The staged files whose uploads are not there."""
        sizes = of_each(files, lambda file: self._uploads.size(join(self.path, file.final), file.upload))
        return [file.staged for file, size in zip(files, sizes, strict=True) if size is None]

    def move(self, files: StagedFiles) -> None:
        """Completes the uploads that are there.

        Raises:
            ConfigurationError: One is not, and the object neither.
        """
        of_each(files, self._complete)
        of_each(files, lambda file: self._fs.delete(join(self.path, file.staged)))

    def _complete(self, file: StagedFile) -> None:
        target = join(self.path, file.final)
        if self._uploads.complete(target, file.upload) or self._fs.exists(target):
            return
        raise ConfigurationError(
            f"Neither the upload {file.upload!r} of {target!r} is there nor the object. Its commit had begun: either "
            "it came to its end, and a reader has taken the object since, or the store has dropped the upload (a rule "
            "of the bucket may abort uploads that take long). If a reader has it, put an empty object of that name "
            "there, and the job goes on; if not, start from an earlier checkpoint (-s PATH)."
        )

    def require_moved(self, identity: str, files: StagedFiles) -> None:
        """Nothing: a store that is away does not answer, and leaves no empty directory in its place."""

    def discard(self, folder: str, name: str) -> bool:
        """Aborts the upload of a dead attempt, and removes its mark."""
        path = join(self.path, folder, name)
        try:
            final = decode_document(self._fs.read(path), path, _KIND, _VERSION).get("final")
        except NotExistError:
            return False
        if type(final) is not str or not is_in_directory(final):
            raise CorruptFileError(path, None, "it names no object of its directory.")
        self._uploads.abort_all(join(self.path, final))
        return self._fs.delete(path)

    def name_again(self, path: str, second: str) -> None:
        """Copies an object, which has one name."""
        self._fs.create_exclusive(second, self._fs.read(path))


def of_each(items: Iterable[_Item], ask: Callable[[_Item], _T]) -> list[_T]:
    """What a store answers for each item; several are asked for at once. Blocks."""
    with ThreadPoolExecutor(_REQUESTS, "holdfast-uploads") as pool:
        return list(pool.map(ask, items))


def output_at(path: str) -> OutputDirectory:
    """The directory of output at a path or URI."""
    return OutputDirectory(path) if local_path(path) is not None else OutputBucket(path)
