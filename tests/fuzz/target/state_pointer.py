"""A pointer as the stores of a job manager keep it, with a checksum that is right."""

from holdfast.ha.entry_map import decode_marked
from holdfast.ha.execution_plan_store import execution_plan_serializer
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.state_handle import FileSystemStateStorageHelper
from tests.fuzz.document import PATH, sealed

STORAGE = FileSystemStateStorageHelper(LocalFileSystem(), "/checkpoints", "plan", execution_plan_serializer())


def parse(data: bytes) -> None:
    handle, is_marked = decode_marked(sealed("state-handle", 1, data), PATH, STORAGE)
    assert type(is_marked) is bool
    handle.get_state_size()
