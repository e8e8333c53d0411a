"""What both clients say to a server and make of its answers; here the test is the connection."""

import pyarrow as pa
import pytest

from holdfast.kernel.ids import JobID
from holdfast.queryable import at_least, exactly, newest
from holdfast.queryable.client.client_core import (
    PATIENCE,
    ClientCore,
    ClientRequest,
    scan_batch,
    scan_head,
)
from holdfast.queryable.wire.connection import ClientSession
from holdfast.queryable.wire.errors import (
    BadRequestError,
    LimitExceededError,
    ProtocolError,
    QueryConnectionError,
    UnauthorizedError,
)
from holdfast.queryable.wire.frame import Frame, FrameReader, FrameType, encode, to_header
from holdfast.state.descriptor import ValueStateDescriptor
from tests.programs.written_job import WrittenJob

ORIGIN = {"checkpoint_id": 4, "epoch": 9, "lineage": "one", "completed_at": 1}


@pytest.fixture
def described(tmp_path, bench):
    """What a state of a type is, as a server says it."""

    def of(kind):
        value = ValueStateDescriptor("value", kind)
        value.set_queryable("value")
        job = WrittenJob(tmp_path / kind, [value])
        job.checkpoint([("k", lambda states: states.value.update({"bigint": 5, "string": "five"}[kind]))])
        return bench.client(bench.server(job)).describe("job", "value")

    return of


def saying(what):
    return Frame(FrameType.RESULT, 1, to_header({"states": [what.to_json()]}), b"")


def holding(what, *values):
    batch = pa.RecordBatch.from_arrays([pa.array(values, what.arrow_schema.field(0).type)], schema=what.arrow_schema)
    return Frame(FrameType.RESULT, 1, to_header(ORIGIN | {"state": what.fingerprint}), batch.serialize().to_pybytes())


def hold(conversation, *answers):
    """Answer each call in turn; returns the calls and the result."""
    calls = [next(conversation)]
    for answer in answers:
        try:
            calls.append(conversation.throw(answer) if isinstance(answer, Exception) else conversation.send(answer))
        except StopIteration as end:
            return calls, end.value
    raise AssertionError(f"It goes on with {calls[-1]}.")


def ask(core, *answers):
    """The calls, and the state of the key."""
    question = a_get()
    calls, answer = hold(core.request_state(question), *answers)
    return calls, question.one(*answer)


def a_get(deadline=2.0, **more):
    return ClientRequest(JobID.from_name("job"), "value", ("k",), deadline=deadline, **more)


def test_only_at_least_changes_the_request_for_a_description():
    """A server of an earlier version reads the first two fields and ignores the others."""
    core, usual = ClientCore(), {"job": str(JobID.from_name("job")), "state": "value"}
    for consistency in (newest(), exactly(4)):
        call = next(core.describe("job", "value", consistency=consistency, deadline=2))
        assert (call.header, call.timeout) == (to_header(usual), 15)
    call = next(core.request_state(a_get(consistency=at_least(4))))
    assert call.header == to_header(usual | {"consistency": ["at_least", 4], "deadline": 2.0})
    assert call.timeout == 2 + PATIENCE


def test_what_a_state_is_is_asked_for_once(described):
    core, what = ClientCore(), described("bigint")
    calls, found = ask(core, saying(what), holding(what, 5))
    assert [call.kind for call in calls] == [FrameType.DESCRIBE, FrameType.GET]
    assert (found.value, found.checkpoint_id, found.description) == (5, 4, what)
    assert calls[1].timeout == 2.0 + PATIENCE
    calls, found = ask(core, holding(what, 6))
    assert [call.kind for call in calls] == [FrameType.GET]
    assert found.value == 6


