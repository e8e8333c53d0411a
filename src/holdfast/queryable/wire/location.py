"""Locations of state: which server serves which key groups, kept by the leading job master."""

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
    """The id of a registration of a state by a server; a restarted server registers under new ids."""

    hex: str = ""

    def __post_init__(self) -> None:
        if not self.hex:
            object.__setattr__(self, "hex", secrets.token_hex(16))

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True)
class Placement:
    """A range of key groups and the server that has registered it."""

    key_groups: KeyGroupRange
    kv_state_id: KvStateID
    address: Address


def checked_key_groups(start: Any, end: Any) -> KeyGroupRange:
    """Return a range of key groups received from another process.

    Raises:
        TypeError, ConfigurationError: The range is invalid.
    """
    if type(start) is not int or type(end) is not int:
        raise TypeError(f"key groups {start!r:.40} to {end!r:.40}")
    return KeyGroupRange(start, end)


def checked_address(host: Any, port: Any) -> Address:
    """Return an address received from another process.

    Raises:
        ValueError: The address is invalid.
    """
    if type(host) is not str or not 0 < len(host) <= _LONGEST_HOST or type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"{host!r:.80} and {port!r:.40} are not a host and a port")
    return host, port


class KvStateLocation:
    """The servers of the key groups of one state.

    Attributes:
        job_id: The job.
        job_vertex_id: The operator.
        num_key_groups: Number of key groups of the state.
        registration_name: The name under which the state is queried.
        placements: The registrations of servers; several servers may serve the same key group.
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
        """Return the job."""
        return self.job_id

    def get_job_vertex_id(self) -> JobVertexID:
        """Return the operator."""
        return self.job_vertex_id

    def get_num_key_groups(self) -> int:
        """Return the number of key groups of the state."""
        return self.num_key_groups

    def get_registration_name(self) -> str:
        """Return the name under which the state is queried."""
        return self.registration_name

    def get_num_registered_key_groups(self) -> int:
        """Return the number of key groups that are served by at least one server."""
        return len({group for placement in self.placements for group in placement.key_groups})

    def get_kv_state_id(self, key_group_index: int) -> KvStateID | None:
        """Return the id of a registration that has a key group, None if there is none.

        Raises:
            IndexError: There is no such key group.
        """
        found = self.placements_of(key_group_index)
        return found[0].kv_state_id if found else None

    def get_kv_state_server_address(self, key_group_index: int) -> Address | None:
        """Return the address of a server that serves a key group, None if there is none.

        Raises:
            IndexError: There is no such key group.
        """
        found = self.placements_of(key_group_index)
        return found[0].address if found else None

    def placements_of(self, key_group_index: int) -> list[Placement]:
        """Return all registrations that have a key group.

        Raises:
            IndexError: There is no such key group.
        """
        if not 0 <= key_group_index < self.num_key_groups:
            raise IndexError(f"Key group {key_group_index} is not one of {self.num_key_groups}.")
        return [placement for placement in self.placements if placement.key_groups.contains(key_group_index)]

    def to_json(self) -> dict[str, Any]:
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
        """Parse a location.

        Raises:
            ProtocolError: It is malformed.
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
            raise ProtocolError(f"Malformed location of a state: {error!r:.300}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KvStateLocation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.job_id, self.registration_name, self.placements))

    def __repr__(self) -> str:
        return f"KvStateLocation({self.registration_name!r} of job {self.job_id}: {list(self.placements)})"


class KvStateLocationOracle(ABC):
    """Knows the locations of a job's queryable states: the leading job master, as a proxy sees it."""

    @abstractmethod
    def request_kv_state_location(self, job_id: JobID, registration_name: str) -> Future[KvStateLocation]:
        """Request the location of a state. Does not block.

        Args:
            job_id: The job.
            registration_name: The name under which the state is queryable.

        Returns:
            The future location. It fails with `UnknownJobError` (not this job) or `UnknownKvStateLocationError` (no
            such state).
        """


@dataclass
class _State:
    """The registrations of one state by range and server, so that each is added and removed in constant time."""

    job_vertex_id: JobVertexID
    placements: dict[tuple[KeyGroupRange, Address], Placement] = field(default_factory=dict)
    key_groups: dict[tuple[KeyGroupRange, Address], int] = field(default_factory=dict)
    """The number of key groups by registration; the last one counts."""


class KvStateLocationRegistry(KvStateLocationOracle):
    """Collects the registrations of servers for one job, in the job master's process. Thread-safe."""

    def __init__(self, job_id: JobID) -> None:
        self._job_id = job_id
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._locations: dict[str, KvStateLocation] = {}  # cached until the state's registrations change

    def get_kv_state_location(self, registration_name: str) -> KvStateLocation | None:
        """Return the location of a state, None if no server has registered it; the same object until it changes."""
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
        """Return a future that is done, see `KvStateLocationOracle`."""
        answer: Future[KvStateLocation] = Future()
        location = self.get_kv_state_location(registration_name)
        if job_id != self._job_id:
            answer.set_exception(UnknownJobError(f"Could not find job ({job_id}); job {self._job_id} is led here."))
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
        """Add the registration of a server; it replaces an earlier one of the same range and server.

        Raises:
            StateError: Another operator has registered the name.
            IndexError: The range is empty or exceeds the number of key groups, or that number is out of bounds.
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
        """Remove the registration of a range, of one server or of all. Without registrations a state has no location.

        Raises:
            StateError: The state is not registered, or by another operator.
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
        """Remove all registrations of a server."""
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
    names = ", ".join(map(repr, sorted(known))) or "none"
    return UnknownKvStateLocationError(
        f"No KvStateLocation found for KvState instance with name {name!r:.300}. Registered are: {names}."
    )
