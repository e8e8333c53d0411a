"""The footer of a run, with all checksums right: what it says of segments, and the readers that believe it."""

import json
from functools import cache
from typing import Any

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.replica.checkpoint_view import RunningScan, ViewBuilder
from holdfast.queryable.wire.request import ScanRequest
from holdfast.state.run_file import block_digests, check_run, encode_trailer, forget_runs, handle_of, open_run
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced
from tests.programs.written_job import WrittenJob

FILE = directory() / "footer.run"
PATH = str(directory())
JOB = JobDirectory(LocalFileSystem(), str(directory()), JobID("0" * 32), create_subdir=False)
ALL = KeyGroupRange(0, 127)


@cache
def segments() -> bytes:
    """What stands before the footer of a run with a value, a list and a map."""
    return whole()[0]


@cache
def whole() -> tuple[bytes, bytes]:
    """A run: what stands before its footer, and the footer."""
    from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

    value, listed = ValueStateDescriptor("value", "bigint"), ListStateDescriptor("list", "string")
    mapped = MapStateDescriptor("map", "string", "array<double>")
    for descriptor in (value, listed, mapped):
        descriptor.set_queryable(descriptor.name)

    def write(states: Any) -> None:
        states.value.update(7)
        states.list.update(["a", "b"])
        states.map.put("x", [1.5])

    written = WrittenJob(directory() / "written", [value, listed, mapped], parallelism=1)
    written.epoch_of([(key, write) for key in ("ada", "bob", "cy")])
    [handle] = written.runs
    data = written.directory.fs.read(written.directory.absolute(handle.path))
    return data[: handle.footer_offset], data[handle.footer_offset : -64]


def sealed_run(body: bytes, footer: bytes) -> bytes:
    """A run whose checksums are right; those of its blocks are put into a footer that says how long they are."""
    try:
        fields = json.loads(footer)
        size = fields["block_size"]
        if fields.get("blocks") and type(size) is int and size > 0:
            blocks = [f"{digest:016x}" for digest in block_digests([body], size)]
            footer = json.dumps(fields | {"blocks": blocks}).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return body + footer + encode_trailer(len(body), footer)


def parse(data: bytes) -> None:
    read(sealed_run(segments(), data))


def read(run: bytes) -> None:
    """Reads a run with everything that reads runs."""
    forget_runs()
    replaced(FILE, run)
    check_run(memoryview(run), PATH)
    handle = handle_of(JOB.fs, JOB.path, FILE.name)
    reader = open_run(JOB.fs, JOB.path, handle)
    reader.verify()
    operator = OperatorMetadata("op", "0" * 32, "op", 1, 128, {"kind": "atomic", "type": "string"}, (handle,))
    for name in reader.segment_names():
        segment = reader.segment(name)
        assert segment is not None
        rows = segment.range(ALL)
        assert 0 <= rows.start <= rows.stop <= len(segment) == len(segment.hash)
        assert sum(len(part.table) for part in segment.parts) == len(segment)
    document = CheckpointMetadata(str(JOB.job_id), "job", 1, 1, 1, "line", 0, 0, (operator,))
    view = ViewBuilder(JOB, lambda groups: (KeyGroupRange(0, groups - 1),)).build(document, None)
    for state in view.states.values():
        if state.damage is None:
            scan = RunningScan(state, ScanRequest("0" * 32, state.description.name), 1 << 20)
            while scan.next() is not None:
                pass
