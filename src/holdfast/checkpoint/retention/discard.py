"""Deleting all checkpoints of a job that has ended, where the options say so.

Their pointers go with the write of the terminal status; what is deleted after it was named by nothing that a recovery
reads. A process that dies in between leaves files behind, and a job that is run again sweeps them.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.checkpoint.config.checkpoint_config import CoordinatorConfiguration
from holdfast.checkpoint.document.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.path import join
from holdfast.storage.job.job_directory import JobDirectory, checkpoint_id_of
from holdfast.storage.job.naming import FileName
from holdfast.storage.register.fenced_register import Lease

_log = get_logger(__name__)


def goes_with_the_job(configuration: Configuration, status: str) -> bool:
    """Whether checkpoints are deleted when the job ends with a status.

    By default they are always kept, also those of a job that has FINISHED, which Flink deletes.
    """
    policy = CoordinatorConfiguration.from_options(configuration).policy
    if policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION or status == "SUSPENDED":
        return False
    return CheckpointProperties.for_checkpoint(policy).discard_on(status)


def discard_all(directory: JobDirectory, lease: Lease) -> None:
    """Delete the checkpoints and the files of a job that has ended; its register names none of them any more.

    Files of a higher token are left alone, and so is everything if the lease has ended. What cannot be deleted stays.
    """
    first_foreign_id = lease.check().next_checkpoint_id
    for place in (directory.shared_dir, directory.taskowned_dir):
        names = ((name, FileName.parse(name)) for name in directory.fs.list_names(place))
        own = [name for name, parsed in names if parsed is not None and parsed.token <= lease.token]
        _delete(directory, place, own)
    for name in directory.fs.list_names(directory.path):
        number = checkpoint_id_of(name)
        if number is not None and number < first_foreign_id:
            chk = directory.chk_dir(number)
            _delete(directory, chk, [status.name for status in directory.fs.list(chk) if not status.is_directory])
            directory.fs.delete_directory(chk)


def _delete(directory: JobDirectory, place: str, names: Iterable[str]) -> None:
    for name in names:
        try:
            with fault.point("subsume.delete"):
                directory.fs.delete_in(place, name)
        except fault.FaultInjectedError:
            raise
        except HoldfastError as error:
            _log.warning("Could not delete %r: %s", join(place, name), error)
