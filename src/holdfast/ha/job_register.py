"""The choice of the register of a job directory: one of files, or one in a coordination store.

The types none and filesystem share the register in the job's directory. The others have theirs in a coordination store,
and leave a marker, ``<job directory>/register.json``. Without it, a driver with another type would find no register in
its place, start the job without its state, and write beside the driver that leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.errors import AlreadyExistError, ConfigurationError, CorruptFileError, NotExistError
from holdfast.ha import options
from holdfast.ha.cluster_storage import cluster_id_of
from holdfast.ha.options import ha_type
from holdfast.ha.services import HighAvailabilityServices
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory, checkpoint_id_of
from holdfast.storage.register import FencedRegister, FileRegister
from holdfast.storage.state_handle import decode_document, encode_document

MARKER_NAME: Final = "register.json"
_KIND: Final = "job-register"
_FORMAT_VERSION: Final = 1
_FIELDS: Final = ("type", "cluster_id", "job_id")
_OF_FILES: Final = ("none", "filesystem")


def has_external_register(directory: JobDirectory) -> bool:
    """Return whether the register of a job is not in its directory."""
    return _read_marker(directory) is not None


def job_id_in(directory: JobDirectory) -> JobID | None:
    """Return the job in a directory whose register is elsewhere; None if the register is there."""
    marker = _read_marker(directory)
    if marker is None:
        return None
    try:
        return JobID.from_hex(marker["job_id"])
    except ConfigurationError as error:
        raise CorruptFileError(join(directory.path, MARKER_NAME), None, str(error)) from error


def file_register_of(directory: JobDirectory) -> FileRegister:
    """Return the register in a job's directory.

    Raises:
        ConfigurationError: The register of this job is elsewhere.
        CorruptFileError, FormatVersionError: The marker cannot be read.
    """
    marker = _read_marker(directory)
    if marker is not None:
        raise ConfigurationError(
            f"The register of the job in {directory.path!r} is in the coordination store of cluster "
            f"{marker['cluster_id']!r} of type {marker['type']!r}, not in that directory: set {options.HA_TYPE.key!r} "
            "and its other options."
        )
    return FileRegister.of(directory)


def register_of(
    directory: JobDirectory, configuration: Configuration, services: HighAvailabilityServices | None
) -> FencedRegister:
    """Return the register of a job, after making sure that its store can keep two drivers apart. Blocks.

    Args:
        directory: The directory of the job.
        configuration: Has the type of high availability.
        services: The services of that type; None for types that keep the register in files.

    Raises:
        ConfigurationError: The store has no register, or the job belongs to a register elsewhere.
        StorageError: The directory cannot be written, or cannot create files exclusively.
        CorruptFileError, FormatVersionError: The register is damaged, or a newer release has written it.
    """
    kind = ha_type(configuration)
    if kind in _OF_FILES:
        of_files = file_register_of(directory)
        of_files.require_exclusive_creation()
        of_files.read()  # damage, or a newer version, is an error now and not only in the term
        return of_files
    assert services is not None
    register = _register_from(services, directory.job_id, kind)
    cluster_id = cluster_id_of(configuration, kind)
    _claim(directory, {"type": kind, "cluster_id": cluster_id, "job_id": str(directory.job_id)})
    if register.read().version == 0:
        _require_no_checkpoints(directory, kind)
    return register


def _register_from(services: HighAvailabilityServices, job_id: JobID, kind: str) -> FencedRegister:
    factory = services.get_checkpoint_recovery_factory()
    register = factory.get_register(job_id)
    if not isinstance(register, FencedRegister):
        raise ConfigurationError(
            f"{options.HA_TYPE.key!r} {kind!r}: {type(factory).__name__} has no fenced register, so two drivers of one "
            "job could not be kept apart. Use a type whose store can compare and set."
        )
    return register


def _claim(directory: JobDirectory, claim: Mapping[str, str]) -> None:
    """Write the marker, then look for a register of files: a driver of that kind looks for the marker first."""
    path = join(directory.path, MARKER_NAME)
    is_new = _read_marker(directory) is None
    if is_new:
        with suppress(AlreadyExistError):
            directory.fs.create_exclusive(path, encode_document(_KIND, _FORMAT_VERSION, dict(claim)))
    found = _read_marker(directory)
    if found != dict(claim):
        raise ConfigurationError(
            f"The job in {directory.path!r} belongs to {found}, not to {dict(claim)}: two registers could not keep two "
            "drivers apart. Use the same cluster, another execution.checkpointing.dir or another job."
        )
    if is_new and FileRegister.of(directory).read().version:
        directory.fs.delete(path)
        raise ConfigurationError(
            f"The job in {directory.path!r} has its register there, as {options.HA_TYPE.key!r} none and filesystem "
            f"have, so it cannot be led by type {claim['type']!r}. To move it, give it another "
            "execution.checkpointing.dir and start it with -s and the path of its newest checkpoint or of a savepoint."
        )


def _require_no_checkpoints(directory: JobDirectory, kind: str) -> None:
    ids = [found for name in directory.fs.list_names(directory.path) if (found := checkpoint_id_of(name)) is not None]
    if ids:
        raise ConfigurationError(
            f"The job in {directory.path!r} has checkpoints up to {max(ids)}, but no register in the store of type "
            f"{kind!r}: it was deleted, or this is another store. Nothing is started without the job's state. Bring "
            "the register back, or give the job another execution.checkpointing.dir and start it with -s and the path "
            "of a checkpoint."
        )


def _read_marker(directory: JobDirectory) -> dict[str, Any] | None:
    path = join(directory.path, MARKER_NAME)
    try:
        body = decode_document(directory.fs.read(path), path, _KIND, _FORMAT_VERSION)
    except NotExistError:
        return None
    if not all(isinstance(body.get(field), str) for field in _FIELDS):
        raise CorruptFileError(path, None, "a field is missing or wrong.")
    return {field: body[field] for field in _FIELDS}
