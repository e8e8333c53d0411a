"""What one server holds: its registrations, under ids that a proxy names in its requests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.malformed import MALFORMED, strict_json
from holdfast.queryable.wire.errors import ProtocolError
from holdfast.queryable.wire.location import KvStateID, key_groups_from

_MOST_RANGES: Final = 128


@dataclass(frozen=True)
class Registration:
    """A state of which a server holds a range of key groups."""

    job_id: JobID
    job_vertex_id: JobVertexID
    num_key_groups: int
    key_groups: KeyGroupRange
    registration_name: str
    kv_state_id: KvStateID

    def to_json(self) -> list[Any]:
        """Return it as it is told to a leader, who knows of which job it is."""
        held = self.key_groups
        return [
            *(str(self.job_vertex_id), self.num_key_groups, held.start, held.end),
            *(self.registration_name, str(self.kv_state_id)),
        ]


def registrations_from(job_id: JobID, body: bytes) -> list[Registration]:
    """Read what another server holds of a job, as a list of what `to_json` returns.

    Raises:
        ProtocolError: It is no such list, or has more ranges of one state than anybody needs: each is looked at for
            each key group of a request.
    """
    try:
        told = strict_json(body)
        if type(told) is not list:
            raise TypeError(f"{told!r:.80} is no list")
        found = [_registration(job_id, *one) for one in told]
    except (*MALFORMED, ConfigurationError) as error:
        raise ProtocolError(f"Not what a server holds of a job: {error!r:.300}") from error
    for name, ranges in Counter(held.registration_name for held in found).items():
        if ranges > _MOST_RANGES:
            raise ProtocolError(f"{ranges} ranges of state {name!r:.80}; a server registers up to {_MOST_RANGES}.")
    return found


def _registration(job_id: JobID, vertex: Any, groups: Any, start: Any, end: Any, name: Any, state: Any) -> Registration:
    if type(groups) is not int:
        raise TypeError(f"no number of key groups: {groups!r:.40}")
    if not all(type(text) is str for text in (vertex, name, state)):
        raise TypeError(f"no texts: {vertex!r:.40}, {name!r:.40}, {state!r:.40}")
    return Registration(job_id, JobVertexID(vertex), groups, key_groups_from(start, end), name, KvStateID(state))


class KvStateRegistryListener(ABC):
    """Hears of the registrations of one job; a failure is its own concern."""

    @abstractmethod
    def notify_kv_state_registered(self, registration: Registration) -> None:
        """A range is held from now on."""

    @abstractmethod
    def notify_kv_state_unregistered(self, registration: Registration) -> None:
        """A range is held no more."""


class KvStateRegistry:
    """The registrations of a server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[KvStateID, Registration] = {}
        self._ids: dict[tuple[JobID, JobVertexID, int, KeyGroupRange, str], KvStateID] = {}
        self._listeners: dict[JobID, KvStateRegistryListener] = {}

    def register_listener(self, job_id: JobID, listener: KvStateRegistryListener) -> None:
        """Tell somebody of the job's registrations from now on, those that are there already first."""
        with self._lock:
            self._listeners[job_id] = listener
            for registration in self.registrations(job_id):
                listener.notify_kv_state_registered(registration)

    def unregister_listener(self, job_id: JobID) -> None:
        """Tell nobody of the job's registrations any more."""
        with self._lock:
            self._listeners.pop(job_id, None)

    def register_kv_state(
        self,
        job_id: JobID,
        job_vertex_id: JobVertexID,
        num_key_groups: int,
        key_group_range: KeyGroupRange,
        registration_name: str,
    ) -> KvStateID:
        """Register a range; the same one again keeps its id."""
        with self._lock:
            what = (job_id, job_vertex_id, num_key_groups, key_group_range, registration_name)
            known = self._ids.get(what)
            if known is not None:
                return known
            new = Registration(*what, KvStateID())
            self._held[new.kv_state_id] = new
            self._ids[what] = new.kv_state_id
            listener = self._listeners.get(job_id)
            if listener is not None:
                listener.notify_kv_state_registered(new)
            return new.kv_state_id

    def unregister_kv_state(self, kv_state_id: KvStateID) -> None:
        """Drop a registration; an unknown one is fine."""
        with self._lock:
            known = self._held.pop(kv_state_id, None)
            if known is None:
                return
            del self._ids[
                known.job_id, known.job_vertex_id, known.num_key_groups, known.key_groups, known.registration_name
            ]
            listener = self._listeners.get(known.job_id)
            if listener is not None:
                listener.notify_kv_state_unregistered(known)

    def get_kv_state(self, kv_state_id: KvStateID) -> Registration | None:
        """Returns a registration, None if it is not held."""
        return self._held.get(kv_state_id)

    def registrations(self, job_id: JobID) -> list[Registration]:
        """Returns all of a job."""
        with self._lock:
            return [held for held in self._held.values() if held.job_id == job_id]
