"""Files of snapshots of other jobs: copy them on a restore, take ownership of them, delete them.

- `import_snapshot` links or copies the files of a snapshot into the job's own directory.
- `Claim` is a snapshot that the job owns (claim mode CLAIM). The job deletes it after its first own checkpoint. That
  checkpoint and the following ones record the claim until it is deleted, so any later attempt can finish the deletion.
- `dispose_savepoint` deletes one savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import (
    CompletedCheckpoint,
    directory_of,
    is_in,
    read_by_path,
    read_retained,
    root_of,
)
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.errors import ConfigurationError, CorruptFileError, HoldfastError, NotExistError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, base_name, is_absolute, join, parent
from holdfast.storage.job_directory import METADATA_NAME, SHARED, TASK_OWNED, FileName, JobDirectory
from holdfast.storage.register import CheckpointPointer, FileRegister, RegisterState
from holdfast.storage.scheme import file_system_for

# Claiming a checkpoint of another job. Only the leader of a job may delete its files, so a claim raises the token of
# that job's register: a driver that still runs is fenced, and the register records the new owner. To delete the
# checkpoint, the owner first removes its pointer from that register, then its document and the files that no other
# retained checkpoint of that job names. If another driver has led that job since, nothing is deleted.

logger = get_logger(__name__)
_CHUNK = 8 * 1024 * 1024
DISPOSAL_MARK: Final = "_disposal"


def directory_of_job(snapshot: CompletedCheckpoint) -> JobDirectory:
    """Return the directory of the job that a checkpoint belongs to, absolute where paths are local."""
    root = root_of(snapshot)
    fs = file_system_for(root)
    place = root if is_absolute(root) else fs.resolved(root)
    return JobDirectory(fs, place, JobID.from_hex(snapshot.get_job_id()), create_subdir=False)


def fence_job(snapshot: CompletedCheckpoint, owner: str) -> None:
    """Fence the job of a checkpoint, which then belongs to the owner. Blocks. May be repeated.

    Args:
        snapshot: The checkpoint.
        owner: The new owner, as the register records it.

    Raises:
        ConfigurationError: The job of the checkpoint does not retain it any more.
        StorageError, ConflictError: The register could not be written.
    """
    register = FileRegister.of(directory_of_job(snapshot))
    found = _pointer(register.read(), snapshot.pointer.digest)
    if found is not None:
        found = _pointer(register.raise_token(owner).state, snapshot.pointer.digest)
    if found is None:
        raise ConfigurationError(
            f"{snapshot.path!r} cannot be claimed: job {snapshot.get_job_id()} does not retain it any more and may be "
            "deleting it. Claim one that `holdfast checkpoints` lists, or start with NO_CLAIM."
        )


def delete_claimed(path: str, digest: str, job: str, owner: str) -> None:
    """Delete a claimed checkpoint, except files that another checkpoint needs. Blocks. May be repeated.

    Args:
        path: Directory of the checkpoint.
        digest: SHA-256 of its document.
        job: The job that it belonged to, 32 hexadecimal digits.
        owner: The owner that has claimed it.

    Raises:
        HoldfastError: Something could not be deleted; the rest may be.
    """
    fs = file_system_for(path)
    directory = JobDirectory(fs, parent(path), JobID.from_hex(job), create_subdir=False)
    register = FileRegister.of(directory)
    state = register.read()
    if state.owner != owner:
        logger.warning(
            "did not delete the claimed checkpoint %r: its job %s was led by %r meanwhile", path, job, state.owner
        )
        return
    if _pointer(state, digest) is not None:
        writer = register.raise_token(owner)
        with fault.point("subsume.delete"):
            state = writer.write(lambda old: _without(old, digest))
    try:
        claimed = read_by_path(path)
    except NotExistError:
        fs.delete_directory(path)
        return
    if claimed.pointer.digest != digest:
        return
    needed = {name for other in read_retained(directory, state) for name in _names(other.metadata)}
    _delete(directory, set(_names(claimed.metadata)) - needed)
    for status in sorted(fs.list(path), key=lambda status: status.name != METADATA_NAME):
        if not status.is_directory:
            fs.delete_in(path, status.name)
    fs.delete_directory(path)


def _pointer(state: RegisterState, digest: str) -> CheckpointPointer | None:
    return next((pointer for pointer in state.checkpoints if pointer.digest == digest), None)


def _without(state: RegisterState, digest: str) -> RegisterState:
    return replace(state, checkpoints=tuple(one for one in state.checkpoints if one.digest != digest))


def _names(metadata: CheckpointMetadata) -> Iterator[FileName]:
    for text in metadata.strings():
        name = FileName.parse(base_name(text))
        if name is not None:
            yield name


def _delete(directory: JobDirectory, names: set[FileName]) -> None:
    failures: list[HoldfastError] = []
    for place in (directory.shared_dir, directory.taskowned_dir):
        if directory.fs.is_link(place):
            continue  # no deletion follows a link
        for name in directory.fs.list_names(place):
            if FileName.parse(name) not in names:
                continue
            try:
                directory.fs.delete_in(place, name)
            except HoldfastError as error:
                failures.append(error)
    if failures:
        raise failures[0]


# Restoring from another directory. Every file that the document names, staged output included, is linked (or copied, if
# that is not possible) into the job's own directory under a new name with the job's token. So the job depends only on
# files that it owns.


def import_snapshot(checkpoint: CompletedCheckpoint, directory: JobDirectory, token: int) -> CheckpointMetadata:
    """Copy the files of a checkpoint into a job's directory and return its document with the new paths.

    Nothing is copied if the files are there already. After a crash, files that no checkpoint names are swept.

    Args:
        checkpoint: The checkpoint to restore.
        directory: The job's directory.
        token: The token of the leader that restores.

    Raises:
        CorruptFileError: A run or a state file is missing, or a run has another size.
        StorageError: A file could not be copied.
    """
    root = root_of(checkpoint)
    metadata = checkpoint.metadata
    if is_in(checkpoint, directory):
        return metadata
    mover = _Mover(file_system_for(root), root, directory, token)
    operators = []
    for operator in metadata.operators:
        runs = []
        for run in operator.runs:
            moved = run.path if is_absolute(run.path) else mover.path(run.path)
            if moved is None:
                raise CorruptFileError(join(root, run.path), None, "a run of the checkpoint is missing.")
            size = directory.fs.status(directory.absolute(moved)).size
            if size != run.size:
                raise CorruptFileError(join(root, run.path), size, f"it has {size} bytes instead of {run.size}.")
            runs.append(replace(run, path=moved))
        operators.append(
            replace(
                operator,
                runs=tuple(runs),
                subtasks=tuple(mover.value(subtask, is_needed=True) for subtask in operator.subtasks),
                states=mover.value(dict(operator.states)),
                committables=mover.value(dict(operator.committables)),
            )
        )
    return replace(
        metadata,
        operators=tuple(operators),
        source_positions=mover.value(metadata.source_positions),
        extra=mover.value(dict(metadata.extra)),
    )


class _Mover:
    """Copies each file once and remembers its new path."""

    def __init__(self, source: FileSystem, root: str, directory: JobDirectory, token: int) -> None:
        self._source = source
        self._root = root
        self._directory = directory
        self._token = token
        self._moved: dict[str, str | None] = {}

    def value(self, value: Any, *, is_needed: bool = False) -> Any:
        """Return a JSON value with the new paths of files.

        Raises:
            CorruptFileError: A needed file is missing.
        """
        if isinstance(value, str):
            moved = self.path(value)
            if moved is None and is_needed and not is_absolute(value) and FileName.parse(base_name(value)) is not None:
                raise CorruptFileError(join(self._root, value), None, "a file of the checkpoint is missing.")
            return moved or value
        if isinstance(value, dict):
            return {key: self.value(item, is_needed=is_needed) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, is_needed=is_needed) for item in value]
        return value

    def path(self, path: str) -> str | None:
        """Return the new path of a file; None if the text is not the path of a file."""
        name = FileName.parse(base_name(path))
        if name is None:
            return None
        if path not in self._moved:
            self._moved[path] = self._move(path, name)
        return self._moved[path]

    def _move(self, path: str, name: FileName) -> str | None:
        found = self._find(path)
        if found is None:
            return None
        old, folder = found
        suffix = base_name(path).partition(".")[2]
        new_name = FileName.new(self._token, name.epoch, name.attempt, name.owner, name.subtask)
        new = new_name.format("." + suffix if suffix else "")
        _copy(self._source, old, self._directory.fs, join(self._directory.path, folder, new))
        return f"{folder}/{new}" if "/" in path else new

    def _find(self, path: str) -> tuple[str, str] | None:
        """Return the path and the folder of a file; None if the directory does not have it.

        A file with an absolute path belongs elsewhere, to a sink for instance, and stays there. A bare name may be in
        either folder.
        """
        if is_absolute(path):
            return None
        if "/" in path:
            candidates = [(path, TASK_OWNED if path.startswith(TASK_OWNED + "/") else SHARED)]
        else:
            candidates = [(f"{folder}/{path}", folder) for folder in (TASK_OWNED, SHARED)]
        places = ((join(self._root, relative), folder) for relative, folder in candidates)
        return next(((place, folder) for place, folder in places if self._source.exists(place)), None)


def _copy(source: FileSystem, old: str, target: FileSystem, new: str) -> None:
    if type(source) is type(target):
        try:
            target.link(old, new)
            return
        except (StorageError, NotExistError):
            pass  # another device, or links are not allowed: copy
    with source.open_input(old) as data, target.open_output(new) as out:
        while chunk := data.read(_CHUNK):
            out.write(chunk)


# Deleting a savepoint. Its files are in `shared/` and `taskowned/` below its own directory. The paths in its document
# are not followed: only files in these folders with a name of Holdfast's are deleted, and a folder that is a link is
# not entered.
#
# Without its document, a savepoint that is being deleted looks like one that is being written. So a marker file is
# written before the document is deleted; after a crash the deletion can be repeated.


def dispose_savepoint(path: str) -> str:
    """Delete a savepoint: its document, its state, and its directory if nothing else is in it. Blocks.

    Args:
        path: Its directory, or its `_metadata` file.

    Returns:
        The directory.

    Raises:
        NotExistError: There is no savepoint, nor one whose deletion was interrupted.
        ConfigurationError: It is a checkpoint, which its job deletes, or a link.
        CorruptFileError: Its document is damaged.
        FormatVersionError: A newer version wrote it.
        StorageError: Something could not be deleted; the rest is, and the call can be repeated. Later failures are
            notes of the first.
    """
    named = directory_of(path.strip().rstrip("/"))
    if file_system_for(named).is_link(named):
        raise ConfigurationError(
            f"{named!r} is a link, and links are not followed when deleting: name the directory of the savepoint "
            "itself, or delete the link."
        )
    try:
        savepoint = read_by_path(path)
    except NotExistError:
        fs, directory = file_system_for(named), named
        if not fs.exists(join(directory, DISPOSAL_MARK)):
            raise
    else:
        if not savepoint.metadata.is_savepoint:
            raise ConfigurationError(
                f"{savepoint.path!r} is checkpoint {savepoint.checkpoint_id} of job {savepoint.get_job_id()}, not a "
                "savepoint: the job deletes its checkpoints itself (execution.checkpointing.num-retained)."
            )
        fs, directory = file_system_for(savepoint.path), savepoint.path
        _begin(fs, directory)
    _delete_state(fs, directory)
    fs.delete_in(directory, DISPOSAL_MARK)
    fs.delete_directory(directory)
    return directory


def _begin(fs: FileSystem, directory: str) -> None:
    with suppress(HoldfastError):  # it exists, or the disk is full: then go on to free space
        fs.create_exclusive(join(directory, DISPOSAL_MARK), b"This savepoint is being deleted.\n")
    fs.delete_in(directory, METADATA_NAME)


def delete_files(fs: FileSystem, directory: str) -> None:
    """Delete the state of a savepoint without a document, and its directory if it is empty.

    Raises:
        StorageError: Something could not be deleted; the rest is.
    """
    _delete_state(fs, directory)
    fs.delete_directory(directory)


def _delete_state(fs: FileSystem, directory: str) -> None:
    failures = []
    for delete in _deletions(fs, directory):
        try:
            delete()
        except HoldfastError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        for other in failures[1:]:
            first.add_note(str(other))
        raise first


def _deletions(fs: FileSystem, directory: str) -> Iterator[Callable[[], object]]:
    folders = [status.name for status in fs.list(directory) if status.is_directory]
    for folder in (SHARED, TASK_OWNED):
        if folder not in folders:
            continue
        place = join(directory, folder)
        for status in fs.list(place):
            if not status.is_directory and FileName.parse(status.name) is not None:
                yield partial(fs.delete_in, place, status.name)
        yield partial(fs.delete_directory, place)


@dataclass(frozen=True)
class Claim:
    """A snapshot that the job must delete.

    Attributes:
        path: Its directory, absolute.
        digest: SHA-256 of its document in hexadecimal; a snapshot with another digest at this path is left alone.
        job: For a checkpoint, the job that it belonged to; None for a savepoint.
        owner: For a checkpoint, the owner that the register of that job records.
    """

    path: str
    digest: str
    job: str | None = None
    owner: str | None = None

    @classmethod
    def of(cls, snapshot: CompletedCheckpoint, directory: JobDirectory) -> Claim | None:
        """Claim the snapshot that a job is started from; returns None for one of its own checkpoints.

        The job of a claimed checkpoint is fenced.

        Raises:
            ConfigurationError: The path is a link, or the job of the checkpoint does not retain it.
            StorageError, ConflictError: The job of the checkpoint could not be fenced.
        """
        if is_in(snapshot, directory):
            return None
        fs = file_system_for(snapshot.path)
        if fs.is_link(snapshot.path):
            raise ConfigurationError(
                f"{snapshot.path!r} is a link, and links are not followed when deleting: name the directory of the "
                "snapshot itself."
            )
        path = snapshot.path if is_absolute(snapshot.path) else fs.resolved(snapshot.path)
        if snapshot.metadata.is_savepoint:
            return cls(path, snapshot.pointer.digest)
        owner = f"job {directory.job_id} in {directory.path}, which has claimed checkpoint {snapshot.checkpoint_id}"
        fence_job(snapshot, owner)
        return cls(path, snapshot.pointer.digest, str(snapshot.get_job_id()), owner)

    def discard(self) -> None:
        """Delete the snapshot if it is still there. Blocks. May be repeated, also by another attempt.

        Raises:
            HoldfastError: Something could not be deleted; the rest may be.
        """
        if self.job is not None and self.owner is not None:
            delete_claimed(self.path, self.digest, self.job, self.owner)
            return
        try:
            found = read_by_path(self.path)
        except NotExistError:
            # Either all is deleted, or a process died on the way and left a marker.
            if not file_system_for(self.path).exists(join(self.path, DISPOSAL_MARK)):
                return
        else:
            if found.pointer.digest != self.digest:
                return
        with fault.point("subsume.delete"):
            dispose_savepoint(self.path)

    def to_json(self) -> dict[str, Any]:
        of_checkpoint = {} if self.job is None else {"job": self.job, "owner": self.owner}
        return {"path": self.path, "digest": self.digest, **of_checkpoint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """Read the result of `to_json`; its form was checked with the document."""
        return cls(value["path"], value["digest"], value.get("job"), value.get("owner"))
