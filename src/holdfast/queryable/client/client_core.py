"""The queries of both clients, without I/O.

`ClientCore` has the queries. It checks and encodes the arguments, and reads the answers. A query that needs several
requests is a *conversation*: a generator that yields each `ServerCall`, receives the frame that answers it (or the
error that was raised instead) and returns the result. Each client has one method that runs a conversation::

    client                          conversation
      | <------------- ServerCall ------ |   first step
      | sends it, waits                  |
      | -- Frame, or QueryError -------> |   decode; describe the state again; retry on another connection
      | <- the next ServerCall, or       |
      |    the result ------------------ |
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from inspect import signature
from itertools import pairwise
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.queryable.client.result import ManyResult, Origin, ScanHead, StateResult
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ProtocolError,
    QueryConnectionError,
    UnknownKeyOrNamespaceError,
    WrongKeyTypeError,
    WrongStateKindError,
)
from holdfast.queryable.wire.frame import Frame, FrameType, fields_of, to_header
from holdfast.queryable.wire.location import Address
from holdfast.queryable.wire.request import (
    DEFAULT_DEADLINE,
    NEWEST,
    Condition,
    Consistency,
    ConsistencyKind,
    GetRequest,
    OpaqueValue,
    ScanRequest,
    StateDescription,
    answer_batch,
    checked_deadline,
    encode_column,
    scan_schema,
)
from holdfast.state.descriptor import AggregatingStateDescriptor, StateDescriptor, StateKind
from holdfast.types.key_codec import AtomicKeyCodec, KeyCodec
from holdfast.types.type_information import AtomicTypeInformation
from holdfast.types.type_parser import to_type

_REMEMBERED: Final = 4096
"""Longest cached header, in bytes."""
_JOB: Final = re.compile(r"[0-9a-fA-F]{32}")
_TEXT: Final = struct.Struct("<Qii")
_NUMBER: Final = struct.Struct("<Qq")
_BEYOND: Final = 1 << 63
WHOLE_MAP: Final = object()
"""Default of `map_key`: return whole maps."""
# Values of exactly these classes are their own dict keys; Arrow checks their range.
_PLAIN: Final[dict[str, type]] = {
    "string": str,
    "binary": bytes,
    "bigint": int,
    "int": int,
    "smallint": int,
    "tinyint": int,
}


PATIENCE: Final = 5.0
"""Seconds that a client waits beyond the deadline, which the server may use up."""
_SHORT: Final = 15.0
"""Seconds to wait for answers that need no checkpoint to complete."""
T = TypeVar("T")
P = ParamSpec("P")


class ServerCall(NamedTuple):
    """A request to the server.

    Attributes:
        kind: See `FrameType`.
        header: A JSON object.
        body: The parts of the body.
        timeout: Seconds to wait for the answer, or for each part of it.
        is_repeated: Whether it was sent before, on a connection that was lost; other connections of the same age are
            lost as well.
    """

    kind: FrameType
    header: bytes
    body: Sequence[Any] = ()
    timeout: float = _SHORT
    is_repeated: bool = False


Conversation = Generator[ServerCall, Frame, T]


class ClientCore:
    """The queries of a client, and the state descriptions it has learned. Thread-safe; a conversation is not.

    The public methods have the arguments and the documentation of the clients' methods of the same name. They return a
    `ClientRequest`, a `ServerCall` or a conversation; each client sends it, and returns what the documentation says.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[JobID, str], StateDescription] = {}

    def get_kv_state(
        self,
        job_id: JobID | str,
        name: str,
        key: Any,
        *,
        map_key: Any = WHOLE_MAP,
        namespace: Any = None,
        namespace_serializer: Any = None,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
        key_type: Any = None,
        descriptor: StateDescriptor[Any] | None = None,
    ) -> ClientRequest:
        """Return the state of a key.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            key: The key, of the type of the state's keys.
            map_key: For map state: return the value of this entry instead of the whole map.
            namespace: For state with namespaces: bytes, or a namespace whose serializer is given as well.
            namespace_serializer: Serializes the namespace.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits for its checkpoint, at most 600.
            key_type: The type that the keys are expected to have. A mismatch is reported before anything is sent.
            descriptor: The descriptor that the state is expected to have. With the descriptor of aggregating state the
                result of its function is returned instead of the accumulator.

        Returns:
            The value, the checkpoint it was read from, and the description of the state.

        Raises:
            UnknownKeyOrNamespaceError: There is no state for the key. A default value is never returned.
            WrongKeyTypeError: The key is of another type; nothing was sent.
            WrongStateKindError: The state is not of the kind that a map key or the descriptor needs.
            BadRequestError: The deadline is not a number, or a namespace is missing or not expected.
            ConfigurationError: The namespace is not bytes and has no serializer.
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
            UnknownKvStateKeyGroupLocationError: No server serves the key's group at the moment.
            QueryTimeoutError: The checkpoint did not complete before the deadline.
            CheckpointNotAvailableError: The checkpoint is not retained.
            QueryConnectionError: The server cannot be reached.
        """
        return ClientRequest(
            job_id_of(job_id),
            name,
            (key,),
            None if map_key is WHOLE_MAP else (map_key,),
            encoded_namespace(namespace, namespace_serializer),
            consistency,
            deadline,
            key_type,
            descriptor,
        )

    def get_many(
        self,
        job_id: JobID | str,
        name: str,
        keys: Sequence[Any],
        *,
        map_keys: Sequence[Any] | None = None,
        namespace: Any = None,
        namespace_serializer: Any = None,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
        key_type: Any = None,
        descriptor: StateDescriptor[Any] | None = None,
    ) -> ClientRequest:
        """Return the state of several keys, all from one checkpoint; None for keys without state.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            keys: The keys, one or more; duplicates are allowed.
            map_keys: For map state: one map key for each key, to return the values of entries instead of whole maps.
            namespace: The namespace of all keys, see `get_kv_state`.
            namespace_serializer: Serializes the namespace.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits for its checkpoint, at most 600.
            key_type: The type that the keys are expected to have.
            descriptor: The descriptor that the state is expected to have.

        Returns:
            The values in the order of the keys, and the checkpoint they were read from.

        Raises:
            QueryError: As for `get_kv_state`, except `UnknownKeyOrNamespaceError`.
            ConfigurationError: The namespace is not bytes and has no serializer.
        """
        return ClientRequest(
            job_id_of(job_id),
            name,
            keys,
            map_keys,
            encoded_namespace(namespace, namespace_serializer),
            consistency,
            deadline,
            key_type,
            descriptor,
        )

    def scan(
        self,
        job_id: JobID | str,
        name: str,
        *,
        key_groups: KeyGroupRange | None = None,
        where: Sequence[Condition] = (),
        batch_rows: int = ScanRequest.batch_rows,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> ServerCall:
        """Return all rows of a state, from one checkpoint, as Arrow batches that are read while they are consumed.

        Waits for the first answer, which names the checkpoint and the columns; iterating waits for each batch. The scan
        has a connection of its own, which is closed after the last batch or when the scan is closed.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            key_groups: Only these key groups.
            where: Only rows that meet all of these conditions: (column, operator, value), where the column is `key`,
                `value`, `map_key` or a field such as `value.total`, and the operator one of == != < <= > >=. A string
                can be compared with a date, a time or a decimal.
            batch_rows: Approximate rows in a batch, 1 to 1,000,000.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits for its checkpoint, at most 600.

        Returns:
            `QueryableStateClient` returns a `Scan`, `AsyncQueryableStateClient` a `ScanHead` and its batches.

        Raises:
            BadRequestError: There are no such key groups, or a condition does not fit the columns.
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
            UnknownKvStateKeyGroupLocationError: No server serves one of the key groups at the moment.
            QueryTimeoutError: The checkpoint did not complete before the deadline, or a batch did not arrive in time.
            CheckpointNotAvailableError: The checkpoint is not retained.
            QueryConnectionError: A server was lost, possibly between two batches. Start the scan again.
        """
        seconds = checked_deadline(deadline)
        job = str(job_id_of(job_id))
        return _scan_call(ScanRequest(job, name, consistency, seconds, key_groups, tuple(where), batch_rows))

    def hold(
        self,
        job_id: JobID | str,
        name: str,
        seconds: float,
        *,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> ServerCall:
        """Keep a checkpoint readable with `exactly` for some time, also after the job has dropped it.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            seconds: How long the servers that serve the state now keep the checkpoint, at most 3600.
            consistency: `newest()`, `at_least(n)` or `exactly(n)`.
            deadline: Seconds that `at_least` waits for its checkpoint, at most 600.

        Returns:
            The checkpoint that is kept.

        Raises:
            LimitExceededError: The server keeps too many checkpoints already.
            QueryError: As for `scan`.
        """
        job = str(job_id_of(job_id))
        return _scan_call(ScanRequest(job, name, consistency, checked_deadline(deadline), hold=seconds))

    def describe(
        self,
        job_id: JobID | str,
        name: str,
        *,
        consistency: Consistency = NEWEST,
        deadline: float = DEFAULT_DEADLINE,
    ) -> Conversation[StateDescription]:
        """Return the description of a state: its kind and its types.

        Args:
            job_id: The job: its id, or its name.
            name: The name under which the state is queryable.
            consistency: `at_least(n)` waits for this checkpoint if no checkpoint has the state yet; `newest()` and
                `exactly(n)` do not wait.
            deadline: Seconds that `at_least` waits, at most 600.

        Raises:
            UnknownJobError, UnknownLocationError, UnknownKvStateLocationError: There is no such job or state.
            QueryTimeoutError: The checkpoint did not complete before the deadline.
        """
        call = _description_request(job_id_of(job_id), name, consistency, checked_deadline(deadline))
        return _described((yield from _sent(call)))[0]

    def states(self, job_id: JobID | str) -> Conversation[list[StateDescription]]:
        """Return the queryable states of a job that the server serves.

        Raises:
            UnknownJobError: It serves none, or the job has no checkpoint yet.
        """
        return _described((yield from _sent(_description_request(job_id_of(job_id), None))))

    def jobs(self) -> Conversation[list[dict[str, Any]]]:
        """Return the jobs that the server serves and that have a checkpoint.

        Returns:
            For each job a dict with `job_id`, `job_name`, `states` (names), and of its newest checkpoint
            `checkpoint_id`, `epoch`, `lineage` and `completed_at` (milliseconds since 1970).
        """
        found = (yield from _sent(ServerCall(FrameType.JOBS, b"{}"))).fields().get("jobs")
        if not isinstance(found, list):
            raise ProtocolError("The answer has no jobs.")
        return found

    def known(self, client_request: ClientRequest) -> StateDescription | None:
        """Return the description of the request's state as it was last read from the server, if it was."""
        return self._known.get((client_request.job_id, client_request.state))

    def request_state(self, client_request: ClientRequest) -> Conversation[tuple[Frame, StateDescription]]:
        """Request the state of some keys; return the answer and the description of the state.

        The description is read once, and again when an answer or an error shows that it has changed: the job may have
        been started again with other types.

        Raises:
            QueryError: As for `get_kv_state`.
        """
        what = self.known(client_request) or (yield from self._describe(client_request))
        call, failure = _get(client_request, what), None
        try:
            try:
                answer = yield call  # not `_sent`: another generator is measurable, most requests are single gets
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

    def _describe(self, client_request: ClientRequest) -> Conversation[StateDescription]:
        what = yield from self.describe(
            client_request.job_id,
            client_request.state,
            consistency=client_request.consistency,
            deadline=client_request.deadline,
        )
        self._known[client_request.job_id, client_request.state] = what
        return what


def present_as(query: Callable[..., Any], run: Callable[..., Any], method: Callable[P, T]) -> Callable[P, T]:
    """Return a client's method with name, docstring and arguments of a query of the core, and the result of `run`."""
    shown = update_wrapper(method, query)
    result = signature(run).return_annotation
    shown.__dict__["__signature__"] = signature(query).replace(return_annotation=result)
    shown.__annotations__ = query.__annotations__ | {"return": result}
    return method


@dataclass(slots=True)
class ClientRequest:
    """A request for the state of some keys, before it is encoded.

    `encode` makes header and body of a `ServerCall` from it, which the server parses as a `GetRequest`.

    Attributes:
        job_id: The job.
        state: Name of the state.
        keys: The keys.
        map_keys: A map key for each key; None for whole maps and for other state.
        namespace: The namespace as bytes, None for state without namespaces.
        consistency: The checkpoint.
        deadline: Seconds to wait for it.
        key_type: The expected type of keys; None to accept the type in the state's description.
        descriptor: The expected descriptor; None to accept the state's description.
    """

    job_id: JobID
    state: str
    keys: Sequence[Any]
    map_keys: Sequence[Any] | None = None
    namespace: bytes | None = None
    consistency: Consistency = NEWEST
    deadline: float = DEFAULT_DEADLINE
    key_type: Any = None
    descriptor: StateDescriptor[Any] | None = None

    def __post_init__(self) -> None:
        self.deadline = checked_deadline(self.deadline)

    @property
    def is_plain(self) -> bool:
        """Whether the server's description of the state decides everything; such gets can share a request."""
        return self.map_keys is None and self.key_type is None and self.descriptor is None

    def encode(self, what: StateDescription) -> tuple[bytes, list[Any]]:
        """Check the keys and return header and body of the request.

        Raises:
            WrongKeyTypeError: A key is not of the type of the state's keys.
            WrongStateKindError: The state is not of the kind that the request needs.
            BadRequestError: A namespace is missing or not expected, or there are not as many map keys as keys.
        """
        if self.descriptor is not None or self.key_type is not None or self.map_keys is not None:
            self._check(what)
        what.check_namespace(self.namespace)
        codec = what.key_codec
        if len(self.keys) == 1 and self.map_keys is None:
            plain = _plain_key(codec, self.keys[0])
            if plain is not None:
                return self._header(), [plain]
        keys, array = _keys(codec, self.keys, f"State {self.state!r} has keys of type {_shown(codec)}")
        body: list[Any] = [codec.hashes(keys), *encode_column(array)]
        if self.map_keys is not None:
            entries = what.map_key_codec
            body += encode_column(_keys(entries, self.map_keys, f"The maps of {self.state!r} have other keys")[1])
        return self._header(), body

    def _header(self) -> bytes:
        return _header(
            self.job_id.hex,
            self.state,
            len(self.keys),
            self.consistency,
            self.deadline,
            self.namespace,
            self.map_keys is not None,
        )

    def _check(self, what: StateDescription) -> None:
        if self.key_type is not None:
            given, own = to_type(self.key_type), getattr(what.key_codec, "key_type", None)
            if given != own:
                raise WrongKeyTypeError(f"State {self.state!r} has keys of type {own or 'undeclared'}, not {given}.")
        if self.descriptor is not None and self.descriptor.kind is not what.kind:
            raise WrongStateKindError(
                f"State {self.state!r} is {what.kind.value} state, not {self.descriptor.kind.value} state."
            )
        if self.map_keys is not None and what.kind is not StateKind.MAP:
            raise WrongStateKindError(f"State {self.state!r} is {what.kind.value} state and has no map keys.")
        if self.map_keys is not None and len(self.map_keys) != len(self.keys):
            raise BadRequestError(f"There are {len(self.keys)} keys, but {len(self.map_keys)} map keys.")

    def values(self, answer: Frame, what: StateDescription) -> tuple[list[Any], list[bool] | None]:
        """Return the values in the order of the keys, and for which keys there is state.

        The value of a missing key is None; the value of a map's entry may itself be None. The second result is None if
        there is state for all keys.
        """
        try:
            return self._values(answer_batch(answer.body, what.arrow_schema).column(0), what)
        except (pa.ArrowException, *PARSE_ERRORS) as error:
            raise ProtocolError(f"The answer cannot be read: {error!r:.300}") from error

    def _values(self, column: pa.Array, what: StateDescription) -> tuple[list[Any], list[bool] | None]:
        if what.kind is StateKind.LIST:
            values = _lists(column, what)
        elif what.kind is StateKind.MAP:
            values = _maps(column, what) if self.map_keys is None else _entries(column, what)
        elif len(column) == 1 and what.reads_directly:
            values = column.to_pylist()
        else:
            values = plain_values(column, what)
        if isinstance(self.descriptor, AggregatingStateDescriptor):
            result = self.descriptor.agg_function.get_result
            values = [None if value is None else result(value) for value in values]
        return values, column.is_valid().to_pylist() if column.null_count else None

    def one(self, answer: Frame, what: StateDescription) -> StateResult[Any]:
        """Return the state of the only key.

        Raises:
            UnknownKeyOrNamespaceError: There is no state for it.
        """
        [value], there = self.values(answer, what)
        origin = origin_of(answer)
        if there is not None:
            raise self.missing(self.keys[0], origin)
        return StateResult(value, origin, what, is_entry=self.map_keys is not None)

    def missing(self, key: Any, origin: Origin) -> UnknownKeyOrNamespaceError:
        """Return the error for a key without state."""
        entry = "" if self.map_keys is None else f" and map key {self.map_keys[0]!r}"
        return UnknownKeyOrNamespaceError(
            f"No state for the specified key/namespace: state {self.state!r} has nothing for key {key!r}{entry} in "
            f"checkpoint {origin.checkpoint_id}."
        )

    def check_key(self, what: StateDescription) -> None:
        """Check the only key before it is sent together with others.

        Raises:
            WrongKeyTypeError: It is not of the type of the state's keys.
        """
        codec = what.key_codec
        key = self.keys[0]
        if type(key) is not str or not key.isascii() or _name_of(codec) != "string":
            _keys(codec, self.keys, f"State {self.state!r} has keys of type {_shown(codec)}")

    def many(self, answer: Frame, what: StateDescription) -> ManyResult:
        """Return the state of all keys."""
        values, there = self.values(answer, what)
        return ManyResult(self.keys, values, origin_of(answer), there)

    def is_about(self, answer: Frame, what: StateDescription) -> bool:
        """Return whether the answer is from the described state, and not from one that a restart has changed."""
        return _source(answer.header)[1] in (None, what.fingerprint)


def _scan_call(request: ScanRequest) -> ServerCall:
    """The answer has parts: the first is for `scan_head`, all others for `scan_batch`."""
    return ServerCall(FrameType.SCAN, request.header(), timeout=request.deadline + PATIENCE)


def scan_head(frame: Frame) -> ScanHead:
    """Parse the head of a scan, its first part."""
    what = StateDescription.from_json(frame.fields().get("description") or {})
    try:
        return ScanHead(origin_of(frame), what, scan_schema(what))
    except (pa.ArrowException, OSError, *PARSE_ERRORS) as error:
        raise ProtocolError(f"The head of a scan is malformed: {error!r:.300}") from error


def scan_batch(frame: Frame, head: ScanHead) -> pa.RecordBatch:
    """Parse another part of a scan.

    Raises:
        ProtocolError: It is malformed.
    """
    return answer_batch(frame.body, head.schema)


def _sent(call: ServerCall) -> Conversation[Frame]:
    """Send a request, and once more if the connection was lost."""
    try:
        return (yield call)
    except QueryConnectionError as error:
        again = _repeated(call, error)
    return (yield again)


def _repeated(call: ServerCall, error: QueryConnectionError) -> ServerCall:
    """Return the request to send after a connection was lost; if there was none, a retry does not help."""
    if not error.was_connected:
        raise error
    return call._replace(is_repeated=True)


def _get(client_request: ClientRequest, what: StateDescription) -> ServerCall:
    header, body = client_request.encode(what)
    return ServerCall(FrameType.GET, header, body, client_request.deadline + PATIENCE)


def _description_request(
    job_id: JobID, state: str | None, consistency: Consistency = NEWEST, deadline: float = DEFAULT_DEADLINE
) -> ServerCall:
    fields: dict[str, Any] = {"job": str(job_id)} if state is None else {"job": str(job_id), "state": state}
    if consistency.kind is not ConsistencyKind.AT_LEAST:
        return ServerCall(FrameType.DESCRIBE, to_header(fields))
    fields |= {"consistency": consistency.to_json(), "deadline": deadline}  # the state may come with this checkpoint
    return ServerCall(FrameType.DESCRIBE, to_header(fields), timeout=deadline + PATIENCE)


def _described(answer: Frame) -> list[StateDescription]:
    states = answer.fields().get("states")
    if not isinstance(states, list):
        raise ProtocolError("The answer has no descriptions.")
    return [StateDescription.from_json(state) for state in states]


def origin_of(answer: Frame) -> Origin:
    return _source(answer.header)[0]


def _source(header: bytes) -> tuple[Origin, str | None]:
    """Return origin and description's fingerprint of an answer, which are the same for all answers from a checkpoint.

    Long headers are not cached: any server could fill the memory with them.
    """
    return _known_source(header) if len(header) <= _REMEMBERED else _source_in(header)


def _source_in(header: bytes) -> tuple[Origin, str | None]:
    fields = fields_of(header)
    try:
        numbers = [fields[name] for name in ("checkpoint_id", "epoch", "completed_at")]
        if not all(type(number) is int for number in numbers) or type(fields["lineage"]) is not str:
            raise TypeError(f"{numbers!r:.80} of {fields['lineage']!r:.80}")
        return Origin(numbers[0], numbers[1], fields["lineage"], numbers[2]), fields.get("state")
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"The answer does not name its checkpoint: {error!r}.") from error


_known_source = lru_cache(256)(_source_in)


@lru_cache(4096)
def _header(job: str, state: str, count: int, *more: Any) -> bytes:
    """Return the header of a request, which is the same for most requests of a client."""
    return GetRequest(job, state, count, *more).header()


def job_id_of(job: JobID | str) -> JobID:
    return job if isinstance(job, JobID) else _job_id_of(job)


@lru_cache(1024)
def _job_id_of(job: str) -> JobID:
    return JobID.from_hex(job) if _JOB.fullmatch(job) else JobID.from_name(job)


def encoded_namespace(namespace: Any, serializer: Any) -> bytes | None:
    """Return a namespace as bytes.

    Raises:
        ConfigurationError: It is not bytes and has no serializer.
    """
    if namespace is None:
        return None
    if serializer is not None:
        return bytes(serializer.serialize(namespace))
    if isinstance(namespace, bytes):
        return namespace
    raise ConfigurationError(f"The namespace {namespace!r} is not bytes: pass its serializer as well.")


def plain_values(column: pa.Array, what: StateDescription) -> list[Any]:
    """Return single values, list elements or accumulators as Python objects."""
    values = what.value_type.to_list(column)
    return [None if value is None else OpaqueValue(value) for value in values] if what.is_opaque else values


def check_address(host: str, port: int) -> Address:
    """Return the address of a server.

    Raises:
        ConfigurationError: Host or port is invalid.
    """
    if not isinstance(host, str) or not host or type(port) is not int or not 0 < port < 65536:
        raise ConfigurationError(f"{host!r} and {port!r} are not the host and port of a query server.")
    return host, port


def _keys(codec: KeyCodec, keys: Sequence[Any], wanted: str) -> tuple[list[Any], pa.Array]:
    try:
        dict_keys = _dict_keys(codec, keys)
        return dict_keys, codec.storage_array(dict_keys)
    except (NullKeyError, OutputTypeError, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise WrongKeyTypeError(f"{wanted}: {error} Nothing was sent.") from error


def _dict_keys(codec: KeyCodec, keys: Sequence[Any]) -> list[Any]:
    if isinstance(codec, AtomicKeyCodec) and type(codec.key_type) is AtomicTypeInformation:
        plain = _PLAIN.get(codec.key_type.name)
        if plain is not None and {plain}.issuperset(map(type, keys)):
            return list(keys)
    return [codec.dict_key(key) for key in keys]


def _plain_key(codec: KeyCodec, key: Any) -> bytes | None:
    """Return the body for one key of the simplest types, the same as the general way; None for other keys."""
    if type(key) is str and _name_of(codec) == "string":
        try:
            content = key.encode()
        except UnicodeEncodeError:  # the general way reports the error
            return None
    elif type(key) is bytes and _name_of(codec) == "binary":
        content = key
    elif type(key) is int and _name_of(codec) == "bigint" and -_BEYOND <= key < _BEYOND:
        return _NUMBER.pack(codec.hash(key), key)
    else:
        return None
    return _TEXT.pack(codec.hash(key), 0, len(content)) + content


def _name_of(codec: KeyCodec) -> str | None:
    kind = getattr(codec, "key_type", None)
    return kind.name if type(kind) is AtomicTypeInformation else None


def _shown(codec: KeyCodec) -> str:
    return str(getattr(codec, "key_type", "undeclared"))


def _lists(column: pa.Array, what: StateDescription) -> list[Any]:
    offsets = column.offsets.to_pylist()
    flat = plain_values(column.values.slice(offsets[0], offsets[-1] - offsets[0]), what)
    first = offsets[0]
    lists = [flat[start - first : end - first] for start, end in pairwise(offsets)]
    return [found if valid else None for found, valid in zip(lists, column.is_valid().to_pylist(), strict=True)]


def _entries(column: pa.Array, what: StateDescription) -> list[Any]:
    """Return the values of maps that have one entry each, None for missing entries."""
    offsets = column.offsets
    first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    values = iter(plain_values(column.items.slice(first, count), what))
    return [next(values) if is_there else None for is_there in column.is_valid().to_pylist()]


def _maps(column: pa.Array, what: StateDescription) -> list[Any]:
    offsets = column.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    codec = what.map_key_codec
    keys = [codec.user_key(key) for key in codec.from_storage(column.keys.slice(first, count))]
    values = plain_values(column.items.slice(first, count), what)
    bounds = [(start - first, end - first) for start, end in pairwise(offsets)]
    maps = [dict(zip(keys[start:end], values[start:end], strict=True)) for start, end in bounds]
    return [found if valid else None for found, valid in zip(maps, column.is_valid().to_pylist(), strict=True)]