def test_a_request_whose_connection_was_lost_is_made_again_once(described):
    core, what = ClientCore(), described("bigint")
    lost = QueryConnectionError("The server closed the connection.")
    calls, found = ask(core, saying(what), lost, holding(what, 5))
    assert [call.is_repeated for call in calls] == [False, False, True]
    assert calls[2] == calls[1]._replace(is_repeated=True)
    assert found.value == 5
    with pytest.raises(QueryConnectionError) as raised:
        ask(core, lost, QueryConnectionError("And again."))
    assert str(raised.value) == "And again."


def test_who_finds_no_server_does_not_try_again():
    with pytest.raises(QueryConnectionError, match="No connection to here:9069: refused"):
        hold(ClientCore().jobs(), ClientSession(("here", 9069)).unreachable("refused"))


def test_a_state_that_has_changed_with_a_new_program_is_asked_for_by_its_new_type(described):
    before, after = described("bigint"), described("string")
    for sign in (holding(after, "five"), BadRequestError("These are other bytes.")):
        core = ClientCore()
        ask(core, saying(before), holding(before, 5))
        calls, found = ask(core, sign, saying(after), holding(after, "five"))
        assert [call.kind for call in calls] == [FrameType.GET, FrameType.DESCRIBE, FrameType.GET]
        assert found.value == "five"
        assert core.known(a_get()) == after


def test_a_bad_request_for_a_state_that_has_not_changed_stays_one(described):
    core, what = ClientCore(), described("bigint")
    with pytest.raises(BadRequestError, match="no room"):
        ask(core, saying(what), LimitExceededError("There is no room."), saying(what))


def test_an_answer_that_is_none():
    with pytest.raises(ProtocolError, match="no descriptions"):
        hold(ClientCore().states("job"), Frame(FrameType.RESULT, 1, b"{}", b""))


def test_the_parts_of_a_scan(described):
    what = described("bigint")
    call = ClientCore().scan("job", "value", deadline=3.0, where=[("value", ">", 1)])
    assert (call.kind, call.timeout) == (FrameType.SCAN, 3.0 + PATIENCE)
    head = scan_head(Frame(FrameType.BATCH, 1, to_header(ORIGIN | {"description": what.to_json()}), b""))
    assert head.origin.checkpoint_id == 4
    rows = pa.RecordBatch.from_pylist([{"key": "k", "value": 5}], schema=head.schema)
    assert scan_batch(Frame(FrameType.BATCH, 1, b"{}", rows.serialize().to_pybytes()), head).equals(rows)


def test_a_session_begins_with_a_greeting_that_says_what_may_be_sent():
    session = ClientSession(("here", 9069))
    [hello] = FrameReader(10_000).feed(session.greeting("secret"))
    assert (hello.type, hello.request, hello.fields()) == (FrameType.HELLO, 0, {"token": "secret"})
    limits = {"message_bytes": 100, "in_flight": 7, "keys": 5}
    session.accept_greeting(Frame(FrameType.RESULT, 0, to_header({"limits": limits}), b""))
    assert (session.max_bytes, session.max_in_flight) == (100, 7)
    assert [session.request(FrameType.PING, b"{}")[0] for _ in range(2)] == [1, 2]
    with pytest.raises(LimitExceededError, match="above the limit of 100 bytes"):
        session.request(FrameType.GET, b"{}", [b"x" * 200])
    whole = encode(FrameType.RESULT, 1, b"{}", b"body")
    assert session.feed(whole[:9]) == []
    assert session.feed(whole[9:]) == [Frame(FrameType.RESULT, 1, b"{}", b"body")]


def test_a_greeting_that_is_refused_or_answered_by_something_else():
    session = ClientSession(("here", 9069))
    refusal = to_header({"error": "UnauthorizedError", "message": "The bearer token is missing or wrong."})
    with pytest.raises(UnauthorizedError, match="missing or wrong"):
        session.accept_greeting(Frame(FrameType.SERVER_FAILURE, 0, refusal, b""))
    with pytest.raises(ProtocolError, match=r"here:9069 answered a greeting with a message of type 33\."):
        session.accept_greeting(Frame(FrameType.BATCH, 0, b"{}", b""))
