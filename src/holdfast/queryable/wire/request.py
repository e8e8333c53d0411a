"""Requests, checked when they are parsed; descriptions of queryable states; columns in bodies of requests and answers.

Descriptions are made from the footers of runs and sent to clients as JSON. A description never loads a class: pickled
values and values of custom serializers are opaque bytes on both sides.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM, KeyGroupRange
from holdfast.kernel.parsing import PARSE_ERRORS, check_nesting
from holdfast.queryable.wire.errors import BadRequestError, ProtocolError
from holdfast.queryable.wire.frame import Body, Frame, fields_of, to_header
from holdfast.state.descriptor import StateKind
from holdfast.types.key_codec import KeyCodec, codec_from_json
from holdfast.types.opaque import is_opaque
from holdfast.types.type_information import TypeInformation, type_from_json

VALUE = "value"
Condition = tuple[str, str, Any]
"""Column, operator and value that rows of a scan must meet."""
DEFAULT_DEADLINE: Final = 10.0
MAX_DEADLINE: Final = 600.0
MAX_HOLD: Final = 3600.0
# The headers of a client's requests are mostly the same, so parsed ones are cached. Long ones are not: any client could
# fill the memory with them.
_REMEMBERED: Final = 1024


class OpaqueValue(bytes):
    """The bytes of a value without a declared type; only the program that wrote it can read them.

    They are never unpickled here. Declare a type in the state's descriptor to query it as values.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"OpaqueValue({len(self)} bytes of a value without a declared type)"

    __str__ = __repr__


