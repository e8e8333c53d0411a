"""The Kubernetes driver of leader election: a lease in an annotation of the cluster's ConfigMap.

The lease stands in the same ConfigMap as what it protects (addresses, plans), so that "is still the leader" and "write"
are one conditional update.
"""

from __future__ import annotations

import threading
import uuid
from functools import partial
from typing import Final

from holdfast.errors import AlreadyExistError, ConflictError, HoldfastError, StorageError
from holdfast.ha.kubernetes.client import KubeClient
from holdfast.ha.kubernetes.config_map import LEADER_ANNOTATION, KubernetesConfigMap, LeaseRecord, LeaseRecordForm
from holdfast.ha.kubernetes.watch import ConfigMapHandler, ConfigMapWatcher
from holdfast.ha.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
    LeaderRetrievalDriver,
    LeaderRetrievalDriverFactory,
    LeaderRetrievalEventHandler,
)
from holdfast.ha.lease import LeaseMachine, LeaseTiming, Revoke, Write
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)

LEADER_KEY_PREFIX: Final = "org.apache.flink.k8s.leader."
_CONFLICT_TRIES: Final = 5
_READ_DELAY: Final = 0.1


def leader_key(component_id: str) -> str:
    """The entry of a component's leader information."""
    return LEADER_KEY_PREFIX + component_id


def leader_information_of(config_map: KubernetesConfigMap) -> LeaderInformationRegister:
    """All leader information in a ConfigMap."""
    return LeaderInformationRegister(
        {
            key.removeprefix(LEADER_KEY_PREFIX): LeaderInformation.decode(value)
            for key, value in config_map.data.items()
            if key.startswith(LEADER_KEY_PREFIX)
        }
    )


