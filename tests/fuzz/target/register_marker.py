"""`register.json`, which says in which store the register of a job is."""

from holdfast.ha.job_register import has_external_register, job_id_in
from holdfast.kernel.ids import JobID
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced, sealed

JOB = JobDirectory(LocalFileSystem(), str(directory() / "marked"), JobID("0" * 32))
PATH = f"{JOB.path}/register.json"


def parse(data: bytes) -> None:
    replaced(directory() / "marked" / ("0" * 32) / "register.json", sealed("job-register", 1, data))
    assert has_external_register(JOB)
    job_id_in(JOB)