@dataclass(frozen=True)
class StateDescription:
    """One queryable state of a job.

    Attributes:
        name: The name under which it is queried.
        state: The name in its descriptor.
        uid: The operator's uid.
        operator_id: The operator, 32 hexadecimal digits.
        kind: The kind of state.
        max_parallelism: Number of key groups.
        key: Key codec as JSON.
        type: Type of values, list elements, map values or accumulators as JSON.
        map_key: Codec of map keys as JSON.
        namespaced: Whether the state has namespaces.
        arrow: Serialized Arrow schema of answers, which have one column `value`.
    """

    name: str
    state: str
    uid: str
    operator_id: str
    kind: StateKind
    max_parallelism: int
    key: Any
    type: Any
    map_key: Any
    namespaced: bool
    arrow: bytes

    @cached_property
    def key_codec(self) -> KeyCodec:
        return codec_from_json(without_classes(self.key))

    @cached_property
    def map_key_codec(self) -> KeyCodec:
        return codec_from_json(without_classes(self.map_key))

    @cached_property
    def value_type(self) -> TypeInformation:
        """The type of values; opaque parts are bytes."""
        return type_from_json(without_classes(self.type))

    @property
    def is_opaque(self) -> bool:
        """Whether values as a whole are opaque bytes."""
        return is_opaque(self.type)

    @cached_property
    def explanation(self) -> str | None:
        """The reason why values or parts of them are opaque bytes; None if all types are declared."""
        assert self.value_type is not None  # parses the type, and raises if it is invalid
        if self.is_opaque:
            return "The values have no declared type: only the program that wrote them can read these bytes."
        parts = list(_opaque_parts(self.type, VALUE))
        if parts:
            return (
                f"Of the values {', '.join(parts)} has no declared type: only the program that wrote these bytes can "
                "read them."
            )
        return None

    @cached_property
    def reads_directly(self) -> bool:
        """Whether Arrow's own conversion to Python is the right one for the values."""
        return self.kind is StateKind.VALUE and self.type in ("string", "bigint", "int", "double", "boolean", "binary")

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.arrow))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the description; every answer has it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]

    def check_namespace(self, namespace: bytes | None) -> None:
        """Check that a query has a namespace if the state has namespaces, and none otherwise.

        Raises:
            BadRequestError: It does not.
        """
        if self.namespaced != (namespace is not None):
            has = "has namespaces: pass one" if self.namespaced else "has no namespaces: pass none"
            raise BadRequestError(f"State {self.name!r} {has}.")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "uid": self.uid,
            "operator_id": self.operator_id,
            "kind": self.kind.value,
            "max_parallelism": self.max_parallelism,
            "key": self.key,
            "type": self.type,
            "map_key": self.map_key,
            "namespaced": self.namespaced,
            "arrow": base64.b64encode(self.arrow).decode(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StateDescription:
        """Parse a description.

        Raises:
            ProtocolError: It is malformed.
        """
        try:
            check_nesting(value)
            fields = dict(value)
            fields["kind"] = StateKind(fields["kind"])
            fields["arrow"] = base64.b64decode(fields["arrow"])
            made = cls(**fields)
            made._check()
            return made
        except (*PARSE_ERRORS, pa.ArrowException, OSError) as error:
            raise ProtocolError(f"Malformed description of a state: {error!r:.300}") from error

    def _check(self) -> None:
        texts = (self.name, self.state, self.uid, self.operator_id)
        if any(type(text) is not str for text in texts) or type(self.namespaced) is not bool:
            raise TypeError(f"{texts!r:.80}")
        if type(self.max_parallelism) is not int or not 1 <= self.max_parallelism <= MAX_PARALLELISM:
            raise ValueError(f"{self.max_parallelism!r:.40} key groups")
        list(_opaque_parts(self.type, VALUE))  # visits all parts of the type
        answers = self.arrow_schema.field(VALUE).type
        expected = {StateKind.LIST: pa.types.is_list, StateKind.MAP: pa.types.is_map}.get(self.kind)
        if expected is not None and not expected(answers):
            raise TypeError(f"{self.kind.value} state is answered as {answers}")

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _opaque_parts(document: Any, path: str) -> Iterator[str]:
    """Yield the opaque parts of a type by the column names of a scan."""
    if is_opaque(document):
        yield path
    elif isinstance(document, Mapping):
        for field in document.get("fields", ()):
            yield from _opaque_parts(field["type"], f"{path}.{field['name']}")
        for number, part in enumerate(document.get("types", ())):
            yield from _opaque_parts(part, f"{path}[{number}]")
        for name in ("element", "key", "value"):
            yield from _opaque_parts(document.get(name), f"{path}[{name}]")


def without_classes(document: Any) -> Any:
    """Replace the parts of a type's JSON that would load a class or a pickle by bytes."""
    if is_opaque(document):
        return "binary"
    if isinstance(document, dict):
        return {name: without_classes(part) for name, part in document.items()}
    if isinstance(document, list):
        return [without_classes(part) for part in document]
    return document


def scan_schema(description: StateDescription) -> pa.Schema:
    """Return the columns of a scan: key, namespace and map key where the state has them, value."""
    fields = [("key", description.key_codec.storage_type)]
    if description.namespaced:
        fields.append(("namespace", pa.binary()))
    value = description.arrow_schema.field(VALUE).type
    if description.kind is StateKind.MAP:
        fields.append(("map_key", value.key_type))
        value = value.item_type
    return pa.schema([*fields, (VALUE, value)])


class ConsistencyKind(Enum):
    """The way a query chooses its checkpoint."""

    NEWEST = "newest"
    AT_LEAST = "at_least"
    EXACTLY = "exactly"


@dataclass(frozen=True)
class Consistency:
    """The checkpoint that a query is answered from; made by `newest`, `at_least` or `exactly`."""

    kind: ConsistencyKind = ConsistencyKind.NEWEST
    checkpoint_id: int = 0

    def to_json(self) -> Any:
        """Return the JSON of a request; None for the newest checkpoint."""
        return None if self.kind is ConsistencyKind.NEWEST else [self.kind.value, self.checkpoint_id]

    @classmethod
    def from_json(cls, value: Any) -> Consistency:
        """Parse the consistency of a request.

        Raises:
            BadRequestError: It is malformed.
        """
        if value is None:
            return NEWEST
        try:
            kind, checkpoint_id = value
            if type(checkpoint_id) is not int or checkpoint_id < 1:
                raise ValueError(checkpoint_id)
            return cls(ConsistencyKind(kind), checkpoint_id)
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"{value!r:.80} does not name a checkpoint.") from error

    def __str__(self) -> str:
        return self.kind.value if self.kind is ConsistencyKind.NEWEST else f"{self.kind.value}({self.checkpoint_id})"


