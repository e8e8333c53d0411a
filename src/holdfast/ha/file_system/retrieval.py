"""Following the leader of a cluster whose processes share a directory."""

from __future__ import annotations

import threading

from holdfast.errors import HoldfastError, NotExistError, StorageError
from holdfast.ha.election.leader_information import LeaderInformation
from holdfast.ha.election.leader_retrieval import LeaderRetrievalDriver, LeaderRetrievalEventHandler
from holdfast.ha.file_system.election import information_of
from holdfast.ha.file_system.lease_file import LeaderLease, LeaseFile
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)


class FileSystemLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Looks into the lease again and again, in a thread of its own.

    A lease that was not renewed for as long as it says has no leader that could be reached.
    """

    def __init__(
        self,
        lease_file: LeaseFile,
        component_id: str,
        period: float,
        handler: LeaderRetrievalEventHandler,
        clock: Clock | None = None,
    ) -> None:
        self._file = lease_file
        self._component_id = component_id
        self._period = period
        self._handler = handler
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._version = -1
        self._lease: LeaderLease | None = None
        self._seen_at = 0.0
        self._thread = threading.Thread(target=self._follow, name=f"leader-of-{component_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                version, lease = self._file.read()
            except (StorageError, NotExistError) as error:
                _log.warning("Could not read the lease in %s: %s", self._file, error)
            except HoldfastError as error:
                self._handler.notify_error(error)
                return
            else:
                if version.number != self._version:
                    self._version, self._lease, self._seen_at = version.number, lease, self._clock.monotonic()
            self._handler.notify_leader_address(self._known())
            self._clock.sleep(self._period, self._stop)

    def _known(self) -> LeaderInformation:
        lease = self._lease
        if lease is None or self._clock.monotonic() - self._seen_at >= lease.duration:
            return LeaderInformation.empty()
        return information_of(lease).for_component_id_or_empty(self._component_id)
