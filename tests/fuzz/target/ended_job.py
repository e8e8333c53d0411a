"""How a job has ended, in the file that a job manager shows it from; one that cannot be read is not shown."""

import json

from holdfast.dispatcher.store import EndedJobs
from holdfast.errors import HoldfastError
from holdfast.ha.job_result_store import JobResult
from holdfast.kernel.ids import JobID
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced, sealed

ROOT = directory() / "history"
JOBS = EndedJobs(LocalFileSystem(), str(ROOT), 2)
KNOWN = JobResult(JobID("f" * 32), "known", end_time=7)


def parse(data: bytes) -> None:
    replaced(ROOT / "ended" / f"{'0' * 32}-{'0' * 12}.json", sealed("ended-job", 1, data))
    JOBS.add(KNOWN)
    shown = JOBS.read()
    assert KNOWN in shown, "one that cannot be read hides the others"
    for result in shown:
        json.dumps(result.to_json()).encode()
        assert JobResult.from_json(result.to_json()) == result
    if len(shown) < 2:
        raise HoldfastError("it is not shown")
