"""Deleting what belongs to one savepoint, and nothing else.

A savepoint has its document and, in `shared/` and `taskowned/` below its own directory, the files that only it names.
What a document says is not followed: files are found by looking into these folders, which are not entered if they are
links, and only those with a name that Holdfast gives are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from holdfast.checkpoint.recovery import load
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.storage.file import FileSystem
from holdfast.storage.file_system import file_system_for
from holdfast.storage.job_directory import METADATA_NAME, SHARED, TASK_OWNED
from holdfast.storage.naming import FileName
from holdfast.storage.path import join


def dispose_savepoint(path: str) -> str:
    """Delete a savepoint: its document, then its state, then its directory unless it holds something else. Blocks.

    Args:
        path: Its directory, or its `_metadata` file.

    Returns:
        The directory.

    Raises:
        NotExistError: There is no savepoint.
        ConfigurationError: It is a checkpoint, which its job deletes.
        CorruptFileError: Its document is damaged, so that nobody knows what it is.
        FormatVersionError: It was written by a newer version.
        StorageError: Something could not be deleted; the rest is. Later failures are notes of the first.
    """
    savepoint = load(path)
    if not savepoint.metadata.is_savepoint:
        raise ConfigurationError(
            f"{savepoint.path!r} is checkpoint {savepoint.checkpoint_id} of job {savepoint.get_job_id()}, not a "
            "savepoint: the job deletes its checkpoints itself (execution.checkpointing.num-retained)."
        )
    fs = file_system_for(savepoint.path)
    fs.delete(join(savepoint.path, METADATA_NAME))
    delete_files(fs, savepoint.path)
    return savepoint.path


def delete_files(fs: FileSystem, directory: str) -> None:
    """Delete the state of a savepoint whose document is gone, or was never written, and its directory if it is empty.

    Raises:
        StorageError: Something could not be deleted; the rest is.
    """
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
                yield partial(fs.delete, join(place, status.name))
        yield partial(fs.delete_directory, place)
    yield partial(fs.delete_directory, directory)
