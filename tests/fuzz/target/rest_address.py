"""The file that says where a job's REST interface is; a command reads it, and goes there."""

from holdfast.kernel.ids import JobID
from holdfast.rest.client import addresses
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced

JOB = JobDirectory(LocalFileSystem(), str(directory() / "served"), JobID("0" * 32))
FILE = directory() / "served" / ("0" * 32) / "rest" / f"{1:019d}-{'0' * 12}.json"
PATH = str(FILE)


def parse(data: bytes) -> None:
    replaced(FILE, data)
    for address in addresses(JOB):
        assert address.is_here in (True, False)
        repr(address)
