"""What one server holds: its registrations, under ids that a proxy names in its requests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.wire.location import KvStateID


@dataclass(frozen=True)
class Registration:
    """A state of which a server holds a range of key groups."""

    job_id: JobID
    job_vertex_id: JobVertexID
    num_key_groups: int
    key_groups: KeyGroupRange
    registration_name: str
    kv_state_id: KvStateID


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
