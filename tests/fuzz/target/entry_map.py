"""The entries of a state handle store in files."""

from holdfast.ha.entry_map import ENTRY_MAP_FORMAT
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.versioned_document import FileDocument
from tests.fuzz.document import directory, replaced, sealed

ENTRIES = directory() / "entries"
PATH = str(ENTRIES)


def parse(data: bytes) -> None:
    replaced(ENTRIES / f"v-{1:020d}", sealed("state-handle-store", 1, data))
    FileDocument(LocalFileSystem(), PATH, ENTRY_MAP_FORMAT).read()
