"""Results of finished jobs as files of a shared directory.

``<job id>_DIRTY.json`` while clean-up is owed, ``<job id>.json`` afterwards, or nothing with delete-on-commit. A file
appears whole or not at all, so a crash in the middle of a write leaves nothing that a later start would stumble over.
"""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.ha.job_manager_store.job_result import JobResult
from holdfast.ha.job_manager_store.job_result_store import JobResultStore, already_exists
from holdfast.kernel.ids import JobID
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.scheme import FileSystem, join
from holdfast.storage.handle.document import decode_document, encode_document

_log = get_logger(__name__)

_KIND: Final = "job-result"
_FORMAT_VERSION: Final = 1
_DIRTY: Final = "_DIRTY.json"


class FileSystemJobResultStore(JobResultStore):
    """Results in files.

    Args:
        fs: The file system.
        directory: The directory, which is no link; the first write makes it.
        delete_on_commit: Whether a result is deleted instead of marked as clean.
        executor: Where the work is done; None: in the calling thread.
    """

    def __init__(
        self, fs: FileSystem, directory: str, *, delete_on_commit: bool = True, executor: Executor | None = None
    ) -> None:
        super().__init__(executor)
        self._fs = fs
        self._directory = directory
        self._delete_on_commit = delete_on_commit

    def _create_dirty(self, result: JobResult) -> None:
        path = self._dirty_path(result.job_id)
        document = encode_document(_KIND, _FORMAT_VERSION, {"result": result.to_json()})
        try:
            self._fs.create_exclusive(path, document)
        except AlreadyExistError as error:
            raise already_exists(result.job_id) from error
        except PossibleInconsistentStateError:
            with suppress(NotExistError):
                if self._fs.read(path) == document:
                    return
            raise

    def _mark_clean(self, job_id: JobID) -> None:
        if self._delete_on_commit:
            self._fs.delete_in(self._directory, f"{job_id}{_DIRTY}")
        else:
            self._fs.rename(self._dirty_path(job_id), self._clean_path(job_id))

    def _has_dirty(self, job_id: JobID) -> bool:
        # A crash during the renaming leaves both: then the job is clean.
        return self._fs.exists(self._dirty_path(job_id)) and not self._has_clean(job_id)

    def _has_clean(self, job_id: JobID) -> bool:
        return self._fs.exists(self._clean_path(job_id))

    def _dirty_results(self) -> list[JobResult]:
        results = []
        for name in sorted(filter(_is_dirty, self._fs.list_names(self._directory))):
            if self._fs.exists(join(self._directory, name.removesuffix(_DIRTY) + ".json")):
                continue
            with suppress(NotExistError):  # marked as clean meanwhile
                results.append(self._read(join(self._directory, name)))
        return results

    def _read(self, path: str) -> JobResult:
        body = decode_document(self._fs.read(path), path, _KIND, _FORMAT_VERSION)
        try:
            return JobResult.from_json(body["result"])
        except (*MALFORMED, ConfigurationError) as error:
            raise CorruptFileError(path, None, f"it is not the result of a job: {error!r}.") from error

    def _dirty_path(self, job_id: JobID) -> str:
        return join(self._directory, f"{job_id}{_DIRTY}")

    def _clean_path(self, job_id: JobID) -> str:
        return join(self._directory, f"{job_id}.json")

    def __repr__(self) -> str:
        return f"FileSystemJobResultStore({self._directory!r})"


def _is_dirty(name: str) -> bool:
    """Whether it is the name of a result: what else lies there is not ours."""
    if not name.endswith(_DIRTY):
        return False
    try:
        JobID.from_hex(name.removesuffix(_DIRTY))
    except ConfigurationError:
        _log.warning("Skipping %r among the results of jobs: it names no job.", name)
        return False
    return True
