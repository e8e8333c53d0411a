"""Deleting what belongs to one savepoint, and nothing else.

A savepoint has its document and, in `shared/` and `taskowned/` below its own directory, the files that only it names.
What a document says is not followed: files are found by looking into these folders, which are not entered if they are
links, and only those with a name that Holdfast gives are deleted.

Without its document a savepoint that is being deleted looks like one that is being written. So a mark is put beside the
document before that goes: whoever dies in between can be followed by somebody who asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from holdfast.checkpoint.document.completed_checkpoint import directory_of
from holdfast.checkpoint.recovery.retained import load
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import join
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import METADATA_NAME, SHARED, TASK_OWNED
from holdfast.storage.job.naming import FileName

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