class KubernetesLeaderElectionDriver(LeaderElectionDriver, ConfigMapHandler):
    """Campaigns for one process until it is closed.

    One thread reads and writes the lease; another one revokes at the renew deadline, also while a request hangs.

    Args:
        client: The ConfigMaps.
        watcher: Follows the cluster's ConfigMap.
        template: The ConfigMap to be created if there is none.
        lock_identity: Who this process is.
        timing: How the lease is held.
        listener: Told of grants, revocations and foreign changes.
        clock: Measures the lease.
    """

    def __init__(
        self,
        client: KubeClient,
        watcher: ConfigMapWatcher,
        template: KubernetesConfigMap,
        lock_identity: str,
        timing: LeaseTiming,
        listener: LeaderElectionListener,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._template = template
        self._name = template.name
        self._identity = lock_identity
        self._timing = timing
        self._listener = listener
        self._clock = clock or SystemClock()
        self._machine = LeaseMachine(lock_identity, timing, LeaseRecordForm(self._clock))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._renewed = threading.Event()
        self._wake = threading.Event()
        self._campaigner = threading.Thread(target=self._campaign, name=f"lease-{self._name}", daemon=True)
        self._watchdog = threading.Thread(target=self._guard, name=f"lease-deadline-{self._name}", daemon=True)
        self._subscription = watcher.subscribe(self)
        self._campaigner.start()
        self._watchdog.start()

    # What the service asks for.

    def has_leadership(self) -> bool:
        """Whether the lease is ours by our clock and by what the ConfigMap says now.

        As long as the lease lasts, a server that does not answer is asked again: a leader whose confirmation was
        refused because of one lost answer would not be found in all of its term.
        """
        while True:
            with self._lock:
                self._expire()
                if not self._machine.is_leading or self._closed.is_set():
                    return False
            try:
                current = self._client.get_config_map(self._name)
                break
            except HoldfastError as error:
                _logger.warning("Whether this process leads could not be read from the ConfigMap: %s", error)
                self._clock.sleep(_READ_DELAY, self._closed)
        if current is None:
            self._tell_error(
                f"ConfigMap {self._name!r} does not exist. This indicates that somebody has interfered with the "
                "cluster."
            )
            return False
        return current.is_led_by(self._identity)

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Write a component's information, if the ConfigMap still says in the same write that this process leads."""
        if leader_information.is_empty:
            self.delete_leader_information(component_id)
            return
        text = leader_information.encode()

        def put(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if not current.is_led_by(self._identity) or current.data.get(leader_key(component_id)) == text:
                return None
            return current.with_entries({leader_key(component_id): text})

        self._client.check_and_update_config_map(self._name, put)

    def delete_leader_information(self, component_id: str) -> None:
        """Remove a component's information, if the ConfigMap still says that this process leads."""

        def drop(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if not current.is_led_by(self._identity) or leader_key(component_id) not in current.data:
                return None
            return current.without(leader_key(component_id))

        self._client.check_and_update_config_map(self._name, drop)

    def close(self) -> None:
        """Leave the campaign and give the lease back; waits for the request that is under way."""
        self._subscription.close()
        self._closed.set()
        self._renewed.set()
        self._wake.set()
        for thread in (self._campaigner, self._watchdog):
            if thread is not threading.current_thread():
                thread.join()
        self._release()

    # What the watcher tells.

    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """Let the service write back what it confirmed, if somebody else changed it; campaign if the lease is free."""
        with self._lock:
            if not self._machine.is_leading or self._closed.is_set():
                record = LeaseRecord.parse(config_map.annotations.get(LEADER_ANNOTATION)) if config_map else None
                if record is None or not record.holder:
                    self._wake.set()
                return
        if config_map is None:
            self._check_deleted()
        elif config_map.is_led_by(self._identity):
            self._listener.on_leader_information_register_change(leader_information_of(config_map))

    def _check_deleted(self) -> None:
        """Report that the ConfigMap is gone, unless the watch is behind and does not know yet that it was created."""
        try:
            deleted = self._client.get_config_map(self._name) is None
        except HoldfastError:
            return  # the campaign sees to it
        if deleted:
            self._tell_deleted()

    def on_watch_error(self, error: HoldfastError) -> None:
        """Pass the error on while leading."""
        with self._lock:
            leading = self._machine.is_leading
        if leading:
            self._listener.on_error(error)

    # The two threads.

    def _campaign(self) -> None:
        while not self._closed.is_set():
            try:
                self._look()
            except HoldfastError as error:
                _logger.warning("The lease in ConfigMap %r could not be looked at: %s", self._name, error)
            except Exception as error:
                # Without this thread nobody would renew: better to say so than to lead until the deadline in silence.
                _logger.exception("The campaign for ConfigMap %r failed.", self._name)
                self._listener.on_error(error)
            with self._lock:
                pause = self._machine.pause(self._clock.monotonic())
            self._clock.sleep(pause, self._wake)
            self._wake.clear()

    def _look(self) -> None:
        """Read the lease once and write it if that is due; a few times over if others write as well."""
        for _ in range(_CONFLICT_TRIES):
            if self._closed.is_set():
                return
            current = self._client.get_config_map(self._name)
            lost, write = self._observe(current)
            if lost and current is None:
                # It is made again below, maybe before the watch tells that it had gone.
                self._tell_deleted()
            if write is None or self._try_write(current, write):
                return

    def _try_write(self, current: KubernetesConfigMap | None, write: Write[LeaseRecord]) -> bool:
        text = write.lease.encode()
        try:
            if current is not None:
                self._client.replace_config_map(current.with_annotation(LEADER_ANNOTATION, text))
            else:
                self._client.create_config_map(self._template.with_annotation(LEADER_ANNOTATION, text))
        except (ConflictError, AlreadyExistError):
            return False
        with self._lock:
            granted = self._machine.wrote(self._clock.monotonic(), text, write)
            # Once closed it grants nothing any more; `close` gives back what was just written.
            if granted and not self._closed.is_set():
                self._listener.on_grant_leadership(uuid.uuid4())
        self._renewed.set()
        return True

    def _observe(self, current: KubernetesConfigMap | None) -> tuple[bool, Write[LeaseRecord] | None]:
        """Return whether this process has just lost the lease, and what is to be written, if anything."""
        with self._lock:
            instructions = [*self._note(current), *self._machine.decide(self._clock.monotonic())]
            writes = [instruction for instruction in instructions if isinstance(instruction, Write)]
            lost = len(writes) < len(instructions)
            if lost and not self._closed.is_set():
                self._listener.on_revoke_leadership()
        return lost, writes[0] if writes else None

    def _note(self, current: KubernetesConfigMap | None) -> list[Revoke]:
        """Show the machine what was read; call it with the lock held."""
        text = current.annotations.get(LEADER_ANNOTATION) if current is not None else None
        return self._machine.observe(self._clock.monotonic(), text, LeaseRecord.parse(text))

    def _guard(self) -> None:
        while not self._closed.is_set():
            self._renewed.clear()
            with self._lock:
                self._expire()
                left = self._machine.deadline - self._clock.monotonic()
            self._clock.sleep(min(left, self._timing.renew_deadline), self._renewed)

    def _expire(self) -> None:
        """Revoke if the deadline is over; call it with the lock held."""
        if self._machine.expire(self._clock.monotonic()) and not self._closed.is_set():
            _logger.warning(
                "The lease in ConfigMap %r was not renewed in time; this process leads no more.", self._name
            )
            self._listener.on_revoke_leadership()

    def _release(self) -> None:
        try:
            current = self._client.get_config_map(self._name)
            with self._lock:
                self._note(current)
                writes = self._machine.resign()
            if current is not None and writes:
                text = writes[0].lease.encode()
                self._client.replace_config_map(current.with_annotation(LEADER_ANNOTATION, text))
        except HoldfastError as error:
            _logger.warning(
                "The lease in ConfigMap %r was not given back and runs out by itself: %s", self._name, error
            )

    def _tell_deleted(self) -> None:
        self._tell_error(f"ConfigMap {self._name!r} has been deleted externally.")

    def _tell_error(self, message: str) -> None:
        self._listener.on_error(StorageError(message))


class KubernetesLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the driver of a process.

    Args:
        client: The ConfigMaps.
        watcher: Follows the cluster's ConfigMap.
        template: The ConfigMap to be created if there is none.
        lock_identity: Who this process is.
        timing: How the lease is held.
        clock: Measures the lease.
    """

    def __init__(
        self,
        client: KubeClient,
        watcher: ConfigMapWatcher,
        template: KubernetesConfigMap,
        lock_identity: str,
        timing: LeaseTiming,
        clock: Clock | None = None,
    ) -> None:
        self._make = partial(
            KubernetesLeaderElectionDriver, client, watcher, template, lock_identity, timing, clock=clock
        )

    def create(self, leader_election_listener: LeaderElectionListener) -> KubernetesLeaderElectionDriver:
        """Make a driver; it campaigns at once, in its own threads."""
        return self._make(leader_election_listener)


# The Kubernetes driver of leader retrieval: reads a component's entry in the cluster's ConfigMap.


class KubernetesLeaderRetrievalDriver(LeaderRetrievalDriver, ConfigMapHandler):
    """Tells about every change of one component's leader; a deleted ConfigMap is the electing side's affair."""

    def __init__(
        self, watcher: ConfigMapWatcher, component_id: str, event_handler: LeaderRetrievalEventHandler
    ) -> None:
        self._component_id = component_id
        self._event_handler = event_handler
        self._told = False
        self._subscription = watcher.subscribe(self)

    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """Tell the leader that the ConfigMap names; at first only if it names one."""
        if config_map is None:
            return
        information = leader_information_of(config_map).for_component_id_or_empty(self._component_id)
        if information.is_empty and not self._told:
            return
        self._told = True
        self._event_handler.notify_leader_address(information)

    def on_watch_error(self, error: HoldfastError) -> None:
        """Pass the error on."""
        self._event_handler.notify_error(error)

    def close(self) -> None:
        """Stop following."""
        self._subscription.close()


def retrieval_driver_factory(watcher: ConfigMapWatcher, component_id: str) -> LeaderRetrievalDriverFactory:
    """Makes drivers that follow one component."""
    return lambda event_handler: KubernetesLeaderRetrievalDriver(watcher, component_id, event_handler)
