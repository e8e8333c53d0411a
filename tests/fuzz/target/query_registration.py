"""What a server tells the leader that it holds, and what is asked of that: a kind, a header, a line end and a body."""

from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.kernel.ids import JobID
from holdfast.queryable.server.proxy import LocationCache, LocationOracles
from holdfast.queryable.server.routing import LocalStates, Router
from holdfast.queryable.server.server import QueryService
from holdfast.queryable.wire.errors import QueryError
from holdfast.queryable.wire.frame import Frame, FrameReader, FrameType, Limits
from holdfast.queryable.wire.location import KvStateLocation, KvStateLocationRegistry

JOB: Final = JobID("0" * 32)
LIMITS: Final = Limits()
KINDS: Final = {b"REGISTER": FrameType.REGISTER, b"LOCATE": FrameType.LOCATE, b"DESCRIBE": FrameType.DESCRIBE}


class _Connection:
    """Takes the part of a connection over which the token of servers was shown."""

    is_server = True

    def __init__(self) -> None:
        self.peer_watchdog = self

    def watch(self, interval: float, most: int) -> None: ...


def parse(data: bytes) -> None:
    """Several requests are told apart by an empty line; what a client makes of the answers belongs to it."""
    nobody: Any = None
    local, oracles, connection = LocalStates(LIMITS), LocationOracles(), _Connection()
    locations = LocationCache(oracles)
    service = QueryService(local, Router(local, locations, nobody), locations, LIMITS)
    registry = service.registries[str(JOB)] = KvStateLocationRegistry(JOB)
    for request in data.split(b"\n\n"):
        kind, _, rest = request.partition(b" ")
        header, _, body = rest.partition(b"\n")
        try:
            _answered(service, Frame(KINDS.get(kind, FrameType.JOBS), 1, header, body), connection)
        except QueryError:
            raise
        except HoldfastError as error:
            raise AssertionError(f"it is answered as if the server were to blame: {error}") from error
        finally:
            for name in list(registry._states):
                location = registry.get_kv_state_location(name)
                assert location is not None
                assert KvStateLocation.from_json(location.to_json()) == location, "who asks cannot read where it is"
    service.closed(connection)  # type: ignore[arg-type]
    assert not registry._states, "what a server held that is gone is still said to be there"


def _answered(service: QueryService, frame: Frame, connection: Any) -> None:
    answer = service.answer(frame, connection)
    if not isinstance(answer, bytes):  # another server is asked
        answer.close()  # type: ignore[union-attr]
        return
    for told in FrameReader(1 << 30, None).feed(answer):
        fields = told.fields()
        if "location" in fields:
            KvStateLocation.from_json(fields["location"]).placements_of(0)
