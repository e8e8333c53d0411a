"""Where state is: which server holds which key groups of it, kept by the leading job master."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import MAX_PARALLELISM, KeyGroupRange
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.queryable.wire.errors import ProtocolError, UnknownJobError, UnknownKvStateLocationError

Address = tuple[str, int]
_LONGEST_HOST: Final = 255


@dataclass(frozen=True, order=True)
class KvStateID:
    """One registration of a state by a server; a server that starts again registers under new ids."""

    hex: str = ""

    def __post_init__(self) -> None:
        if not self.hex:
            object.__setattr__(self, "hex", secrets.token_hex(16))

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True)
class Placement:
    """One server's registration of a range of key groups."""

    key_groups: KeyGroupRange
    kv_state_id: KvStateID
    address: Address


def checked_key_groups(start: Any, end: Any) -> KeyGroupRange:
    """Return the key groups that another process holds.

    Raises:
        TypeError, ConfigurationError: They are none.
    """
    if type(start) is not int or type(end) is not int:
        raise TypeError(f"key groups {start!r:.40} to {end!r:.40}")
    return KeyGroupRange(start, end)


def checked_address(host: Any, port: Any) -> Address:
    """Return where another process listens.

    Raises:
        ValueError: Nobody can listen there.
    """
    if type(host) is not str or not 0 < len(host) <= _LONGEST_HOST or type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"nobody listens on port {port!r:.40} of {host!r:.80}")
    return host, port


