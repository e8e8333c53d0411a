"""What the blocking and the asyncio client have in common: everything but waiting. No I/O here.

A *conversation* is a generator. It yields a request, is given the frame that answers it, or the error that was raised
instead, and returns what the caller has asked for. Each client has one method that carries it on::

    client                          conversation
      | <------------- ServerCall ------ |   the first step
      | sends it, waits               |
      | -- Frame, or QueryError ----> |   what does it say? what is the state? once more on another connection?
      | <- the next ServerCall, or       |
      |    what was asked for ------- |

How connections are made, kept and shared is a client's own business.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.malformed import MALFORMED
from holdfast.queryable.client.client_request import ClientRequest, job_id_of, origin_of
from holdfast.queryable.client.result import ScanHead
from holdfast.queryable.replica.scan import Condition, scan_schema
from holdfast.queryable.wire.answer_batch import answer_batch
from holdfast.queryable.wire.consistency import Consistency
from holdfast.queryable.wire.description import StateDescription
from holdfast.queryable.wire.errors import BadRequestError, ProtocolError, QueryConnectionError
from holdfast.queryable.wire.frame import Frame, FrameType, to_header
from holdfast.queryable.wire.request import ScanRequest, checked_deadline

PATIENCE: Final = 5.0
"""Seconds that a client waits beyond the deadline, all of which the server may use."""
_SHORT: Final = 15.0
"""Seconds to wait for what no checkpoint has to complete for."""
T = TypeVar("T")


class ServerCall(NamedTuple):
    """What a client sends.

    Attributes:
        kind: See `FrameType`.
        header: A JSON object.
        body: The parts of the body.
        timeout: Seconds to wait for the answer, or for each part of it.
        is_repeated: It was sent already, on a connection that was lost: others of the same age are gone as well.
    """

    kind: FrameType
    header: bytes
    body: Sequence[Any] = ()
    timeout: float = _SHORT
    is_repeated: bool = False


Conversation = Generator[ServerCall, Frame, T]


class ClientCore:
    """What a client knows of the states it has asked for, and its conversations. Thread-safe; a conversation is not."""

    def __init__(self) -> None:
        self._known: dict[tuple[JobID, str], StateDescription] = {}

    def known(self, client_request: ClientRequest) -> StateDescription | None:
        """Return what the state of a request was when it was last asked for."""
        return self._known.get((client_request.job_id, client_request.state))

    def ask(self, client_request: ClientRequest) -> Conversation[tuple[Frame, StateDescription]]:
        """Ask for the state of the keys of a request; ends with the answer, and what the state is.

        What the state is is asked for once, and again when an answer or an error says that it has changed: the job may
        have been started again with other types.

        Raises:
            QueryError: As for `QueryableStateClient.get_kv_state`.
        """
        what = self.known(client_request) or (yield from self._describe(client_request))
        call, failure = _get(client_request, what), None
        try:
            try:
                answer = yield call  # not by `_sent`: a generator more is felt, as most requests are single gets
            except QueryConnectionError as error:
                answer = yield _repeated(call, error)
            if client_request.is_about(answer, what):
                return answer, what
        except BadRequestError as error:
            failure = error
        renewed = yield from self._describe(client_request)
        if failure is not None and renewed.fingerprint == what.fingerprint:
            raise failure
        return (yield from _sent(_get(client_request, renewed))), renewed

    def describe(self, job_id: JobID | str, name: str) -> Conversation[StateDescription]:
        """Ask what a state is."""
        return _described((yield from _sent(_description_request(job_id_of(job_id), name))))[0]

    def states(self, job_id: JobID | str) -> Conversation[list[StateDescription]]:
        """Ask which queryable states a job has."""
        return _described((yield from _sent(_description_request(job_id_of(job_id), None))))

    def jobs(self) -> Conversation[list[dict[str, Any]]]:
        """Ask which jobs the server holds."""
        found = (yield from _sent(ServerCall(FrameType.JOBS, b"{}"))).fields().get("jobs")
        if not isinstance(found, list):
            raise ProtocolError("The answer has no jobs.")
        return found

    def _describe(self, client_request: ClientRequest) -> Conversation[StateDescription]:
        what = yield from self.describe(client_request.job_id, client_request.state)
        self._known[client_request.job_id, client_request.state] = what
        return what


def scan_request(
    job_id: JobID | str,
    name: str,
    consistency: Consistency,
    deadline: float,
    *,
    key_groups: KeyGroupRange | None = None,
    where: Sequence[Condition] = (),
    batch_rows: int = ScanRequest.batch_rows,
    hold: float = 0.0,
) -> ServerCall:
    """Return the request for a scan, or with `hold` for a checkpoint that is kept so many seconds.

    It is answered in parts: the first one is for `scan_head`, all others for `scan_batch`.

    Raises:
        BadRequestError: The deadline is no number, or a condition compares with what cannot be sent.
    """
    seconds = checked_deadline(deadline)
    scan = ScanRequest(
        str(job_id_of(job_id)), name, consistency, seconds, key_groups, tuple(where), batch_rows, hold=hold
    )
    return ServerCall(FrameType.SCAN, scan.header(), timeout=seconds + PATIENCE)


def scan_head(frame: Frame) -> ScanHead:
    """Return what the first part of a scan says."""
    what = StateDescription.from_json(frame.fields().get("description") or {})
    try:
        return ScanHead(origin_of(frame), what, scan_schema(what))
    except (pa.ArrowException, OSError, *MALFORMED) as error:
        raise ProtocolError(f"A scan cannot begin as its server says: {error!r:.300}") from error


def scan_batch(frame: Frame, head: ScanHead) -> pa.RecordBatch:
    """Return the rows of another part of a scan.

    Raises:
        ProtocolError: It has none.
    """
    return answer_batch(frame.body, head.schema)


def _sent(call: ServerCall) -> Conversation[Frame]:
    """Ask, and once more if the connection was lost meanwhile."""
    try:
        return (yield call)
    except QueryConnectionError as error:
        again = _repeated(call, error)
    return (yield again)


def _repeated(call: ServerCall, error: QueryConnectionError) -> ServerCall:
    """What is sent after a connection was lost; where there was none, asking again does not help."""
    if not error.was_connected:
        raise error
    return call._replace(is_repeated=True)


def _get(client_request: ClientRequest, what: StateDescription) -> ServerCall:
    header, body = client_request.encode(what)
    return ServerCall(FrameType.GET, header, body, client_request.deadline + PATIENCE)


def _description_request(job_id: JobID, state: str | None) -> ServerCall:
    fields = {"job": str(job_id)} if state is None else {"job": str(job_id), "state": state}
    return ServerCall(FrameType.DESCRIBE, to_header(fields))


def _described(answer: Frame) -> list[StateDescription]:
    states = answer.fields().get("states")
    if not isinstance(states, list):
        raise ProtocolError("The answer has no descriptions.")
    return [StateDescription.from_json(state) for state in states]
