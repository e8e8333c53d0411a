"""`register.json`, which says in which store the register of a job is."""

from holdfast.ha.services.job_register import is_elsewhere, job_id_in
from holdfast.kernel.ids import JobID
from holdfast.storage.file_system.scheme import LocalFileSystem
from holdfast.storage.job.job_directory import JobDirectory
from tests.fuzz.document import directory, replaced, sealed

JOB = JobDirectory(LocalFileSystem(), str(directory() / "marked"), JobID("0" * 32))
PATH = f"{JOB.path}/register.json"


def parse(data: bytes) -> None:
    replaced(directory() / "marked" / ("0" * 32) / "register.json", sealed("job-register", 1, data))
    assert is_elsewhere(JOB)
    job_id_in(JOB)
