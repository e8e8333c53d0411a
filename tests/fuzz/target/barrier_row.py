"""What a task says of itself and carries of others, or the file that it names: what the driver reads of all tasks."""

from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.task_report import TaskReport, decode_report
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory

JOB = JobDirectory(LocalFileSystem(), str(directory() / "barriers"), JobID("0" * 32))


def parse(data: bytes) -> None:
    barrier = decode_report(data, JOB)
    assert TaskReport.from_json(barrier.to_json(), barrier.upstream) == barrier
