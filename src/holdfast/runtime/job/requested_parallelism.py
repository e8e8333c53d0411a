"""The parallelism that was requested while a job ran, which the next leader uses as well.

Each accepted request is a document in the job's directory, `parallelism-<token>-<number>`; the highest one counts. It
holds for the incarnation and the submission in which it was requested: a fresh start, a start from a path and another
submission use the parallelism of the program. Older releases ignore the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.errors import (
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.kernel import fault
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import final_name
from holdfast.storage.register import RegisterWriter
from holdfast.storage.state_handle import decode_document, encode_document

logger = get_logger(__name__)

_KIND: Final = "parallelism"
_FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"parallelism-([0-9]{19})-([0-9]{6})")

_Version = tuple[int, int]


class RequestedParallelism:
    """The requested parallelism of one job, durable.

    Args:
        directory: The job's directory.
        incarnation: The incarnation of the job.
        submission: Its submission to a job manager; empty if there is none.
    """

    def __init__(self, directory: JobDirectory, incarnation: str, submission: str = "") -> None:
        self._directory = directory
        self._owner = {"incarnation": incarnation, "submission": submission}

    def read(self) -> dict[str, int]:
        """Return the parallelism by uid, the empty uid for all operators; empty if none was requested. Blocks.

        Raises:
            StorageError: The directory cannot be read.
        """
        for version in sorted(self._versions(), reverse=True):
            try:
                found = self._decode(version)
            except NotExistError:  # a deposed leader withdraws its own
                continue
            except (CorruptFileError, FormatVersionError) as error:
                logger.warning(
                    "The parallelism that was requested while the job ran cannot be read, so that of the program is "
                    "used. Rescale again: %s",
                    error,
                )
                return {}
            if found is not None:
                return found
        return {}

    def write(self, writer: RegisterWriter, parallelism: Mapping[str, int]) -> None:
        """Make a request durable. Blocks.

        Raises:
            FencedError: Another leader took over; it does not use the request.
            PossibleInconsistentStateError: It is not known whether the next leader uses the request.
            StorageError: It was not written.
        """
        writer.check()
        versions = list(self._versions())
        number = max((number for token, number in versions if token == writer.token), default=0) + 1
        version = writer.token, number
        body = {**self._owner, "parallelism": dict(parallelism)}
        try:
            with fault.point("rescale.write"):
                self._directory.fs.create_exclusive(self._path(version), encode_document(_KIND, _FORMAT_VERSION, body))
        except (HoldfastError, OSError) as error:
            if not self._is_written(version, error):
                raise
        self._require_lead(writer, version)
        _delete(self._directory, [name for name in _names(self._directory) if _version_of(name) < version])

    def _require_lead(self, writer: RegisterWriter, version: _Version) -> None:
        """Withdraw a request if it may have come after another leader began."""
        try:
            writer.check()
        except HoldfastError:
            _delete(self._directory, [_name(version)])
            raise

    def _is_written(self, version: _Version, error: HoldfastError | OSError) -> bool:
        """Return whether a write whose answer was lost has happened."""
        path = self._path(version)
        try:
            if not self._directory.fs.exists(path):
                return False
            self._directory.fs.make_durable(path)
        except HoldfastError:
            raise PossibleInconsistentStateError(
                f"It is not known whether {path!r} was written: {error} This leader keeps its parallelism. Rescale "
                "again when the storage is available."
            ) from error
        return True

    def _decode(self, version: _Version) -> dict[str, int] | None:
        """Return the content of a document; None if it is of another incarnation or submission."""
        path = self._path(version)
        body = decode_document(self._directory.fs.read(path), path, _KIND, _FORMAT_VERSION)
        try:
            wanted = {uid: number for uid, number in body["parallelism"].items() if _is_valid(uid, number)}
            return wanted if all(body[name] == value for name, value in self._owner.items()) else None
        except PARSE_ERRORS as error:
            raise CorruptFileError(path, None, f"a field is missing or wrong: {error}.") from error

    def _versions(self) -> Iterator[_Version]:
        return (_version_of(name) for name in _names(self._directory) if final_name(name) is None)

    def _path(self, version: _Version) -> str:
        return join(self._directory.path, _name(version))


def forget_requested_parallelism(directory: JobDirectory, token: int) -> None:
    """Delete the requests up to a token, because the job has ended for good; failures are only logged. Blocks."""
    try:
        _delete(directory, [name for name in _names(directory) if _version_of(name)[0] <= token])
    except HoldfastError as error:
        logger.warning("Could not delete the requested parallelism in %r: %s", directory.path, error)


def _names(directory: JobDirectory) -> Iterator[str]:
    """Yield the names of all documents, also of such that were never finished."""
    for name in directory.fs.list_names(directory.path):
        if _NAME.fullmatch(final_name(name) or name):
            yield name


def _delete(directory: JobDirectory, names: list[str]) -> None:
    for name in names:
        try:
            directory.fs.delete_in(directory.path, name)
        except HoldfastError as error:
            logger.warning("Could not delete %r: %s", join(directory.path, name), error)


def _name(version: _Version) -> str:
    return f"parallelism-{version[0]:019d}-{version[1]:06d}"


def _version_of(name: str) -> _Version:
    match = _NAME.fullmatch(final_name(name) or name)
    assert match is not None
    return int(match[1]), int(match[2])


def _is_valid(uid: object, number: object) -> bool:
    if type(uid) is not str or type(number) is not int or number < 1:
        raise ValueError(f"{uid!r}: {number!r} is no parallelism")
    return True