class KvStateLocation:
    """Where the key groups of one state are.

    Attributes:
        job_id: The job.
        job_vertex_id: The operator.
        num_key_groups: Number of key groups.
        registration_name: The name under which the state is queried.
        placements: Who holds what; a key group may be held by several servers.
    """

    def __init__(
        self,
        job_id: JobID,
        job_vertex_id: JobVertexID,
        num_key_groups: int,
        registration_name: str,
        placements: Iterable[Placement] = (),
    ) -> None:
        self.job_id = job_id
        self.job_vertex_id = job_vertex_id
        self.num_key_groups = num_key_groups
        self.registration_name = registration_name
        self.placements = tuple(placements)

    def get_job_id(self) -> JobID:
        """Returns the job."""
        return self.job_id

    def get_job_vertex_id(self) -> JobVertexID:
        """Returns the operator."""
        return self.job_vertex_id

    def get_num_key_groups(self) -> int:
        """Returns the number of key groups."""
        return self.num_key_groups

    def get_registration_name(self) -> str:
        """Returns the name under which the state is queried."""
        return self.registration_name

    def get_num_registered_key_groups(self) -> int:
        """Returns how many key groups some server holds."""
        return len({group for placement in self.placements for group in placement.key_groups})

    def get_kv_state_id(self, key_group_index: int) -> KvStateID | None:
        """Returns the registration that holds a key group, None if none does.

        Raises:
            IndexError: There is no such key group.
        """
        found = self.placements_of(key_group_index)
        return found[0].kv_state_id if found else None

    def get_kv_state_server_address(self, key_group_index: int) -> Address | None:
        """Returns a server that holds a key group, None if none does.

        Raises:
            IndexError: There is no such key group.
        """
        found = self.placements_of(key_group_index)
        return found[0].address if found else None

    def placements_of(self, key_group_index: int) -> list[Placement]:
        """Returns all who hold a key group.

        Raises:
            IndexError: There is no such key group.
        """
        if not 0 <= key_group_index < self.num_key_groups:
            raise IndexError(f"Key group {key_group_index} is not one of {self.num_key_groups}.")
        return [placement for placement in self.placements if placement.key_groups.contains(key_group_index)]

    def to_json(self) -> dict[str, Any]:
        """Return the location as JSON."""
        return {
            "job": str(self.job_id),
            "vertex": str(self.job_vertex_id),
            "key_groups": self.num_key_groups,
            "name": self.registration_name,
            "placements": [
                [placed.key_groups.start, placed.key_groups.end, str(placed.kv_state_id), *placed.address]
                for placed in self.placements
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KvStateLocation:
        """Read a location from JSON.

        Raises:
            ProtocolError: It is none.
        """
        try:
            placements = [
                Placement(checked_key_groups(start, end), KvStateID(str(state)), checked_address(host, port))
                for start, end, state, host, port in value["placements"]
            ]
            groups = value["key_groups"]
            if type(groups) is not int or not 0 < groups <= MAX_PARALLELISM or type(value["name"]) is not str:
                raise ValueError(f"{groups!r:.40} key groups of {value['name']!r:.80}")
            return cls(JobID(value["job"]), JobVertexID(value["vertex"]), groups, value["name"], placements)
        except (*PARSE_ERRORS, ConfigurationError) as error:
            raise ProtocolError(f"Not the location of a state: {error!r:.300}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KvStateLocation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.job_id, self.registration_name, self.placements))

    def __repr__(self) -> str:
        return f"KvStateLocation({self.registration_name!r} of job {self.job_id}: {list(self.placements)})"


class KvStateLocationOracle(ABC):
    """Knows where the queryable states of a job are: the leading job master, seen from a proxy."""

    @abstractmethod
    def request_kv_state_location(self, job_id: JobID, registration_name: str) -> Future[KvStateLocation]:
        """Ask where a state is; does not block.

        The future fails with `UnknownJobError` (not this job) or `UnknownKvStateLocationError` (no such state).
        """


@dataclass
class _State:
    """What is registered of one state, by range and server: each comes and goes without a look at the others."""

    job_vertex_id: JobVertexID
    placements: dict[tuple[KeyGroupRange, Address], Placement] = field(default_factory=dict)
    key_groups: dict[tuple[KeyGroupRange, Address], int] = field(default_factory=dict)
    """How many there are, by who says so; who has said it last counts."""


class KvStateLocationRegistry(KvStateLocationOracle):
    """Collects what servers register for one job; lives in the job master. Thread-safe."""

    def __init__(self, job_id: JobID) -> None:
        self._job_id = job_id
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._locations: dict[str, KvStateLocation] = {}  # of those that have not changed since somebody asked

    def get_kv_state_location(self, registration_name: str) -> KvStateLocation | None:
        """Returns where a state is, None if nobody has registered it; the same object until that changes."""
        with self._lock:
            location = self._locations.get(registration_name)
            state = self._states.get(registration_name) if location is None else None
            if state is not None:
                location = self._locations[registration_name] = KvStateLocation(
                    self._job_id,
                    state.job_vertex_id,
                    next(reversed(state.key_groups.values())),
                    registration_name,
                    state.placements.values(),
                )
            return location

    def request_kv_state_location(self, job_id: JobID, registration_name: str) -> Future[KvStateLocation]:
        """Answer at once."""
        answer: Future[KvStateLocation] = Future()
        location = self.get_kv_state_location(registration_name)
        if job_id != self._job_id:
            answer.set_exception(UnknownJobError(f"Could not find job ({job_id}); here is {self._job_id}."))
        elif location is None:
            with self._lock:
                answer.set_exception(unknown_state(registration_name, self._states))
        else:
            answer.set_result(location)
        return answer

    def notify_kv_state_registered(
        self,
        job_vertex_id: JobVertexID,
        num_key_groups: int,
        key_group_range: KeyGroupRange,
        registration_name: str,
        kv_state_id: KvStateID,
        kv_state_server_address: Address,
    ) -> None:
        """A server holds a range of key groups; the same range of the same server again replaces what was there.

        Raises:
            StateError: Another operator has registered the name, and keeps it.
            IndexError: The range is empty or reaches beyond the number of key groups, or there cannot be so many.
        """
        if not 0 < num_key_groups <= MAX_PARALLELISM:
            raise IndexError(f"A state has 1 to {MAX_PARALLELISM} key groups, not {num_key_groups}.")
        if key_group_range.end >= num_key_groups or not key_group_range.size:
            raise IndexError(f"{key_group_range} is empty or reaches beyond {num_key_groups} key groups.")
        with self._lock:
            state = self._states.get(registration_name)
            if state is None:
                state = self._states[registration_name] = _State(job_vertex_id)
            elif state.job_vertex_id != job_vertex_id:
                raise StateError(
                    f"Registration name clash. KvState with name {registration_name!r} has already been registered by "
                    f"another operator ({state.job_vertex_id})."
                )
            where = (key_group_range, kv_state_server_address)
            state.key_groups.pop(where, None)
            state.key_groups[where] = num_key_groups
            state.placements[where] = Placement(key_group_range, kv_state_id, kv_state_server_address)
            self._locations.pop(registration_name, None)

    def notify_kv_state_unregistered(
        self,
        job_vertex_id: JobVertexID,
        key_group_range: KeyGroupRange,
        registration_name: str,
        kv_state_server_address: Address | None = None,
    ) -> None:
        """A server, or whoever had the range, holds it no more; without key groups the location disappears.

        Raises:
            StateError: Nobody has registered it, or another operator.
        """
        with self._lock:
            state = self._states.get(registration_name)
            if state is None:
                raise StateError(f"KvState with name {registration_name!r} was unregistered before it was registered.")
            if state.job_vertex_id != job_vertex_id:
                raise StateError(
                    f"Another operator ({state.job_vertex_id}) has registered KvState with name {registration_name!r}."
                )
            if kv_state_server_address is not None:
                gone = [(key_group_range, kv_state_server_address)]
            else:
                gone = [where for where in state.placements if where[0] == key_group_range]
            self._remove(registration_name, gone)

    def notify_server_lost(self, address: Address) -> None:
        """A server is gone with everything that it held."""
        with self._lock:
            for name, state in list(self._states.items()):
                self._remove(name, [where for where in state.placements if where[1] == address])

    def _remove(self, name: str, gone: Iterable[tuple[KeyGroupRange, Address]]) -> None:
        state = self._states[name]
        for where in gone:
            state.placements.pop(where, None)
            state.key_groups.pop(where, None)
        if not state.placements:
            del self._states[name]
        self._locations.pop(name, None)


def unknown_state(name: str, known: Iterable[str]) -> UnknownKvStateLocationError:
    """Make the error for a state that nobody has registered."""
    names = ", ".join(map(repr, sorted(known))) or "none"
    return UnknownKvStateLocationError(
        f"No KvStateLocation found for KvState instance with name {name!r:.300}. Registered are: {names}."
    )
