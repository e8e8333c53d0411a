"""A snapshot that belongs to the job that was started from it: when nothing needs it any more, the job deletes it.

What the job needs of it was copied (or linked) before, so it needs nothing any more when the first checkpoint of its
own has completed. That checkpoint, and those after it, say what is still owed, until it is done: whoever goes on from
one of them goes on with the deletion too. A claim also knows the digest of the snapshot's document. If somebody has
put another one at its place, that one is left alone. For checkpoints see `claimed_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, directory_of
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.recovery import is_in, load, recover_all, root_of
from holdfast.errors import ConfigurationError, CorruptFileError, HoldfastError, NotExistError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, base_name, is_absolute, join, parent
from holdfast.storage.job_directory import METADATA_NAME, SHARED, TASK_OWNED, FileName, JobDirectory
from holdfast.storage.register import CheckpointPointer, FileRegister, RegisterState
from holdfast.storage.scheme import file_system_for

# A checkpoint of another job that belongs to the job that was started from it.
#
# Only who leads a job may delete what belongs to it. So claiming a checkpoint is to lead its job, for as long as it
# takes to raise the token of its register: a driver of that job that still runs is fenced, and the register says whose
# the job is from then on. When the new job needs the checkpoint no more, it takes the pointer out of that register,
# which is when it is gone, and then deletes its document and those files that no other retained checkpoint of that job
# names.
#
# If somebody has led the job meanwhile, it has taken itself back, and nothing of it is deleted.

_log: Final = get_logger(__name__)


def directory_of_job(snapshot: CompletedCheckpoint) -> JobDirectory:
    """Return the directory of the job that has a checkpoint, absolute where paths are local."""
    root = root_of(snapshot)
    fs = file_system_for(root)
    place = root if is_absolute(root) else fs.resolved(root)
    return JobDirectory(fs, place, JobID.from_hex(snapshot.get_job_id()), create_subdir=False)


def take(snapshot: CompletedCheckpoint, owner: str) -> None:
    """Fence the job of a checkpoint, which then is the owner's. Blocks. May be repeated.

    Args:
        snapshot: The checkpoint.
        owner: Who claims it, as the register is to say.

    Raises:
        ConfigurationError: Its job does not retain it any more.
        StorageError, ConflictError: The register could not be written.
    """
    register = FileRegister.of(directory_of_job(snapshot))
    found = _pointer(register.read(), snapshot.pointer.digest)
    if found is not None:
        found = _pointer(register.raise_token(owner).state, snapshot.pointer.digest)
    if found is None:
        raise ConfigurationError(
            f"{snapshot.path!r} cannot be claimed: job {snapshot.get_job_id()} does not retain it, so somebody deletes "
            "it already. Claim one of `holdfast checkpoints`, or start with NO_CLAIM."
        )


def delete_claimed(path: str, digest: str, job: str, owner: str) -> None:
    """Delete a checkpoint that was claimed, as far as no other one needs its files. Blocks. May be repeated.

    Args:
        path: Its directory.
        digest: SHA-256 of its document.
        job: The job that had it, 32 hexadecimal digits.
        owner: Who has claimed it.

    Raises:
        HoldfastError: Something could not be deleted; a part may be.
    """
    fs = file_system_for(path)
    directory = JobDirectory(fs, parent(path), JobID.from_hex(job), create_subdir=False)
    register = FileRegister.of(directory)
    state = register.read()
    if state.owner != owner:
        _log.warning("%r is left alone: job %s, which had it, was led by %r meanwhile", path, job, state.owner)
        return
    if _pointer(state, digest) is not None:
        lease = register.raise_token(owner)
        with fault.point("subsume.delete"):
            state = lease.write(lambda old: _without(old, digest))
    try:
        claimed = load(path)
    except NotExistError:
        fs.delete_directory(path)
        return
    if claimed.pointer.digest != digest:
        return
    needed = {name for other in recover_all(directory, state) for name in _names(other.metadata)}
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


# Making the state of another place one's own: what a job does that starts from a checkpoint or savepoint elsewhere.
#
# Every file that the document names is linked, or copied where that is not possible, into the job's own directory under
# a new name with its own token, staged output included. So the job depends on nothing that it does not own, and the
# other place may be deleted, moved, or restored from again by others.

_CHUNK = 8 * 1024 * 1024


def adopt(checkpoint: CompletedCheckpoint, directory: JobDirectory, token: int) -> CheckpointMetadata:
    """Return the document of a checkpoint with all of its files in a job's directory.

    Nothing is copied if they are there already. A crash leaves files that no checkpoint names, which are swept.

    Args:
        checkpoint: What is restored.
        directory: The job's directory.
        token: The token of the leader who restores.

    Raises:
        CorruptFileError: A run or a file with state of a subtask that the document names is gone, or a run has another
            size.
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
                raise CorruptFileError(join(root, run.path), None, "a run of the checkpoint is not there.")
            size = directory.fs.status(directory.absolute(moved)).size
            if size != run.size:
                raise CorruptFileError(join(root, run.path), size, f"it should have {run.size} bytes.")
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
    """Copies files as they are met and remembers their new paths."""

    def __init__(self, source: FileSystem, root: str, directory: JobDirectory, token: int) -> None:
        self._source = source
        self._root = root
        self._directory = directory
        self._token = token
        self._moved: dict[str, str | None] = {}

    def value(self, value: Any, *, is_needed: bool = False) -> Any:
        """Return a JSON value in which the paths of files are the new ones.

        Raises:
            CorruptFileError: A file that is needed is gone.
        """
        if isinstance(value, str):
            moved = self.path(value)
            if moved is None and is_needed and not is_absolute(value) and FileName.parse(base_name(value)) is not None:
                raise CorruptFileError(join(self._root, value), None, "a file of the checkpoint is not there.")
            return moved or value
        if isinstance(value, dict):
            return {key: self.value(item, is_needed=is_needed) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, is_needed=is_needed) for item in value]
        return value

    def path(self, path: str) -> str | None:
        """Return the new path of a file, None if a text is not the path of one."""
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
        """Return where a file is and the folder that it belongs to; None if it is not in the directory.

        What has an absolute path lies elsewhere, with a sink for instance, and stays there. A name alone is that of a
        file that its owner knows the folder of.
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


# Deleting what belongs to one savepoint, and nothing else.
#
# A savepoint has its document and, in `shared/` and `taskowned/` below its own directory, the files that only it names.
# What a document says is not followed: files are found by looking into these folders, which are not entered if they are
# links, and only those with a name that Holdfast gives are deleted.
#
# Without its document a savepoint that is being deleted looks like one that is being written. So a mark is put beside
# the document before that goes: whoever dies in between can be followed by somebody who asks again.

DISPOSAL_MARK: Final = "_disposal"


def dispose_savepoint(path: str) -> str:
    """Delete a savepoint: its document, then its state, then its directory unless it holds something else. Blocks.

    Args:
        path: Its directory, or its `_metadata` file.

    Returns:
        The directory.

    Raises:
        NotExistError: There is no savepoint, nor the rest of one that somebody began to delete.
        ConfigurationError: It is a checkpoint, which its job deletes, or a link.
        CorruptFileError: Its document is damaged, so that nobody knows what it is.
        FormatVersionError: It was written by a newer version.
        StorageError: Something could not be deleted; the rest is, and the call can be repeated. Later failures are
            notes of the first.
    """
    named = directory_of(path.strip().rstrip("/"))
    if file_system_for(named).is_link(named):
        raise ConfigurationError(
            f"{named!r} is a link. No deletion follows one: name the directory of the savepoint itself, or delete the "
            "link."
        )
    try:
        savepoint = load(path)
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
    with suppress(HoldfastError):  # it is there, or the disk is full: then room is what is wanted most
        fs.create_exclusive(join(directory, DISPOSAL_MARK), b"This savepoint is being deleted.\n")
    fs.delete_in(directory, METADATA_NAME)


def delete_files(fs: FileSystem, directory: str) -> None:
    """Delete the state of a savepoint whose document is gone, or was never written, and its directory if it is empty.

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
    """A snapshot that its job is to delete.

    Attributes:
        path: Its directory, absolute.
        digest: SHA-256 of its document, hexadecimal.
        job: Of a checkpoint, the job that had it; None for a savepoint.
        owner: Of a checkpoint, what the register of that job says of who has claimed it.
    """

    path: str
    digest: str
    job: str | None = None
    owner: str | None = None

    @classmethod
    def of(cls, snapshot: CompletedCheckpoint, directory: JobDirectory) -> Claim | None:
        """Return the claim on what a job is started from; None for one of its own checkpoints, which it owns anyway.

        A job whose checkpoint is claimed is fenced from then on.

        Raises:
            ConfigurationError: Its path is a link, or its job does not retain it.
            StorageError, ConflictError: The job of the checkpoint could not be fenced.
        """
        if is_in(snapshot, directory):
            return None
        fs = file_system_for(snapshot.path)
        if fs.is_link(snapshot.path):
            raise ConfigurationError(
                f"{snapshot.path!r} is a link, and no deletion follows one: name the directory of the snapshot itself."
            )
        path = snapshot.path if is_absolute(snapshot.path) else fs.resolved(snapshot.path)
        if snapshot.metadata.is_savepoint:
            return cls(path, snapshot.pointer.digest)
        owner = f"job {directory.job_id} in {directory.path}, which has claimed checkpoint {snapshot.checkpoint_id}"
        take(snapshot, owner)
        return cls(path, snapshot.pointer.digest, str(snapshot.get_job_id()), owner)

    def discard(self) -> None:
        """Delete the snapshot, if it is still there. Blocks. May be called again, by anybody who knows of the claim.

        Raises:
            HoldfastError: It could not be deleted; a part may be.
        """
        if self.job is not None and self.owner is not None:
            delete_claimed(self.path, self.digest, self.job, self.owner)
            return
        try:
            found = load(self.path)
        except NotExistError:
            # Either all is done, or somebody has died on the way and left a mark.
            if not file_system_for(self.path).exists(join(self.path, DISPOSAL_MARK)):
                return
        else:
            if found.pointer.digest != self.digest:
                return
        with fault.point("subsume.delete"):
            dispose_savepoint(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as a checkpoint's document has it."""
        of_checkpoint = {} if self.job is None else {"job": self.job, "owner": self.owner}
        return {"path": self.path, "digest": self.digest, **of_checkpoint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """Read what `to_json` returned, which was checked with the document."""
        return cls(value["path"], value["digest"], value.get("job"), value.get("owner"))