NEWEST: Final = Consistency()


def newest() -> Consistency:
    """Read from the newest completed checkpoint that the server has seen."""
    return NEWEST


def at_least(checkpoint_id: int) -> Consistency:
    """Read from the newest checkpoint, but wait until this one has completed, at most until the deadline.

    Args:
        checkpoint_id: The checkpoint, from 1.

    Raises:
        ConfigurationError: The id is not a positive integer.
    """
    return _checked(ConsistencyKind.AT_LEAST, checkpoint_id)


def exactly(checkpoint_id: int) -> Consistency:
    """Read from this checkpoint, which the job must still retain.

    Args:
        checkpoint_id: The checkpoint, from 1.

    Raises:
        ConfigurationError: The id is not a positive integer.
    """
    return _checked(ConsistencyKind.EXACTLY, checkpoint_id)


def _checked(kind: ConsistencyKind, checkpoint_id: int) -> Consistency:
    if type(checkpoint_id) is not int or checkpoint_id < 1:
        raise ConfigurationError(f"A checkpoint id is an integer from 1, not {checkpoint_id!r}.")
    return Consistency(kind, checkpoint_id)


@dataclass(frozen=True)
class GetRequest:
    """A request for the values of some keys of one state.

    Attributes:
        job: The job, 32 hexadecimal digits.
        state: Name of the state.
        count: Number of keys in the body, which has the hashes (uint64), the keys, and the map keys if there are any.
        consistency: The checkpoint.
        deadline: Seconds to wait for it.
        namespace: The namespace of all keys; None for state without namespaces.
        has_map_keys: Whether each key has a map key.
        kv_state_id: From a proxy: the registration that the server is expected to have.
        waits: From a proxy: whether `exactly` waits for a checkpoint that the server has not seen yet.
    """

    job: str
    state: str
    count: int
    consistency: Consistency = NEWEST
    deadline: float = DEFAULT_DEADLINE
    namespace: bytes | None = None
    has_map_keys: bool = False
    kv_state_id: str | None = None
    waits: bool = False

    @classmethod
    def parse(cls, frame: Frame) -> GetRequest:
        """Parse a request.

        Raises:
            ProtocolError or BadRequestError: It is malformed.
        """
        header = frame.header
        return _parsed_get(header) if len(header) <= _REMEMBERED else cls.from_header(header)

    @classmethod
    def from_header(cls, header: bytes) -> GetRequest:
        fields = fields_of(header)
        count = fields.get("count")
        if type(count) is not int or count < 1:
            raise BadRequestError(f"A request has one key or more, not {count!r:.40}.")
        request = cls(parse_text(fields, "job"), parse_text(fields, "state"), count)
        if len(fields) == 3:
            return request
        return replace(
            request,
            consistency=Consistency.from_json(fields.get("consistency")),
            deadline=parse_deadline(fields),
            namespace=parse_namespace(fields),
            has_map_keys=fields.get("map_keys") is True,
            kv_state_id=fields.get("id") if isinstance(fields.get("id"), str) else None,
            waits=fields.get("waits") is True,
        )

    def header(self) -> bytes:
        fields: dict[str, Any] = {"job": self.job, "state": self.state, "count": self.count}
        if self.consistency is not NEWEST:
            fields["consistency"] = self.consistency.to_json()
        if self.deadline != DEFAULT_DEADLINE:
            fields["deadline"] = self.deadline
        if self.namespace is not None:
            fields["namespace"] = self.namespace.hex()
        if self.has_map_keys:
            fields["map_keys"] = True
        if self.kv_state_id is not None:
            fields["id"] = self.kv_state_id
        if self.waits:
            fields["waits"] = True
        return to_header(fields)


