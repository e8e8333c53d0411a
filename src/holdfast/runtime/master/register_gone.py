"""A register of files of which nothing is left while a process leads its job, or stands by: its disk is away.

The path of a mount that is away is an empty directory. A job that began in it would read all of its inputs once more,
and so would one that ended as if another leader had fenced it, and was started again. So it waits until the register
is there again, as it waits for any other storage. Who finds no register at its very start cannot tell, and begins.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError, StorageError
from holdfast.runtime.job.job import Job
from holdfast.storage.register.fenced_register import RegisterState
from holdfast.storage.register.file_register import FileRegister


def register_gone(job: Job, seen: RegisterState | None) -> StorageError | None:
    """Return what is to be told if nothing is left of a job's register. Blocks; never raises.

    Args:
        job: The job.
        seen: What the register said to this process when it looked last; None if it has not looked.

    Returns:
        None if it is there; or cannot be read, which says so itself; or was never there; or is in a store, where it is
        removed when the job is over.
    """
    if seen is None or not seen.version or not isinstance(job.register, FileRegister):
        return None
    try:
        if job.register.read().version:
            return None
    except HoldfastError:
        return None
    return StorageError(
        f"{job.directory.register_dir!r} is empty, and this process has seen the register of job {job.name!r} in it. "
        f"Probably {job.directory.root!r} is not mounted any more. Nothing is run or written until the register is "
        "there again. If it was deleted on purpose, stop this process."
    )
