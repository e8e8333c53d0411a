"""A pointer as the stores of a job manager keep it, with a checksum that is right."""

from holdfast.ha.job_manager_store.execution_plan import execution_plan_serializer
from holdfast.ha.job_manager_store.pointer import decode_marked
from holdfast.storage.file_system.scheme import LocalFileSystem
from holdfast.storage.handle.state_handle import FileSystemStateStorageHelper
from tests.fuzz.document import PATH, sealed

STORAGE = FileSystemStateStorageHelper(LocalFileSystem(), "/checkpoints", "plan", execution_plan_serializer())


def parse(data: bytes) -> None:
    handle, is_marked = decode_marked(sealed("state-handle", 1, data), PATH, STORAGE)
    assert type(is_marked) is bool
    handle.get_state_size()