@dataclass(frozen=True)
class ScanRequest:
    """A request for the rows of a range of key groups of one state.

    Attributes:
        job: The job, 32 hexadecimal digits.
        state: Name of the state.
        consistency: The checkpoint.
        deadline: Seconds to wait for it.
        key_groups: The range; None for all.
        where: Conditions that rows must meet: column, operator, value.
        batch_rows: Approximate rows in a batch.
        is_local: From a proxy: answer without forwarding.
        waits: From a proxy: as for `GetRequest`.
        hold: Seconds for which the server keeps the checkpoint readable; with it no rows are sent.
    """

    job: str
    state: str
    consistency: Consistency = NEWEST
    deadline: float = DEFAULT_DEADLINE
    key_groups: KeyGroupRange | None = None
    where: tuple[Condition, ...] = ()
    batch_rows: int = 64 * 1024
    is_local: bool = False
    waits: bool = False
    hold: float = 0.0

    @classmethod
    def parse(cls, frame: Frame) -> ScanRequest:
        """Parse a request.

        Raises:
            ProtocolError or BadRequestError: It is malformed.
        """
        fields = frame.fields()
        rows = fields.get("batch_rows", cls.batch_rows)
        if type(rows) is not int or not 1 <= rows <= 1_000_000:
            raise BadRequestError(f"Batches have 1 to 1000000 rows, not {rows!r:.40}.")
        return cls(
            parse_text(fields, "job"),
            parse_text(fields, "state"),
            Consistency.from_json(fields.get("consistency")),
            parse_deadline(fields),
            _key_groups(fields.get("key_groups")),
            _conditions(fields.get("where", [])),
            rows,
            fields.get("local") is True,
            fields.get("waits") is True,
            _hold(fields.get("hold", 0.0)),
        )

    def header(self) -> bytes:
        """Return the header of the request.

        Raises:
            BadRequestError: The value of a condition has no JSON form, such as NaN.
        """
        fields = {
            "job": self.job,
            "state": self.state,
            "consistency": self.consistency.to_json(),
            "deadline": self.deadline,
            "key_groups": None if self.key_groups is None else [self.key_groups.start, self.key_groups.end],
            "where": [[column, operator, _operand(value)] for column, operator, value in self.where],
            "batch_rows": self.batch_rows,
            "local": self.is_local,
            "waits": self.waits,
            "hold": self.hold,
        }
        try:
            return to_header(fields)
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"The value of a condition cannot be sent: {error}.") from error


_parsed_get = lru_cache(4096)(GetRequest.from_header)


def parse_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a string.

    Raises:
        BadRequestError: The field is missing or has another type.
    """
    value = fields.get(name)
    if type(value) is not str:
        raise BadRequestError(f"Field {name!r} of a request must be a string, not {value!r:.80}.")
    return value


def _operand(value: Any) -> Any:
    """Return the JSON form of a condition's value; the server converts strings to the column's type."""
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def checked_deadline(value: Any) -> float:
    """Check a deadline in seconds, and limit it to `MAX_DEADLINE`; infinity is allowed.

    Raises:
        BadRequestError: It is not a number from 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadRequestError(f"A deadline is a number of seconds from 0, not {value!r:.40}.")
    return min(value, MAX_DEADLINE)


def parse_deadline(fields: Mapping[str, Any]) -> float:
    return float(checked_deadline(fields.get("deadline", DEFAULT_DEADLINE)))


def parse_namespace(fields: Mapping[str, Any]) -> bytes | None:
    value = fields.get("namespace")
    try:
        return None if value is None else bytes.fromhex(value)
    except (TypeError, ValueError):
        raise BadRequestError(f"A namespace is written in hexadecimal digits, not {value!r:.40}.") from None


