"""Where the job managers of a cluster are reached, and the token that requests show: one private file for each term.

::

    <storageDir>/<cluster id>/rest/<leader session>-<nonce>.json     for the types that elect
    <working directory>/rest/<leader session>-<nonce>.json          for the type none
        {"url", "bearer_token", "host", "pid", "session"}

Who leads is known from the election, which many may read; the token only from here, so whoever may read the storage of
the cluster may steer its jobs. On a file system the file is for the user of the job manager alone.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass, fields
from typing import Final

from holdfast.dispatcher.store.cluster_directory import cluster_directory
from holdfast.errors import CorruptFileError, NotExistError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.malformed import MALFORMED
from holdfast.rest.address import check_url
from holdfast.storage.file_system.path import base_name
from holdfast.storage.file_system.scheme import FileSystem, join

_DIRECTORY: Final = "rest"
_NAME: Final = re.compile(r"([0-9a-f-]{36})-[0-9a-f]{12}\.json")


@dataclass(frozen=True)
class JobManagerAddress:
    """How to reach a job manager.

    Attributes:
        url: Without a path.
        bearer_token: What a request must show in its ``Authorization`` header.
        host: Where it runs.
        pid: The process.
        session: The session in which it leads.
    """

    url: str
    bearer_token: str
    host: str
    pid: int
    session: str

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()


class AddressBook:
    """The files of one cluster.

    Args:
        fs: The file system.
        directory: The directory above them.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = join(directory, _DIRECTORY)
        self._own: str | None = None

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str) -> AddressBook:
        """Return that of the cluster of a configuration; the working directory holds it without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory))

    def publish(self, url: str, bearer_token: str, session: str) -> None:
        """Say where this process is reached in a term, and remove what earlier terms have said.

        Raises:
            StorageError: It cannot be written.
        """
        address = JobManagerAddress(url, bearer_token, socket.gethostname(), os.getpid(), session)
        path = join(self._directory, f"{session}-{new_nonce()}.json")
        self._fs.create_private(path, json.dumps(asdict(address)).encode())
        before, self._own = self._own, path
        if before is not None:
            self._fs.delete_in(self._directory, base_name(before))

    def withdraw(self) -> None:
        """This process is reached no more.

        Raises:
            StorageError: The file cannot be deleted, or a link has taken the place of its directory.
        """
        if self._own is not None:
            self._fs.delete_in(self._directory, base_name(self._own))
            self._own = None

    def clear(self, keep: str) -> None:
        """Remove what others have left, once it is known that none of them leads.

        Args:
            keep: The session of this process.
        """
        for name in self._fs.list_names(self._directory):
            match = _NAME.fullmatch(name)
            if match and match[1] != keep:
                self._fs.delete_in(self._directory, name)

    def addresses(self, session: str | None = None) -> list[JobManagerAddress]:
        """Return what job managers have said, or what the leader of one session has.

        Raises:
            CorruptFileError: A file is none of ours.
        """
        found = []
        for name in sorted(self._fs.list_names(self._directory)):
            match = _NAME.fullmatch(name)
            if match is None or (session is not None and match[1] != session):
                continue
            path = join(self._directory, name)
            try:
                found.append(_read(self._fs, path))
            except NotExistError:
                continue  # withdrawn meanwhile
        return found


def _read(fs: FileSystem, path: str) -> JobManagerAddress:
    try:
        found = JobManagerAddress(**json.loads(fs.read(path)))
        for field in fields(JobManagerAddress):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name!r} is {getattr(found, field.name)!r:.80}")
        check_url(found.url, "http", "https")
    except MALFORMED as error:
        raise CorruptFileError(path, None, f"it is no address of a job manager: {error!r:.300}.") from error
    return found
