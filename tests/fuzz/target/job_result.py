"""A result of a job, as its file has it."""

from holdfast.ha.job_result_store import FileSystemJobResultStore
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced, sealed

RESULTS = directory() / "results"
PATH = str(RESULTS / f"{'0' * 32}_DIRTY.json")


def parse(data: bytes) -> None:
    replaced(RESULTS / f"{'0' * 32}_DIRTY.json", sealed("job-result", 1, data))
    for result in FileSystemJobResultStore(LocalFileSystem(), str(RESULTS)).get_dirty_results():
        result.to_json()
        result.is_success()
