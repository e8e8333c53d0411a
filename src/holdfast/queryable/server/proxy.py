"""The proxy of queries, as its users and the job master see it.

::

    client --> proxy --(location, cached)--> server of the key group
                 |
                 +-- location unknown or wrong --> location oracle of the leading job master
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

from holdfast.kernel.ids import JobID
from holdfast.queryable.wire.errors import QueryConnectionError, QueryError, QueryTimeoutError, UnknownLocationError
from holdfast.queryable.wire.location import Address, KvStateLocation, KvStateLocationOracle


class KvStateServer(ABC):
    """Something that listens for queries."""

    @abstractmethod
    def start(self) -> None:
        """Listen on the first free port of the configured range.

        Raises:
            StateError: It was started before.
            ConfigurationError: All ports are occupied.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop listening, end all connections, release everything; once more is fine."""

    @abstractmethod
    def get_server_address(self) -> Address:
        """Returns host and port.

        Raises:
            StateError: It has not been started.
        """


class KvStateClientProxy(KvStateServer):
    """Where clients connect to: forwards each request to the server that holds the key's group."""

    @abstractmethod
    def update_kv_state_location_oracle(
        self, job_id: JobID, kv_state_location_oracle: KvStateLocationOracle | None
    ) -> None:
        """Tells who knows the locations of a job from now on, because another job master leads.

        May be called from another thread than `get_kv_state_location_oracle`.

        Args:
            job_id: The job.
            kv_state_location_oracle: None if there is nobody any more.
        """

    @abstractmethod
    def get_kv_state_location_oracle(self, job_id: JobID) -> KvStateLocationOracle | None:
        """Returns who knows the locations of a job, None if there is nobody."""


class Oracles:
    """Who knows the locations of each job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oracles: dict[str, KvStateLocationOracle] = {}

    def update(self, job_id: JobID, oracle: KvStateLocationOracle | None) -> None:
        """Set the oracle of a job; None removes it."""
        with self._lock:
            if oracle is None:
                self._oracles.pop(str(job_id), None)
            else:
                self._oracles[str(job_id)] = oracle

    def get(self, job_id: JobID | str) -> KvStateLocationOracle | None:
        """Return the oracle of a job."""
        with self._lock:
            return self._oracles.get(str(job_id))


class LocationCache:
    """Locations by job and state; belongs to one event loop.

    A cached location is used until an update is forced, or it could not be found out. While nobody can be asked, as the
    job master is dead or hangs, the last one that was known is used: of the servers in it others may answer.
    """

    def __init__(self, oracles: Oracles) -> None:
        self._oracles = oracles
        self._known: dict[tuple[str, str], asyncio.Future[KvStateLocation]] = {}
        self._last: dict[tuple[str, str], KvStateLocation] = {}

    def forget(self, job: str) -> None:
        """Ask again for the locations of a job: another one leads, or the leader knows of more servers than before."""
        for entry in [entry for entry in self._known if entry[0] == job]:
            del self._known[entry]

    def drop(self, job: str) -> None:
        """Forget all about a job, also what was known last."""
        self.forget(job)
        for entry in [entry for entry in self._last if entry[0] == job]:
            del self._last[entry]

    async def locate(self, job: str, name: str, *, force: bool = False) -> KvStateLocation:
        """Return where a state is.

        Raises:
            UnknownLocationError: Nobody knows about the job.
            UnknownJobError, UnknownKvStateLocationError: What the oracle says.
            QueryConnectionError, QueryTimeoutError: It cannot be asked, and no location has been known before.
        """
        entry = (job, name)
        found = self._known.get(entry)
        if force or found is None or found.cancelled() or (found.done() and found.exception() is not None):
            found = self._known[entry] = self._ask(job, name)
        try:
            location = self._last[entry] = await asyncio.shield(found)
            return location
        except QueryError as error:
            # What failed is asked for again; and who asks for many names must not fill the memory with failures.
            if self._known.get(entry) is found:
                del self._known[entry]
            last = self._last.get(entry) if isinstance(error, QueryConnectionError | QueryTimeoutError) else None
            if last is None:
                self._last.pop(entry, None)
                raise
            self._known.setdefault(entry, _done(last))  # asked again when it was wrong
            return last

    def _ask(self, job: str, name: str) -> asyncio.Future[KvStateLocation]:
        oracle = self._oracles.get(job)
        if oracle is None:
            failed: asyncio.Future[KvStateLocation] = asyncio.get_running_loop().create_future()
            failed.set_exception(not_ready(job, name))
            return failed
        return asyncio.wrap_future(oracle.request_kv_state_location(JobID(job), name))


def _done(location: KvStateLocation) -> asyncio.Future[KvStateLocation]:
    answer: asyncio.Future[KvStateLocation] = asyncio.get_running_loop().create_future()
    answer.set_result(location)
    return answer


def not_ready(job: str, state: str) -> UnknownLocationError:
    """Make the error for a state of which nobody can say where it is."""
    return UnknownLocationError(
        f"Could not retrieve location of state={state} of job={job}. Potential reasons are: i) the state is not ready, "
        "or ii) the job does not exist."
    )
