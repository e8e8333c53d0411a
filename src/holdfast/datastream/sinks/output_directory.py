"""What a directory of output says of itself: which directory it is, and which epochs have been committed into it.

::

    <path>/.holdfast/identity                                  a UUID, made once, kept in checkpoints
                     <incarnation>-<sink>/                     staged files
                     <incarnation>-<sink>/ledger/<epoch>.begun the intent: all staged files of the epoch were seen
                                                 <epoch>.done  the last of them has its final name, durably

    seen --put if absent--> begun --rename each, sync--> moved --second name--> done
      |                       |                            |
      |                       |                            +-- the directory is still the same
      |                       +-- a staged file that is not there has been renamed by an earlier try
      +-- a staged file that is not there is lost, or on a disk that is not mounted: refused

A file is renamed, never linked and removed: so it has one name at any time, and comes to readers once, also if one of
them takes it away between two tries. Epochs are committed in their order, so the highest intent of an incarnation says
that all epochs below it are done; it stays for ever, those below it go.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from holdfast.errors import AlreadyExistError, ConfigurationError, CorruptFileError, NotExistError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import RefusedElementError
from holdfast.storage.file_system import is_in_directory, join, local_path, parent
from holdfast.storage.local import final_name
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import decode_document, encode_document
from holdfast.storage.uploads import Uploads, uploads_for

HIDDEN_FOLDER: Final = ".holdfast"
IDENTITY: Final = "identity"
LEDGER: Final = "ledger"
_KIND: Final = "commit-intent"
_VERSION: Final = 1
_MARK: Final = re.compile(r"([0-9]{9,19})\.(begun|done)")


class StagedFile(NamedTuple):
    """A file that a task has staged.

    Attributes:
        staged: Its name, relative to the directory.
        final: The name that it gets, relative to the directory.
        upload: In an object store the upload that becomes the object.
    """

    staged: str
    final: str
    upload: str = ""


StagedFiles = Sequence[StagedFile]


class OutputDirectory:
    """A directory of output that is known by more than its path.

    Args:
        path: The directory, an absolute path or URI.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = file_system_for(path)
        self._identity_path = join(path, HIDDEN_FOLDER, IDENTITY)

    def identity(self) -> str | None:
        """What the directory calls itself, None if it has no identity. Blocks."""
        try:
            return self._fs.read(self._identity_path).decode("ascii", "replace").strip()
        except NotExistError:
            return None

    def make_identity(self) -> str:
        """The identity of the directory, which is given one if it has none. Blocks."""
        found = self.identity()
        if found is None:
            made = str(uuid.uuid4())
            try:
                self._fs.create_exclusive(self._identity_path, f"{made}\n".encode())
            except AlreadyExistError:
                found = self.identity() or made
            else:
                return made
        # Checkpoints will name it, and whoever made it may have died before it was durable.
        self._fs.make_durable(self._identity_path)
        return found

    def require(self, identity: str) -> None:
        """Makes sure that the directory is the one of this identity. Blocks.

        Raises:
            StorageError: It is another one, or not there.
        """
        found = self.identity()
        if found != identity:
            what = "has no identity" if found is None else f"calls itself {found!r}"
            raise StorageError(
                f"{self.path!r} is not the directory that the job writes into: that one is {identity!r}, and this one "
                f"{what} ({self._identity_path!r}). Probably it is not mounted, on this host. Nothing was written or "
                "committed; mount it, and the job goes on. If you have made it anew on purpose, write the identity "
                "into that file."
            )

    def open_staged(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        """Opens a file for what a task stages; what identifies it to the committer may gain by it."""
        return self._fs.open_output(join(self.path, committable["staged"]))

    def require_nameable(self, final: str) -> None:
        """Makes sure, in a task, that a file may get a name; who finds out at the commit would try that for ever.

        Raises:
            RefusedElementError: It may not.
        """

    def missing(self, files: StagedFiles) -> list[str]:
        """The staged files that are not there."""
        return [file.staged for file in files if not self._fs.exists(join(self.path, file.staged))]

    def move(self, files: StagedFiles) -> None:
        """Gives the staged files that are there their final names, durably."""
        for bucket in dict.fromkeys(parent(file.final) for file in files if "/" in file.final):
            self._fs.mkdirs(join(self.path, bucket))
        self._fs.move_all([(join(self.path, file.staged), join(self.path, file.final)) for file in files])

    def require_moved(self, identity: str, files: StagedFiles) -> None:
        """Makes sure that files were moved in the directory of this identity: a mount may go away at any moment.

        Where it was away, nothing was there to be moved, which looks as if a consumer had taken all.

        Raises:
            StorageError: It is not there, or was not, and is again.
        """
        is_whole = len(self.missing(files)) == len(files)
        self.require(identity)
        if not is_whole:
            raise StorageError(f"{self.path!r} went away while files were committed into it, and is there again.")

    def discard(self, folder: str, name: str) -> bool:
        """Removes what a dead attempt has staged under a name in a folder; returns whether it was there."""
        return self._fs.delete_in(join(self.path, folder), name)

    def name_again(self, path: str, second: str) -> None:
        """Gives a file a second name.

        Raises:
            AlreadyExistError: Something has that name.
            NotExistError: The file is not there.
        """
        self._fs.link(path, second)


class CommitLedger:
    """The epochs of one incarnation and sink that were committed into a directory.

    Args:
        directory: The directory.
        folder: Where the incarnation and sink stage, relative to it.
    """

    def __init__(self, directory: OutputDirectory, folder: str) -> None:
        self._directory = directory
        self._place = join(directory.path, folder, LEDGER)
        self._fs = file_system_for(directory.path)

    def last_epoch(self) -> int | None:
        """The highest epoch whose commit has begun, None if there is none. Blocks."""
        return max(self._marks("begun"), default=None)

    def is_done(self, epoch: int) -> bool:
        """Whether an epoch has been committed to its end."""
        return self._fs.exists(self._path(epoch, "done"))

    def has_begun(self, epoch: int, files: StagedFiles) -> bool:
        """Whether an intent of this epoch is there, durably.

        Raises:
            ConfigurationError: It is that of other files.
            CorruptFileError: It is damaged.
        """
        path = self._path(epoch, "begun")
        try:
            body = decode_document(self._fs.read(path), path, _KIND, _VERSION)
        except NotExistError:
            return False
        if type(body.get("files")) is not list:
            raise CorruptFileError(path, None, "it names no files.")
        if body["files"] != _names(files):
            raise ConfigurationError(
                f"{path!r} says that epoch {epoch} was committed with other files than those that are to be committed "
                "now: two copies of one job directory are running, or it was put back from a copy, and the rows of "
                "this epoch would be there twice or not at all. Nothing was committed. Start with -s from the "
                "checkpoint, which begins a new incarnation."
            )
        # Files are moved on its word, and whoever wrote it may have died before it was durable.
        self._fs.make_durable(path)
        return True

    def begin(self, epoch: int, files: StagedFiles) -> None:
        """Writes the intent of an epoch, durably, unless the same is there."""
        try:
            body = {"epoch": epoch, "files": _names(files)}
            self._fs.create_exclusive(self._path(epoch, "begun"), encode_document(_KIND, _VERSION, body))
        except AlreadyExistError:
            self.has_begun(epoch, files)  # of an earlier try, or of a leader that commits the same

    def finish(self, epoch: int) -> None:
        """Says that an epoch is committed to its end, and forgets those below it."""
        with suppress(AlreadyExistError, NotExistError):  # another leader has said so, or is further already
            self._directory.name_again(self._path(epoch, "begun"), self._path(epoch, "done"))
        for name in sorted(self._fs.list_names(self._place), reverse=True):
            match = _MARK.fullmatch(final_name(name) or name)  # whoever was killed may have written half of an intent
            if match is not None and int(match[1]) < epoch:
                self._fs.delete_in(self._place, name)

    def _marks(self, state: str) -> list[int]:
        found = (_MARK.fullmatch(name) for name in self._fs.list_names(self._place))
        return [int(match[1]) for match in found if match is not None and match[2] == state]

    def _path(self, epoch: int, state: str) -> str:
        return join(self._place, f"{epoch:09d}.{state}")


def _names(files: StagedFiles) -> list[list[str]]:
    return sorted([file.staged, file.final] for file in files)


# Output in an object store, where a staged file is an upload that nobody has completed.
#
# An object cannot be renamed. So a task begins an upload of the object with the final name, and the driver completes
# it::
#
#     <path>/.holdfast/<incarnation>-<sink>/<token>-<epoch>-...staged   says which object is uploaded, before it is
#     <path>/<bucket>/part-<epoch>-<subtask>-<nonce>                    an upload, then an object
#
#     marked --begin, send parts--> uploaded --complete--> object        the mark goes then
#       |                             |
#       +-- attempt is dead ----------+--> aborted, then the mark goes
#
# Completing an upload takes it away, so it comes to readers once, as a file does that is renamed. But where neither the
# upload nor the object is there, and the commit had begun, nobody can tell whether a reader has taken the object or the
# store has dropped the upload: that is refused by name.

logger = get_logger(__name__)

_BUCKET_KIND: Final = "staged-upload"

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
        mark = encode_document(_BUCKET_KIND, _VERSION, {"final": committable["final"]})
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
            final = decode_document(self._fs.read(path), path, _BUCKET_KIND, _VERSION).get("final")
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
