"""The entries of a state handle store in files."""

from holdfast.ha.file_system import FileEntryMapBackend
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced, sealed

ENTRIES = directory() / "entries"
PATH = str(ENTRIES)


def parse(data: bytes) -> None:
    replaced(ENTRIES / f"v-{1:020d}", sealed("state-handle-store", 1, data))
    FileEntryMapBackend(LocalFileSystem(), PATH).load()
