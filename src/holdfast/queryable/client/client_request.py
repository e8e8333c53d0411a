"""The part of a client that does no I/O: what is sent for some keys, and what an answer says.

A key is checked, hashed and encoded here, before anything is sent.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError
from holdfast.kernel.ids import JobID
from holdfast.kernel.malformed import MALFORMED
from holdfast.queryable.client.result import ManyResult, Origin, StateResult
from holdfast.queryable.wire.answer_batch import answer_batch
from holdfast.queryable.wire.consistency import DEFAULT_DEADLINE, NEWEST, Consistency
from holdfast.queryable.wire.description import OpaqueValue, StateDescription
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ProtocolError,
    UnknownKeyOrNamespaceError,
    WrongKeyTypeError,
    WrongStateKindError,
)
from holdfast.queryable.wire.frame import Frame, fields_of
from holdfast.queryable.wire.location import Address
from holdfast.queryable.wire.request import GetRequest, checked_deadline
from holdfast.queryable.wire.wire_column import encode_column
from holdfast.state.declaration.descriptor import AggregatingStateDescriptor, StateDescriptor, StateKind
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import AtomicTypeInformation
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import AtomicKeyCodec

_REMEMBERED: Final = 4096
"""Bytes of a header."""
_JOB: Final = re.compile(r"[0-9a-fA-F]{32}")
_TEXT: Final = struct.Struct("<Qii")
_NUMBER: Final = struct.Struct("<Qq")
_BEYOND: Final = 1 << 63
WHOLE_MAP: Final = object()
"""Stands for a map key that was not given."""
# Of these types a value of exactly this class is its own dict key, once Arrow has found it in range.
_PLAIN: Final[dict[str, type]] = {
    "string": str,
    "binary": bytes,
    "bigint": int,
    "int": int,
    "smallint": int,
    "tinyint": int,
}


@dataclass(slots=True)
class ClientRequest:
    """A request for the state of some keys.

    Attributes:
        job_id: The job.
        state: Name of the state.
        keys: The keys.
        map_keys: A map key for each; None for whole maps and for other state.
        namespace: The namespace as bytes, None for state without.
        consistency: Which checkpoint.
        deadline: Seconds to wait for it.
        key_type: What the caller takes the keys to be; None to go by the state's own description.
        descriptor: What the caller takes the state to be; None to go by its own description.
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

    @classmethod
    def of(
        cls,
        job_id: JobID | str,
        state: str,
        keys: Sequence[Any],
        map_keys: Sequence[Any] | None,
        namespace: Any,
        namespace_serializer: Any,
        consistency: Consistency,
        deadline: float,
        key_type: Any,
        descriptor: StateDescriptor[Any] | None,
    ) -> ClientRequest:
        """Make a request of what a user gives: a job by id or name, and a namespace with its serializer.

        Raises:
            ConfigurationError: The namespace is neither bytes nor has a serializer.
            BadRequestError: The deadline is no number.
        """
        spaced = encoded_namespace(namespace, namespace_serializer)
        return cls(job_id_of(job_id), state, keys, map_keys, spaced, consistency, deadline, key_type, descriptor)

    def encode(self, what: StateDescription) -> tuple[bytes, list[Any]]:
        """Return header and body of the request.

        Raises:
            WrongKeyTypeError: A key is not of the type of the state's keys.
            WrongStateKindError: The state is of another kind than was asked for.
        """
        if self.descriptor is not None or self.key_type is not None or self.map_keys is not None:
            self._check(what)
        self._check_namespace(what)
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
            raise BadRequestError(f"{len(self.keys)} keys were asked for with {len(self.map_keys)} map keys.")

    def _check_namespace(self, what: StateDescription) -> None:
        if what.namespaced != (self.namespace is not None):
            has = "has namespaces: give one" if what.namespaced else "has no namespaces: give none"
            raise BadRequestError(f"State {self.state!r} {has}.")

    def values(self, answer: Frame, what: StateDescription) -> tuple[list[Any], list[bool] | None]:
        """Return the values in the order of the keys, None where there is none, and for which of them there is one.

        The value of a map's entry may itself be None. In place of the second list None stands for all.
        """
        try:
            return self._values(answer_batch(answer.body, what.arrow_schema).column(0), what)
        except (pa.ArrowException, *MALFORMED) as error:
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
            UnknownKeyOrNamespaceError: There is none.
        """
        [value], there = self.values(answer, what)
        origin = origin_of(answer)
        if there is not None:
            raise self.missing(self.keys[0], origin)
        return StateResult(value, origin, what, is_entry=self.map_keys is not None)

    def missing(self, key: Any, origin: Origin) -> UnknownKeyOrNamespaceError:
        """Make the error for a key without state."""
        entry = "" if self.map_keys is None else f" and map key {self.map_keys[0]!r}"
        return UnknownKeyOrNamespaceError(
            f"No state for the specified key/namespace: state {self.state!r} has nothing for key {key!r}{entry} in "
            f"checkpoint {origin.checkpoint_id}."
        )

    def check_key(self, what: StateDescription) -> None:
        """Check the only key, so that it can travel with others.

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
        """Whether the answer is from a state of this description, and not from one that a restart has changed."""
        return _source(answer.header)[1] in (None, what.fingerprint)


def origin_of(answer: Frame) -> Origin:
    """Return where an answer is from."""
    return _source(answer.header)[0]


def _source(header: bytes) -> tuple[Origin, str | None]:
    """Where an answer is from, and the description of its state: the same for all answers from a checkpoint.

    That of a long header is not remembered: it would be memory that any server can fill.
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
        raise ProtocolError(f"The answer does not say where it is from: {error!r}.") from error


_known_source = lru_cache(256)(_source_in)


@lru_cache(4096)
def _header(job: str, state: str, count: int, *more: Any) -> bytes:
    """The header of a request, which is the same for most of a client's requests."""
    return GetRequest(job, state, count, *more).header()


def job_id_of(job: JobID | str) -> JobID:
    """Return the id of a job that is given by id or by name."""
    return job if isinstance(job, JobID) else _job_id_of(job)


@lru_cache(1024)
def _job_id_of(job: str) -> JobID:
    return JobID.from_hex(job) if _JOB.fullmatch(job) else JobID.from_name(job)


def encoded_namespace(namespace: Any, serializer: Any) -> bytes | None:
    """Return a namespace as bytes.

    Raises:
        ConfigurationError: It is neither bytes nor has a serializer.
    """
    if namespace is None:
        return None
    if serializer is not None:
        return bytes(serializer.serialize(namespace))
    if isinstance(namespace, bytes):
        return namespace
    raise ConfigurationError(f"The namespace {namespace!r} is no bytes: give its serializer as well.")


def plain_values(column: pa.Array, what: StateDescription) -> list[Any]:
    """Return single values, elements or accumulators as Python objects."""
    values = what.value_type.to_list(column)
    return [None if value is None else OpaqueValue(value) for value in values] if what.is_opaque else values


def check_address(host: str, port: int) -> Address:
    """Return the address of a server.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(host, str) or not host or type(port) is not int or not 0 < port < 65536:
        raise ConfigurationError(f"{host!r} and {port!r} are no host and port of a query server.")
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
    """The body for one key of the simplest types, the same as the general way makes; None for others."""
    if type(key) is str and _name_of(codec) == "string":
        try:
            content = key.encode()
        except UnicodeEncodeError:  # the general way says what is wrong
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
    """The values of maps that have one entry each, None for those that are not there."""
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
