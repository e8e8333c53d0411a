"""Where a job's REST interface is: a file in the job's directory, readable for the job's user only.

::

    <job directory>/rest/<fencing token>-<nonce>.json
        {"url", "bearer_token", "host", "pid", "fencing_token", "job_id"}

Requests show the bearer token; the fencing token is the leader's, as in the register. Files of jobs that began before
the two were told apart by name have them as ``bearer`` and ``token``.

The fencing token is part of the name, so a new leader's file comes last, whatever a deposed one writes. Each leader
removes the files of those before it, and its own when it ends.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass, fields
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import CorruptFileError, NotExistError, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.file_system.path import join
from holdfast.storage.job.job_directory import JobDirectory

DIRECTORY: Final = "rest"
_RENAMED: Final = {"bearer": "bearer_token", "token": "fencing_token"}
_ATTEMPTS: Final = 100
_NAME: Final = re.compile(r"([0-9]{19})-[0-9a-f]{12}\.json")


@dataclass(frozen=True)
class RestAddress:
    """How to reach a job's master.

    Attributes:
        url: Without a path.
        bearer_token: What a request must show in its ``Authorization`` header.
        host: The host on whose loopback it listens.
        pid: The process.
        fencing_token: The leader's, as it stands in the register.
        job_id: The job's 32 hexadecimal digits.
    """

    url: str
    bearer_token: str
    host: str
    pid: int
    fencing_token: int
    job_id: str

    @property
    def is_here(self) -> bool:
        """Whether it listens on this host."""
        return self.host == socket.gethostname()


class AddressFile:
    """The file of one process.

    Args:
        directory: The job's directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._fs = directory.fs
        self._job_id = str(directory.job_id)
        self._directory = join(directory.path, DIRECTORY)
        self._name: str | None = None

    def publish(self, url: str, bearer_token: str, fencing_token: int) -> None:
        """Say where this process listens, as the leader with a fencing token; what leaders before it have said goes.

        Raises:
            StorageError: It cannot be written.
        """
        address = RestAddress(url, bearer_token, socket.gethostname(), os.getpid(), fencing_token, self._job_id)
        name = f"{fencing_token:019d}-{new_nonce()}.json"
        self._fs.create_private(join(self._directory, name), json.dumps(asdict(address)).encode())
        self._name = name
        for found in self._fs.list_names(self._directory):
            match = _NAME.fullmatch(found)
            if match and int(match[1]) < fencing_token:
                self._fs.delete_in(self._directory, found)

    def withdraw(self) -> None:
        """This process listens no more.

        Raises:
            StorageError: The file cannot be deleted, or a link has taken the place of its directory.
        """
        if self._name is not None:
            self._fs.delete_in(self._directory, self._name)
            self._fs.delete_directory(self._directory)


def addresses(directory: JobDirectory) -> list[RestAddress]:
    """Return the addresses that processes have left in a job's directory, that of the newest leader first.

    Raises:
        CorruptFileError: A file is none of ours.
        StorageError: A file is listed again and again, and is not there.
    """
    place = join(directory.path, DIRECTORY)
    for _ in range(_ATTEMPTS):
        names = [name for name in directory.fs.list_names(place) if _NAME.fullmatch(name)]
        try:
            return [_read(directory, join(place, name)) for name in sorted(names, reverse=True)]
        except NotExistError as error:
            gone = error  # a process has ended just now, or begun another term
    raise StorageError(f"Where the job is reached cannot be told, {place!r} has links that lead nowhere: {gone}")


def check_url(url: str, *schemes: str) -> None:
    """Check that a client can be sent to a place.

    Raises:
        ValueError: It cannot: another scheme, no host, no port.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname or not parts.port:
        raise ValueError(f"{url!r:.80} is no place of a REST interface")


def _read(directory: JobDirectory, path: str) -> RestAddress:
    try:
        said = json.loads(directory.fs.read(path))
        found = RestAddress(**{_RENAMED.get(name, name): value for name, value in said.items()})
        for field in fields(RestAddress):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name!r} is {getattr(found, field.name)!r:.80}")
        check_url(found.url, "http")
    except MALFORMED as error:
        raise CorruptFileError(path, None, f"it is no address of a job: {error!r:.300}.") from error
    return found
