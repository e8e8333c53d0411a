"""What a query server answers: a client, and a proxy, reads it from whoever listens at that address."""

from holdfast.kernel.ids import JobID
from holdfast.queryable.client.client_core import ClientRequest, scan_batch, scan_head
from holdfast.queryable.wire.connection import ClientSession, raise_failure
from holdfast.queryable.wire.frame import Frame, FrameType
from holdfast.queryable.wire.location import KvStateLocation
from holdfast.queryable.wire.request import StateDescription


def parse(data: bytes) -> None:
    """The first line is a header; what follows is the body."""
    header, _, body = data.partition(b"\n")
    frame = Frame(FrameType.RESULT, 1, header, body)
    ClientSession(("127.0.0.1", 9069)).accept_greeting(frame)
    fields = frame.fields()
    if "placements" in fields:
        KvStateLocation.from_json(fields).placements_of(0)
    elif "error" in fields:
        raise_failure(frame._replace(type=FrameType.FAILURE))
    elif "limits" in fields:  # it answers a scan
        head = scan_head(frame)
        scan_batch(frame, head)
    else:
        what = StateDescription.from_json(fields.get("description") or {})
        what.key_codec, what.value_type, what.fingerprint, what.explanation  # noqa: B018 - properties that read
        ClientRequest(JobID("0" * 32), what.name, ["k"]).many(frame, what)
