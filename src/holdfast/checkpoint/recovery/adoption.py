"""Making the state of another place one's own: what a job does that starts from a checkpoint or savepoint elsewhere.

Every file that the document names is linked, or copied where that is not possible, into the job's own directory under a
new name with its own token, staged output included. So the job depends on nothing that it does not own, and the other
place may be deleted, moved, or restored from again by others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import CheckpointMetadata
from holdfast.checkpoint.recovery.retained import is_in, root_of
from holdfast.errors import CorruptFileError, NotExistError, StorageError
from holdfast.storage.file_system.path import base_name, is_absolute
from holdfast.storage.file_system.scheme import FileSystem, file_system_for, join
from holdfast.storage.job.job_directory import SHARED, TASK_OWNED, JobDirectory
from holdfast.storage.job.naming import FileName

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
