"""How jobs have ended, for those who ask later, also under another leader: a file for each end, the newest ones only.

::

    <storageDir>/<cluster id>/ended/<job id>-<nonce>.json     for the types that elect
    <working directory>/ended/<job id>-<nonce>.json           for the type none

Nothing is decided by them. Whether a job has ended, and whether its clean-up is owed, says the result store, which
forgets a job once everything is done; a file is written just before that. So one that is missing, or cannot be read, is
a job that is not shown.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.dispatcher.store.cluster_directory import cluster_directory
from holdfast.errors import HoldfastError, NotExistError
from holdfast.ha.job_manager_store.job_result import JobResult
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.scheme import FileSystem, join
from holdfast.storage.handle.document import decode_document, encode_document

_log = get_logger(__name__)
_DIRECTORY: Final = "ended"
_KIND: Final = "ended-job"
_FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{12}\.json")


class EndedJobs:
    """The files of one cluster. All methods block.

    Args:
        fs: The file system.
        directory: The directory above them.
        most: So many are kept.
    """

    def __init__(self, fs: FileSystem, directory: str, most: int) -> None:
        self._fs = fs
        self._directory = join(directory, _DIRECTORY)
        self._most = most

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str, most: int) -> EndedJobs:
        """Return those of the cluster of a configuration; the working directory holds them without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory), most)

    def keep(self, result: JobResult) -> None:
        """Keep how a job has ended; what was kept of it before is replaced, and of too many the oldest go.

        Raises:
            StorageError: It could not be written, or an old one not be removed.
        """
        document = encode_document(_KIND, _FORMAT_VERSION, {"result": result.to_json()})
        own = f"{result.job_id}-{new_nonce()}.json"
        self._fs.write_atomic(join(self._directory, own), document)
        others = [name for name in self._names() if name != own]
        superfluous = {name for name in others if name.startswith(str(result.job_id))}
        if len(others) - len(superfluous) >= self._most:
            kept = [name for name, _ in self._newest() if name != own]
            superfluous |= set(others) - set(kept[max(0, len(kept) - self._most + 1) :])
        if self._most == 0:
            superfluous.add(own)
        for name in sorted(superfluous):
            self._fs.delete_in(self._directory, name)

    def read(self) -> list[JobResult]:
        """Return what is kept, those that ended first in front.

        Raises:
            StorageError: The directory cannot be read.
        """
        return [result for _, result in self._newest()]

    def _newest(self) -> list[tuple[str, JobResult]]:
        """The last end of each job, with the name of its file."""
        found: dict[JobID, tuple[str, JobResult]] = {}
        for name in self._names():
            try:
                result = self._read(join(self._directory, name))
            except NotExistError:
                continue  # another leader has removed it
            except (*MALFORMED, HoldfastError) as error:
                _log.warning("How job %s has ended cannot be read, it is not shown: %s", name[:32], error)
                continue
            if result.job_id not in found or found[result.job_id][1].end_time <= result.end_time:
                found[result.job_id] = name, result
        return sorted(found.values(), key=lambda each: (each[1].end_time, each[0]))

    def _names(self) -> list[str]:
        return [name for name in sorted(self._fs.list_names(self._directory)) if _NAME.fullmatch(name)]

    def _read(self, path: str) -> JobResult:
        return JobResult.from_json(decode_document(self._fs.read(path), path, _KIND, _FORMAT_VERSION)["result"])
