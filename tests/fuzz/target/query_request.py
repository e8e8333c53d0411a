"""Requests to a query server that holds a state of each kind: the first line is a header, the rest are the keys."""

from functools import cache
from typing import Any

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.replica.checkpoint_view import CheckpointView, RunningScan, ViewBuilder
from holdfast.queryable.server.routing import LocalStates
from holdfast.queryable.wire.frame import Frame, FrameType, Limits
from holdfast.queryable.wire.request import GetRequest, ScanRequest
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.fuzz.document import directory
from tests.programs.written_job import WrittenJob

LIMITS = Limits()


@cache
def view() -> CheckpointView:
    """A checkpoint with a value of several columns, a list and a map."""
    value = ValueStateDescriptor("value", "a bigint, b string, c date, d decimal(10,2)")
    listed, mapped = ListStateDescriptor("list", "double"), MapStateDescriptor("map", "bigint", "string")
    for descriptor in (value, listed, mapped):
        descriptor.set_queryable(descriptor.name)

    def write(states: Any) -> None:
        states.value.update((7, "x", None, None))
        states.list.update([0.5, 1.5])
        states.map.put(1, "one")

    job = WrittenJob(directory() / "asked", [value, listed, mapped])
    job.epoch_of([(key, write) for key in ("ada", "bob", "cy")])
    return ViewBuilder(job.directory, lambda groups: (KeyGroupRange(0, groups - 1),)).build(job.metadata(1), None)


def parse(data: bytes) -> None:
    header, _, body = data.partition(b"\n")
    frame = Frame(FrameType.GET, 1, header, body)
    if b'"count"' in header:
        request = GetRequest.parse(frame)
        LIMITS.check_keys(request.count)
        LocalStates(LIMITS).get(request, body, view(), 1)
        return
    scan = ScanRequest.parse(frame)
    running = RunningScan(LocalStates(LIMITS).state(view(), scan.state), scan, LIMITS.message_bytes)
    while running.next() is not None:
        pass
