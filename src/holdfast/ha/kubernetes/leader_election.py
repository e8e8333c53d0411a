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

logger = get_logger(__name__)

LEADER_KEY_PREFIX: Final = "org.apache.flink.k8s.leader."
_CONFLICT_TRIES: Final = 5
_READ_DELAY: Final = 0.1


def leader_key(component_id: str) -> str:
    return LEADER_KEY_PREFIX + component_id


def leader_information_of(config_map: KubernetesConfigMap) -> LeaderInformationRegister:
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
        template: The ConfigMap that is created if there is none.
        lock_identity: The name of this process.
        timing: Duration, deadline and period of leases.
        listener: Is notified of grants, revocations and changes by others.
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

    # Called by the service.

    def has_leadership(self) -> bool:
        """Return whether the lease is this process's by its clock and in the ConfigMap now.

        As long as the lease lasts, a server that does not answer is asked again: a leader whose confirmation was
        ignored because of one lost answer would be invisible for its whole term.
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
                logger.warning("Could not read from the ConfigMap whether this process leads: %s", error)
                self._clock.sleep(_READ_DELAY, self._closed)
        if current is None:
            self._report_error(f"ConfigMap {self._name!r} does not exist. Another client has deleted it.")
            return False
        return current.is_led_by(self._identity)

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        """Write a component's information, if the same ConfigMap says in the same update that this process leads."""
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
        def drop(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
            if not current.is_led_by(self._identity) or leader_key(component_id) not in current.data:
                return None
            return current.without(leader_key(component_id))

        self._client.check_and_update_config_map(self._name, drop)

    def close(self) -> None:
        """Leave the campaign and release the lease; waits for a pending request."""
        self._subscription.close()
        self._closed.set()
        self._renewed.set()
        self._wake.set()
        for thread in (self._campaigner, self._watchdog):
            if thread is not threading.current_thread():
                thread.join()
        self._release()

    # Called by the watcher.

    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """Let the service restore what it confirmed, if others changed it; campaign if the lease is free."""
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
            return  # the campaign reads it again
        if deleted:
            self._report_deleted()

    def on_watch_error(self, error: HoldfastError) -> None:
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
                logger.warning("Could not read or write the lease in ConfigMap %r: %s", self._name, error)
            except Exception as error:
                # Without this thread there are no renewals: report it instead of leading silently until the deadline.
                logger.exception("The campaign for ConfigMap %r failed.", self._name)
                self._listener.on_error(error)
            with self._lock:
                pause = self._machine.pause(self._clock.monotonic())
            self._clock.sleep(pause, self._wake)
            self._wake.clear()

    def _look(self) -> None:
        """Read the lease and write it if that is due; a few times if others write as well."""
        for _ in range(_CONFLICT_TRIES):
            if self._closed.is_set():
                return
            current = self._client.get_config_map(self._name)
            lost, write = self._observe(current)
            if lost and current is None:
                # It is created again below, maybe before the watch reports the deletion.
                self._report_deleted()
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
            # After `close` there is no grant any more; `close` releases what was just written.
            if granted and not self._closed.is_set():
                self._listener.on_grant_leadership(uuid.uuid4())
        self._renewed.set()
        return True

    def _observe(self, current: KubernetesConfigMap | None) -> tuple[bool, Write[LeaseRecord] | None]:
        """Return whether this process has just lost the lease, and the write that is due, if any."""
        with self._lock:
            instructions = [*self._note(current), *self._machine.decide(self._clock.monotonic())]
            writes = [instruction for instruction in instructions if isinstance(instruction, Write)]
            lost = len(writes) < len(instructions)
            if lost and not self._closed.is_set():
                self._listener.on_revoke_leadership()
        return lost, writes[0] if writes else None

    def _note(self, current: KubernetesConfigMap | None) -> list[Revoke]:
        """Pass a read lease to the machine; the caller has the lock."""
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
        """Revoke if the deadline is over; the caller has the lock."""
        if self._machine.expire(self._clock.monotonic()) and not self._closed.is_set():
            logger.warning(
                "The lease in ConfigMap %r was not renewed in time; this process does not lead any more.", self._name
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
            logger.warning("The lease in ConfigMap %r was not released; it expires by itself: %s", self._name, error)

    def _report_deleted(self) -> None:
        self._report_error(f"ConfigMap {self._name!r} has been deleted externally.")

    def _report_error(self, message: str) -> None:
        self._listener.on_error(StorageError(message))


class KubernetesLeaderElectionDriverFactory(LeaderElectionDriverFactory):
    """Makes the driver of a process; see `KubernetesLeaderElectionDriver` for the arguments."""

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
        return self._make(leader_election_listener)


class KubernetesLeaderRetrievalDriver(LeaderRetrievalDriver, ConfigMapHandler):
    """Follows one component's leader in the cluster's ConfigMap.

    A deleted ConfigMap is ignored: the electing side reports it.
    """

    def __init__(
        self, watcher: ConfigMapWatcher, component_id: str, event_handler: LeaderRetrievalEventHandler
    ) -> None:
        self._component_id = component_id
        self._event_handler = event_handler
        self._has_reported = False
        self._subscription = watcher.subscribe(self)

    def on_config_map(self, config_map: KubernetesConfigMap | None) -> None:
        """Report the leader in the ConfigMap; nothing is reported before the first one."""
        if config_map is None:
            return
        information = leader_information_of(config_map).for_component_id_or_empty(self._component_id)
        if information.is_empty and not self._has_reported:
            return
        self._has_reported = True
        self._event_handler.notify_leader_address(information)

    def on_watch_error(self, error: HoldfastError) -> None:
        self._event_handler.notify_error(error)

    def close(self) -> None:
        self._subscription.close()


def retrieval_driver_factory(watcher: ConfigMapWatcher, component_id: str) -> LeaderRetrievalDriverFactory:
    return lambda event_handler: KubernetesLeaderRetrievalDriver(watcher, component_id, event_handler)
