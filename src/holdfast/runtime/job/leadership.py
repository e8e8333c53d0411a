"""Leadership of one process for a job, over all of its terms.

::

    standing by --granted, and the backend confirms it--> leading --revoked--> standing by ...
         |                                                   |
         +--the job is to stop--> left                       +--the term ends--> left: another process leads at once

The election decides which process tries to run the job, the register which one may write: each term raises the token
first, and the register refuses writes of an earlier token. So a late or wrong result of the election costs only time.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY
from holdfast.errors import ConfigurationError, CorruptFileError, FencedError, HoldfastError
from holdfast.ha.checkpoint_recovery import checkpoints_directory
from holdfast.ha.job_register import register_of
from holdfast.ha.leader_election import LeaderContender
from holdfast.ha.options import HA_LEADER_SESSION, HA_TYPE, ha_type
from holdfast.ha.services import HighAvailabilityServices, create_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.job.control import JobControl
from holdfast.runtime.job.recovery_proposal import add_register_proposal
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import FencedRegister

logger = get_logger(__name__)

_POLL_SECONDS: Final = 0.2
_STANDBY_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 60.0
_UNELECTED_TERMS: Final = 3


class JobLeadership(LeaderContender):
    """Takes part in the leader election of one job, and informs its control when a term ends.

    Args:
        services: High-availability services of this process; closed with this object.
        job_id: The job.

    Attributes:
        address: Address that is published while this process leads: that of its query server, if there is one.
        has_waited: Whether another process led the job when this one joined.
        patience: Seconds that a fenced process waits for the revocation of its leadership.
    """

    def __init__(self, services: HighAvailabilityServices, job_id: JobID) -> None:
        self.address = f"{socket.gethostname()}/{os.getpid()}"
        self.has_waited = False
        self.patience = 10.0
        self._services = services
        self._election = services.get_job_manager_leader_election(job_id)
        self._job_id = job_id
        self._lock = threading.Lock()
        self._control: JobControl | None = None
        self._session: uuid.UUID | None = None
        self._failure: BaseException | None = None
        self._unelected = 0

    @contextmanager
    def campaigning(self, control: JobControl) -> Iterator[None]:
        """Take part in the election for the time of the block, then close the services.

        Raises:
            HoldfastError: The election cannot be joined.
        """
        self._control = control
        try:
            self._election.start_leader_election(self)
            yield
        finally:
            self.close()

    def wait_until_leading(self, control: JobControl) -> bool:
        """Block until this process leads; returns False if the job ends before that.

        Raises:
            LeaderElectionError: The election has failed.
        """
        began = time.monotonic()
        while not control.is_ending:
            with self._lock:
                control.reinstate()
                session, failure = self._session, self._failure
            if failure is not None:
                raise failure
            # The leadership of a process that slept may be over; raising its token would fence the new leader.
            if session is not None and self._is_confirmed(session) and session == self._session:
                break
            if not self.has_waited and time.monotonic() - began > _STANDBY_SECONDS:
                self.has_waited = True
                logger.info("another process leads job %s: standing by", self._job_id)
            control.wait(_POLL_SECONDS)
        else:
            return False
        self._election.confirm_leadership_async(session, self.address)
        logger.info("this process leads job %s", self._job_id)
        return True

    def stand_by(self, error: FencedError, control: JobControl) -> None:
        """Handle a fenced write; returns if this process stays in the election.

        If the process that raised the token was elected, this process loses its leadership soon. Otherwise that process
        slept between its election and its first write, and this process leads on.

        Raises:
            FencedError: A process that was not elected raises the token again and again.
        """
        logger.warning("job %s: this process was fenced and stands by: %s", self._job_id, error)
        deadline = time.monotonic() + self.patience
        while self._session is not None and not control.is_stopping and time.monotonic() < deadline:
            control.wait(_POLL_SECONDS)
        self._unelected = 0 if self._session is None else self._unelected + 1
        self.has_waited = True
        if self._unelected >= _UNELECTED_TERMS:
            raise error

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        """Begin a term."""
        with self._lock:
            self._session = leader_session_id
        assert self._control is not None
        self._control.wake()

    def revoke_leadership(self) -> None:
        """End the term: the job stops after the current epoch, whose commit is refused if another process leads."""
        assert self._control is not None
        with self._lock:
            self._session = None
            self._control.depose()

    def handle_error(self, error: BaseException) -> None:
        """End the term after a failure of the election; the next process starts anew."""
        assert self._control is not None
        with self._lock:
            self._failure = error
            self._control.depose()

    def close(self) -> None:
        """Leave the election, so that another process can lead at once, and close the services."""
        for close in (self._election.close, self._services.close):
            try:
                close()
            except HoldfastError as error:
                logger.warning("job %s: %s", self._job_id, error)

    def _is_confirmed(self, session: uuid.UUID) -> bool:
        """Return whether the backend confirms now that this process leads."""
        try:
            return self._election.has_leadership_async(session).result(_PATIENCE_SECONDS)
        except (HoldfastError, TimeoutError) as error:
            logger.warning("job %s: cannot confirm the leadership: %s", self._job_id, error)
            return False


def open_register(directory: JobDirectory, configuration: Configuration) -> tuple[FencedRegister, JobLeadership | None]:
    """Open the register of a job, and its leadership if high availability is configured. Blocks until connected.

    A process that a job manager started takes part in no election: the last one to raise the token leads.

    Raises:
        ConfigurationError: An option is missing or wrong, other processes could not read the job's state, or the store
            cannot fence.
        StorageError: The backend does not answer, or a directory cannot be written.
        CorruptFileError, FormatVersionError: The register is damaged, or a newer release wrote it.
    """
    services = _services(configuration)
    try:
        register = register_of(directory, configuration, services)
        if services is not None and configuration.get(HA_LEADER_SESSION):
            atexit.register(services.close)
            return register, None
        return register, None if services is None else JobLeadership(services, directory.job_id)
    except CorruptFileError as error:
        if services is not None:
            services.close()
        explained = add_register_proposal(directory, error)
        raise explained from (error if explained is not error else error.__cause__)
    except BaseException:
        if services is not None:
            services.close()
        raise


def _services(configuration: Configuration) -> HighAvailabilityServices | None:
    kind = ha_type(configuration)
    if kind == "none":
        return None
    if kind == "embedded":
        raise ConfigurationError(
            f"{HA_TYPE.key!r} 'embedded' keeps everything in the memory of one process, so another process cannot "
            "take over. Use filesystem, zookeeper or kubernetes, or none: then the register is in the job's directory."
        )
    services = create_high_availability_services(configuration, ThreadPoolExecutor(1, thread_name_prefix="ha-io"))
    if configuration.get(CHECKPOINT_STORAGE) == "jobmanager" or checkpoints_directory(configuration) is None:
        services.close()
        raise ConfigurationError(
            f"{HA_TYPE.key!r} is {kind!r}, but other processes could not read the state of the job. Set "
            f"{CHECKPOINTS_DIRECTORY.key!r}, and not {CHECKPOINT_STORAGE.key!r} 'jobmanager'."
        )
    return services