def _key_groups(value: Any) -> KeyGroupRange | None:
    if value is None:
        return None
    try:
        start, end = value
        if type(start) is int and type(end) is int and 0 <= start <= end < 1 << 15:
            return KeyGroupRange(start, end)
    except (TypeError, ValueError):
        pass
    raise BadRequestError(f"{value!r:.80} is not a range of key groups.")


def _hold(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_HOLD:
        raise BadRequestError(f"A checkpoint is held for 0 to {MAX_HOLD:.0f} seconds, not for {value!r:.40}.")
    return float(value)


def _conditions(value: Any) -> tuple[Condition, ...]:
    if not isinstance(value, list) or len(value) > 100:
        raise BadRequestError("The conditions of a scan are a list of at most 100.")
    for condition in value:
        is_triple = isinstance(condition, list) and len(condition) == 3
        if not is_triple or not all(type(part) is str for part in condition[:2]):
            raise BadRequestError(f"{condition!r:.120} is not a condition; write [column, operator, value].")
    return tuple((column, operator, operand) for column, operator, operand in value)


# Columns of keys are sent as plain buffers of a type that both sides know.
#
# They are not Arrow messages: keys come from untrusted clients, and the sender of an Arrow message chooses its layout.
# The receiver knows type and count, and they determine the length of each buffer::
#
#     numbers, dates, decimals   count values, little endian
#     booleans                   count bytes, 0 or 1
#     strings, bytes             count + 1 offsets (int32, from 0, ascending), then the bytes


def encode_column(array: pa.Array) -> list[Any]:
    """Return the buffers of a column, which must not have nulls."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return [array.cast(pa.uint8()).to_numpy()]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        content = memoryview(data)[first:last] if data is not None else b""
        return [bounds - np.int32(first), content]
    width = kind.bit_width // 8
    data = array.buffers()[1]
    return [memoryview(data)[array.offset * width : (array.offset + len(array)) * width]]


class ColumnReader:
    """Reads columns from a body, one after the other."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0

    def numbers(self, count: int, kind: Any) -> Any:
        """Read numbers of a NumPy type."""
        size = np.dtype(kind).itemsize * count
        return np.frombuffer(self._take(size), kind)

    def column(self, kind: pa.DataType, count: int) -> pa.Array:
        """Read a column.

        Raises:
            BadRequestError: The bytes are not such a column.
        """
        if pa.types.is_boolean(kind):
            return pa.array(self.numbers(count, np.uint8) != 0)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._texts(kind, count)
        data = self._take(kind.bit_width // 8 * count)
        return self._checked(pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)], null_count=0))

    def end(self) -> None:
        """Check that the body was read completely.

        Raises:
            BadRequestError: It was not.
        """
        if self._at != len(self._body):
            raise BadRequestError(
                f"Unconsumed bytes in the key: {len(self._body) - self._at} of {len(self._body)}. The key types of the "
                "client and of the state differ."
            )

    def _texts(self, kind: pa.DataType, count: int) -> pa.Array:
        offsets = self.numbers(count + 1, np.int32)
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise BadRequestError("The offsets of a column of keys do not ascend from 0.")
        data = self._take(int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
        return self._checked(pa.Array.from_buffers(kind, count, buffers, null_count=0))

    def _checked(self, array: pa.Array) -> pa.Array:
        try:
            array.validate(full=True)
        except pa.ArrowException as error:
            raise BadRequestError(f"A column of keys is not of type {array.type}: {error}") from error
        return array

    def _take(self, size: int) -> Body:
        data = self._body[self._at : self._at + size]
        if len(data) != size:
            raise BadRequestError(f"The body of a request has {len(self._body)} bytes, {self._at + size} are needed.")
        self._at += size
        return data


def answer_batch(body: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Parse the rows of an answer, an Arrow record batch without its schema, which both sides know.

    The batch is validated completely: Arrow itself follows any offset, also out of the buffers.

    Raises:
        ProtocolError: The rows are malformed.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise ProtocolError(f"The answer cannot be read: {error!r:.300}") from error
    return batch
