"""Where savepoints may go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import base_name, is_absolute, join, local_path, parent
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import REGISTER, SHARED, TASK_OWNED, checkpoint_id_of

_OWN: Final = (SHARED, TASK_OWNED, REGISTER, "rest")
_MARKER: Final = "register.json"


def check_place(directory: str) -> FileSystem:
    """Return the file system of a directory that is to have savepoints, after a look at where it is. Blocks.

    Raises:
        ConfigurationError: The path is relative, so that each process would take it for another one; or the directory
            is one that a job sweeps.
    """
    local = local_path(directory)
    if not (is_absolute(directory) if local is None else local.startswith("/")):
        raise ConfigurationError(
            f"The savepoint directory {directory!r} is relative, and whoever writes or reads it may be somewhere else. "
            "Write it from the root, or as a URI."
        )
    fs = file_system_for(directory)
    for place in _upwards(fs.resolved(directory)):
        name, job = base_name(place), parent(place)
        if name not in _OWN and checkpoint_id_of(name) is None:
            continue
        versions = (name for name in fs.list_names(join(job, REGISTER)) if name.startswith("v-"))
        if any(versions) or fs.exists(join(job, _MARKER)):
            raise ConfigurationError(
                f"A savepoint cannot go to {directory!r}: {place!r} is the job's own, which deletes there what it does "
                "not need any more. Name a directory of your own, best outside of all jobs."
            )
    return fs


def _upwards(path: str) -> Iterator[str]:
    while base_name(path) and not path.endswith(":"):
        yield path
        above = parent(path)
        if above == path:
            return
        path = above
