"""`OutputDirectory` and `CommitLedger`: the identity of a directory of output, and the epochs committed into it.

::

    <path>/.holdfast/identity                                  a UUID, created once, kept in checkpoints
                     <incarnation>-<sink>/                     staged files
                     <incarnation>-<sink>/ledger/<epoch>.begun the intent: all staged files of the epoch existed
                                                 <epoch>.done  the last of them has its final name, durably
                                                 <epoch>-2.begun, <epoch>-2.done  files that the first intent lacks

    staged --create--> begun --rename each, sync--> moved --second name--> done
      |                  |                            |
      |                  |                            +-- the directory has still the same identity
      |                  +-- a missing staged file was renamed by an earlier try
      +-- a missing staged file is lost, or on a disk that is not mounted: rejected

A file is renamed, and not linked and deleted. So it has one name at any time, and readers see it once, even if one of
them takes it away between two tries. Epochs are committed in order, so the highest intent of an incarnation implies
that all epochs below it are done. It stays for ever; those below it are deleted.

An intent names all files of its epoch, even if a committer is offered only a part of them. Older versions named the
part: the others are named by a further intent.
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

logger = get_logger(__name__)

HIDDEN_FOLDER: Final = ".holdfast"
IDENTITY: Final = "identity"
LEDGER: Final = "ledger"
_KIND: Final = "commit-intent"
_VERSION: Final = 1
_RECORD: Final = re.compile(r"([0-9]{9,19})(?:-([0-9]{1,9}))?\.(begun|done)")
_MARKER_KIND: Final = "staged-upload"
_LONGEST_KEY: Final = 1024
"""The limit of S3, in bytes of UTF-8."""
_CONCURRENT_REQUESTS: Final = 16
"""Several at once, because each is a round trip to the store."""
_T = TypeVar("_T")
_Item = TypeVar("_Item")


class StagedFile(NamedTuple):
    """A file that a task has staged.

    Attributes:
        staged: The staged name, relative to the directory.
        final: The final name, relative to the directory.
        upload: In an object store, the id of the multipart upload that becomes the object.
    """

    staged: str
    final: str
    upload: str = ""


StagedFiles = Sequence[StagedFile]


class OutputDirectory:
    """A directory of output with an identity, so that another directory under the same path is noticed.

    Args:
        path: The directory, an absolute path or URI.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = file_system_for(path)
        self._identity_path = join(path, HIDDEN_FOLDER, IDENTITY)

    def identity(self) -> str | None:
        """Read the identity; return None if there is none. Blocks."""
        try:
            return self._fs.read(self._identity_path).decode("ascii", "replace").strip()
        except NotExistError:
            return None

    def ensure_identity(self) -> str:
        """Return the identity; create it if there is none. Blocks."""
        found = self.identity()
        if found is None:
            created = str(uuid.uuid4())
            try:
                self._fs.create_exclusive(self._identity_path, f"{created}\n".encode())
            except AlreadyExistError:
                found = self.identity() or created
            else:
                return created
        # Checkpoints will contain it, and the process that created it may have died before it was durable.
        self._fs.make_durable(self._identity_path)
        return found

    def require_identity(self, identity: str) -> None:
        """Check the identity of the directory. Blocks.

        Raises:
            StorageError: It is another one, or missing.
        """
        found = self.identity()
        if found != identity:
            raise StorageError(
                f"{self.path!r} is not the directory that the job writes into: expected the identity {identity!r} in "
                f"{self._identity_path!r}, found {'no file' if found is None else repr(found)}. Probably the directory "
                "is not mounted on this host. Nothing was written or committed; mount it, and the job goes on. If you "
                "have created it anew on purpose, write the identity into that file."
            )

    def open_staged(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        """Open a staged file; may add to the committable."""
        return self._fs.open_output(join(self.path, committable["staged"]))

    def check_final_name(self, final: str) -> None:
        """Check the final name in a task already, because a commit that fails for it would be retried for ever.

        Raises:
            RefusedElementError: No file can have this name.
        """

    def missing(self, files: StagedFiles) -> list[str]:
        """Return the staged names of the files that do not exist."""
        return [file.staged for file in files if not self._fs.exists(join(self.path, file.staged))]

    def move(self, files: StagedFiles) -> None:
        """Rename the staged files that still exist to their final names, durably."""
        for bucket in dict.fromkeys(parent(file.final) for file in files if "/" in file.final):
            self._fs.mkdirs(join(self.path, bucket))
        self._fs.move_all([(join(self.path, file.staged), join(self.path, file.final)) for file in files])

    def check_moved(self, identity: str, files: StagedFiles) -> None:
        """Check that files were moved in the directory of this identity, because a mount may vanish at any moment.

        Without the mount there was nothing to move, which looks as if consumers had taken all files.

        Raises:
            StorageError: The mount is away, or was away for a moment.
        """
        all_moved = len(self.missing(files)) == len(files)
        self.require_identity(identity)
        if not all_moved:
            raise StorageError(f"{self.path!r} was not mounted for a moment during a commit. The job retries.")

    def discard(self, folder: str, name: str) -> bool:
        """Delete what a dead attempt has staged; return whether it existed."""
        return self._fs.delete_in(join(self.path, folder), name)

    def add_second_name(self, path: str, second: str) -> None:
        """Give a record of the ledger a second name, which a power failure may take: the epoch is then committed again.

        Raises:
            AlreadyExistError: The name is taken.
            NotExistError: The file does not exist.
        """
        self._fs.link(path, second, is_durable=False)


class CommitLedger:
    """The epochs of one incarnation and sink that were committed into a directory.

    Args:
        directory: The directory.
        folder: The staging folder of the incarnation and sink, relative to the directory.
    """

    def __init__(self, directory: OutputDirectory, folder: str) -> None:
        self._directory = directory
        self._place = join(directory.path, folder, LEDGER)
        self._fs = file_system_for(directory.path)

    def last_epoch(self) -> int | None:
        """Return the highest epoch whose commit has begun; None if there is none. Blocks."""
        return max(self._epochs_in("begun"), default=None)

    def is_done(self, epoch: int) -> bool:
        """Return whether all files that the intents of an epoch name have their final names."""
        numbers = _numbers(self._fs.list_names(self._place), epoch)
        return bool(numbers["begun"]) and numbers["begun"] == numbers["done"]

    def named(self, epoch: int, files: StagedFiles) -> set[StagedFile]:
        """Return those files of an epoch that a durable intent names.

        Args:
            epoch: The epoch.
            files: All files of the epoch, as far as they are known.

        Raises:
            ConfigurationError: There are intents, and they name none of these files.
            CorruptFileError: An intent is damaged.
        """
        intents = [
            self._path(epoch, "begun", number) for number in _numbers(self._fs.list_names(self._place), epoch)["begun"]
        ]
        names = {tuple(name) for path in intents for name in self._read(path)}
        found = {file for file in files if (file.staged, file.final) in names}
        if intents and not found:
            raise ConfigurationError(
                f"{intents[0]!r} lists other files for epoch {epoch} than those to commit now: two copies of one job "
                "directory are running, or it was restored from a copy, so the rows of this epoch would be duplicated "
                "or lost. Nothing was committed. Start with -s from the checkpoint, which begins a new incarnation. A "
                "committer that wraps the one of this sink must hand on the same requests that it gets."
            )
        # Files are moved because of it, and the process that wrote it may have died before it was durable.
        for path in intents:
            self._fs.make_durable(path)
        return found

    def begin(self, epoch: int, new: StagedFiles, files: StagedFiles) -> None:
        """Write durably that the commit of files begins, unless another leader has done so since `named`.

        Args:
            epoch: The epoch.
            new: The files that no intent names.
            files: All files of the epoch, as far as they are known.
        """
        rest, number = list(new), 1
        while rest:
            body = encode_document(_KIND, _VERSION, {"epoch": epoch, "files": _names(rest)})
            try:
                self._fs.create_exclusive(self._path(epoch, "begun", number), body)
                return
            except AlreadyExistError:
                named = self.named(epoch, files)
                rest, number = [file for file in rest if file not in named], number + 1

    def finish(self, epoch: int) -> None:
        """Mark an epoch as completely committed, and delete the records of earlier ones."""
        names = sorted(self._fs.list_names(self._place), reverse=True)
        for number in _numbers(names, epoch)["begun"]:
            with suppress(AlreadyExistError, NotExistError):  # another leader has done so, or is further
                self._directory.add_second_name(self._path(epoch, "begun", number), self._path(epoch, "done", number))
        for name in names:
            match = _RECORD.fullmatch(final_name(name) or name)  # a killed process may have left half of an intent
            if match is not None and int(match[1]) < epoch:
                self._fs.delete_in(self._place, name)

    def _epochs_in(self, state: str) -> list[int]:
        return [int(match[1]) for match in _records(self._fs.list_names(self._place)) if match[3] == state]

    def _read(self, path: str) -> list[list[str]]:
        files = decode_document(self._fs.read(path), path, _KIND, _VERSION).get("files")
        if type(files) is not list or not all(
            type(name) is list and list(map(type, name)) == [str, str] for name in files
        ):
            raise CorruptFileError(path, None, "it lists no files.")
        return files

    def _path(self, epoch: int, state: str, number: int = 1) -> str:
        return join(self._place, f"{epoch:09d}{f'-{number}' if number > 1 else ''}.{state}")


def _numbers(names: Iterable[str], epoch: int) -> dict[str, list[int]]:
    """Return the numbers of the records of an epoch, by state."""
    numbers: dict[str, list[int]] = {"begun": [], "done": []}
    for match in _records(names):
        if int(match[1]) == epoch:
            numbers[match[3]].append(int(match[2] or 1))
    return {state: sorted(found) for state, found in numbers.items()}


def _records(names: Iterable[str]) -> list[re.Match[str]]:
    return list(filter(None, map(_RECORD.fullmatch, names)))


def _names(files: StagedFiles) -> list[list[str]]:
    return sorted([file.staged, file.final] for file in files)


# An object cannot be renamed. So a task begins a multipart upload of the final object, and the driver completes it::
#
#     <path>/.holdfast/<incarnation>-<sink>/<token>-<epoch>-...staged   a marker that names the object, written first
#     <path>/<bucket>/part-<epoch>-<subtask>-<nonce>                    an upload, then an object
#
#     marked --begin, send parts--> uploaded --complete--> object        then delete the marker
#       |                             |
#       +-- attempt is dead ----------+--> abort, then delete the marker
#
# Completing an upload removes it, so readers see the object once, like a renamed file. But if neither the upload nor
# the object exists and the commit had begun, either a reader has taken the object or the store has dropped the upload.
# Nobody can tell which, so the job fails with both reasons.


class ObjectStoreOutputDirectory(OutputDirectory):
    """A directory of output in an object store.

    Args:
        path: The URI.
    """

    @property
    def _uploads(self) -> Uploads:
        return uploads_for(self.path)

    def check_final_name(self, final: str) -> None:
        try:
            key = join(self.path, final).removeprefix("s3://").partition("/")[2].encode()
        except UnicodeEncodeError as error:
            raise RefusedElementError(f"no object can have the name {final!r:.60}: {error}") from error
        if len(key) > _LONGEST_KEY:
            raise RefusedElementError(
                f"an object for {final!r:.60}... would have a key of {len(key):,} bytes; object stores allow "
                f"{_LONGEST_KEY:,}"
            )

    @contextmanager
    def open_staged(self, committable: dict[str, Any]) -> Iterator[BinaryIO]:
        """Begin an upload, and add its id to the committable."""
        target = join(self.path, committable["final"])
        # A sweep finds the upload of a dead task by this marker, so the marker is written first.
        marker = encode_document(_MARKER_KIND, _VERSION, {"final": committable["final"]})
        self._fs.write_atomic(join(self.path, committable["staged"]), marker)
        upload = committable["upload"] = self._uploads.begin(target)
        with self._uploads.open_output(target, upload) as file:
            yield file

    def missing(self, files: StagedFiles) -> list[str]:
        """Return the staged names of the files whose uploads do not exist."""
        sizes = map_concurrently(files, lambda file: self._uploads.size(join(self.path, file.final), file.upload))
        return [file.staged for file, size in zip(files, sizes, strict=True) if size is None]

    def move(self, files: StagedFiles) -> None:
        """Complete the uploads that still exist.

        Raises:
            ConfigurationError: Neither an upload nor its object exists.
        """
        map_concurrently(files, self._complete)
        map_concurrently(files, lambda file: self._fs.delete(join(self.path, file.staged)))

    def _complete(self, file: StagedFile) -> None:
        target = join(self.path, file.final)
        if self._uploads.complete(target, file.upload) or self._fs.exists(target):
            return
        raise ConfigurationError(
            f"Neither the upload {file.upload!r} of {target!r} nor the object exists, although its commit had begun: "
            "either the commit was completed, and a reader has taken the object since, or the store has dropped the "
            "upload (a rule of the bucket may abort long uploads). If a reader has it, create an empty object of that "
            "name, and the job goes on; if not, start from an earlier checkpoint (-s PATH)."
        )

    def check_moved(self, identity: str, files: StagedFiles) -> None:
        """Do nothing: an object store that is away fails, and leaves no empty directory in its place."""

    def discard(self, folder: str, name: str) -> bool:
        """Abort the upload of a dead attempt, and delete its marker."""
        path = join(self.path, folder, name)
        try:
            final = decode_document(self._fs.read(path), path, _MARKER_KIND, _VERSION).get("final")
        except NotExistError:
            return False
        if type(final) is not str or not is_in_directory(final):
            raise CorruptFileError(path, None, "it names no object in its directory.")
        self._uploads.abort_all(join(self.path, final))
        return self._fs.delete(path)

    def add_second_name(self, path: str, second: str) -> None:
        """Copy the object, because an object has one name."""
        self._fs.create_exclusive(second, self._fs.read(path))


def map_concurrently(items: Iterable[_Item], call: Callable[[_Item], _T]) -> list[_T]:
    """Call a function for each item in some threads at once; return the results in order. Blocks."""
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS, "holdfast-uploads") as pool:
        return list(pool.map(call, items))


def output_directory(path: str) -> OutputDirectory:
    return OutputDirectory(path) if local_path(path) is not None else ObjectStoreOutputDirectory(path)
