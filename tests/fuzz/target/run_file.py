"""Any bytes where a run should be."""

from holdfast.state.run_file import check_run, forget_runs, handle_of, open_run
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced

FILES = LocalFileSystem()
PATH = str(directory() / "any.run")


def parse(data: bytes) -> None:
    forget_runs()
    replaced(directory() / "any.run", data)
    check_run(memoryview(data), PATH)
    run = open_run(FILES, "", handle_of(FILES, "", PATH))
    run.verify()
    for name in run.segment_names():
        for part in run.newest_first(name):
            assert len(part.table) == len(part.hash) == len(part)
