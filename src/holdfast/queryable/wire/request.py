"""The requests, checked when they arrive; see `holdfast.queryable.wire.frame` for what surrounds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.wire.consistency import DEFAULT_DEADLINE, NEWEST, Consistency
from holdfast.queryable.wire.errors import BadRequestError
from holdfast.queryable.wire.frame import Frame, fields_of, to_header

MAX_DEADLINE: Final = 600.0
MAX_HOLD: Final = 3600.0


@dataclass(frozen=True)
class GetRequest:
    """Values of some keys of one state.

    Attributes:
        job: The job, 32 hexadecimal digits.
        state: Name of the state.
        count: How many keys the body has: a hash (uint64) and a key each, then map keys if there are any.
        consistency: From which checkpoint.
        deadline: Seconds to wait for it.
        namespace: Of all keys; None for state without.
        has_map_keys: Whether each key comes with a map key.
        kv_state_id: From a proxy: the registration that it takes the server to hold.
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
        """Read a request.

        Raises:
            ProtocolError or BadRequestError: It is none.
        """
        header = frame.header
        return _parsed_get(header) if len(header) <= _REMEMBERED else cls.from_header(header)

    @classmethod
    def from_header(cls, header: bytes) -> GetRequest:
        """Read a request from its header alone."""
        fields = fields_of(header)
        count = fields.get("count")
        if type(count) is not int or count < 1:
            raise BadRequestError(f"A request for {count!r:.40} keys cannot be answered.")
        request = cls(text(fields, "job"), text(fields, "state"), count)
        if len(fields) == 3:
            return request
        return replace(
            request,
            consistency=Consistency.from_json(fields.get("consistency")),
            deadline=deadline(fields),
            namespace=namespace(fields),
            has_map_keys=fields.get("map_keys") is True,
            kv_state_id=fields.get("id") if isinstance(fields.get("id"), str) else None,
            waits=fields.get("waits") is True,
        )

    def header(self) -> bytes:
        """Return the header of the request."""
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
    """All rows of a range of key groups of one state.

    Attributes:
        job: The job, 32 hexadecimal digits.
        state: Name of the state.
        consistency: From which checkpoint.
        deadline: Seconds to wait for it.
        key_groups: None for all.
        where: Conditions that rows meet, all of them: column, operator, value.
        batch_rows: About how many rows a batch has.
        is_local: From a proxy: answer from what this server holds.
        waits: From a proxy: as for `GetRequest`.
        hold: Seconds for which the checkpoint can be read whether the job retains it or not; then no rows are sent.
    """

    job: str
    state: str
    consistency: Consistency = NEWEST
    deadline: float = DEFAULT_DEADLINE
    key_groups: KeyGroupRange | None = None
    where: tuple[tuple[str, str, Any], ...] = ()
    batch_rows: int = 64 * 1024
    is_local: bool = False
    waits: bool = False
    hold: float = 0.0

    @classmethod
    def parse(cls, frame: Frame) -> ScanRequest:
        """Read a request.

        Raises:
            ProtocolError or BadRequestError: It is none.
        """
        fields = frame.fields()
        rows = fields.get("batch_rows", cls.batch_rows)
        if type(rows) is not int or not 1 <= rows <= 1_000_000:
            raise BadRequestError(f"Batches cannot have {rows!r:.40} rows, but 1 to 1000000.")
        return cls(
            text(fields, "job"),
            text(fields, "state"),
            Consistency.from_json(fields.get("consistency")),
            deadline(fields),
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
            BadRequestError: A condition compares with something that cannot be written down, such as NaN.
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
            raise BadRequestError(f"A condition compares with what cannot be sent: {error}.") from error


# A client's requests differ in their bodies; their headers are mostly the same. Long ones are not remembered: they
# would be memory that any client can fill.
_REMEMBERED: Final = 1024
_parsed_get = lru_cache(4096)(GetRequest.from_header)


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text.

    Raises:
        BadRequestError: It is missing or something else.
    """
    value = fields.get(name)
    if type(value) is not str:
        raise BadRequestError(f"Field {name!r} of a request must be a text, not {value!r:.80}.")
    return value


def _operand(value: Any) -> Any:
    """What a condition compares with, as JSON has it; the server turns a text into the column's type."""
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def checked_deadline(value: Any) -> float:
    """Return a client's deadline in seconds; nobody waits longer than the longest, infinity included.

    Raises:
        BadRequestError: It is no number of seconds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadRequestError(f"A deadline is a number of seconds from 0, not {value!r:.40}.")
    return min(value, MAX_DEADLINE)


def deadline(fields: Mapping[str, Any]) -> float:
    """Return how many seconds the client waits.

    Raises:
        BadRequestError: It is no number.
    """
    value = fields.get("deadline", DEFAULT_DEADLINE)
    if type(value) not in (int, float) or not value >= 0:
        raise BadRequestError(f"A deadline is a number of seconds from 0, not {value!r:.40}.")
    return float(min(value, MAX_DEADLINE))


def namespace(fields: Mapping[str, Any]) -> bytes | None:
    """Return the namespace of a request.

    Raises:
        BadRequestError: It is not hexadecimal.
    """
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
    raise BadRequestError(f"{value!r:.80} is no range of key groups.")


def _hold(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_HOLD:
        raise BadRequestError(f"A checkpoint is held for 0 to {MAX_HOLD:.0f} seconds, not for {value!r:.40}.")
    return float(value)


def _conditions(value: Any) -> tuple[tuple[str, str, Any], ...]:
    if not isinstance(value, list) or len(value) > 100:
        raise BadRequestError("The conditions of a scan are a list of at most 100.")
    for condition in value:
        is_triple = isinstance(condition, list) and len(condition) == 3
        if not is_triple or not all(type(part) is str for part in condition[:2]):
            raise BadRequestError(f"{condition!r:.120} is no condition; one is [column, operator, value].")
    return tuple((column, operator, operand) for column, operator, operand in value)
