"""The file that says where a job manager is reached; a command reads it, and asks there."""

import ssl

from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.dispatcher.store import AddressBook
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced

SESSION = "00000000-0000-0000-0000-000000000000"
BOOK = AddressBook(LocalFileSystem(), str(directory() / "managers"))
FILE = directory() / "managers" / "rest" / f"{SESSION}-{'0' * 12}.json"
PATH = str(FILE)
TLS = ssl.create_default_context()


def parse(data: bytes) -> None:
    replaced(FILE, data)
    [address] = BOOK.addresses()
    assert BOOK.addresses(SESSION) == [address]
    assert address.is_here in (True, False)
    repr(JobManagerClient(address, TLS).job("0" * 32).address)
