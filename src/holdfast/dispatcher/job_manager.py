"""The job manager, `holdfast jobmanager`: elections, terms, and the REST interface of one process.

::

    standing by --granted--> leading: a term with its dispatcher --revoked--> ending: its processes are killed
        ^                       |                                                  |
        |                       '--SIGTERM: processes end after their epoch--.     |
        '--------------------------------------------------------------------+-----'  no process is left
                                                                             v
                                                            exit: another one leads at once
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import queue
import re
import secrets
import shutil
import ssl
import tempfile
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY
from holdfast.dispatcher import options
from holdfast.dispatcher.announcements import announced
from holdfast.dispatcher.dispatcher import Dispatcher
from holdfast.dispatcher.dispatcher_machine import DispatcherMachine
from holdfast.dispatcher.job_manager_api import JobManagerApi, Term
from holdfast.dispatcher.process import LocalProcesses, SpareProcesses, default_options, process_environment
from holdfast.dispatcher.store import AddressBook, DispatcherStores, EndedJobs
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.leader_election import LeaderContender, LeaderElection
from holdfast.ha.options import HA_TYPE, ha_type
from holdfast.ha.services import create_high_availability_services
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.queryable.server.server_connection import ports_from
from holdfast.queryable.wire.connection import server_context
from holdfast.rest.otlp import reporter_from
from holdfast.rest.server import RestServer, limits_from
from holdfast.runtime.job.options import REST_PORT, REST_REQUEST_TIMEOUT

logger = get_logger(__name__)
_ANSWER_SECONDS: Final = 60.0
_HOST: Final = re.compile(r"[^\s/:@?#\[\]]+|\[[0-9A-Fa-f:.]+\]")
_CLEARED: Final = ("uploads", "blobs", "spare")
"""Directories in the working directory that are deleted at the start of a job manager."""
_LOOK_SECONDS: Final = 0.5
_REQUEST_SECONDS: Final = 60.0
"""Longer than for other servers, because of submissions."""


class JobManagerError(HoldfastError):
    """A job manager cannot continue; another one takes over."""


class JobManager(LeaderContender):
    """One job manager of a cluster. `run` blocks; `stop` ends it from any thread.

    Args:
        configuration: The options of the cluster, which are also the defaults of its jobs.
        command: The command that runs a job.
    """

    def __init__(self, configuration: Configuration, command: Sequence[str]) -> None:
        self._configuration = configuration.clone()
        self._kind = ha_type(configuration)
        self._command = command
        for option in (options.MAX_ENDED, options.SPARE_PROCESSES):
            if configuration.get(option) < 0:
                raise ConfigurationError(f"{option.key} must be at least 0.")
        self._clock = SystemClock()
        options.clean_up_retries(configuration, self._clock)  # to check the options
        self._messages: queue.Queue[tuple[str, str]] = queue.Queue()
        self._term: Term | None = None
        self._session: uuid.UUID | None = None
        self._api = JobManagerApi(self.term, self._clock)
        self._bearer = secrets.token_urlsafe(32)
        self.url = ""
        if self._kind == "embedded":
            raise ConfigurationError(
                f"{HA_TYPE.key!r} 'embedded' keeps everything in the memory of one process, so no other process can "
                "take over. Use filesystem, zookeeper or kubernetes, or none for one job manager on one host."
            )

    def run(self) -> None:
        """Take part in the election, and lead jobs while elected, until `stop`.

        Raises:
            ConfigurationError: An option is invalid, or another job manager uses the working directory.
            StorageError: The stores of the cluster do not answer.
            JobManagerError: The jobs of earlier leaders cannot be read, or a result cannot be written.
        """
        self._executor = ThreadPoolExecutor(8, thread_name_prefix="ha-io")
        self._directory, is_temporary = self._working_directory()
        is_set = self._kind == "none" and self._configuration.contains(options.WORKING_DIRECTORY)
        try:
            with announced(self._directory) if is_set else nullcontext():
                self._campaign()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)
            if is_temporary:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _campaign(self) -> None:
        if self._kind == "none" and not self._configuration.contains(CHECKPOINTS_DIRECTORY):
            self._configuration.set(CHECKPOINTS_DIRECTORY, str(self._directory / "checkpoints"))
        book = AddressBook.of(self._configuration, str(self._directory))
        if self._kind == "none":
            book.clear("")  # safe: the lock of the directory proves that their owners are gone
        server = self._rest_server()
        reporter = reporter_from(self._configuration, self._api.own_samples, {"service.instance.id": new_nonce()})
        self._spares = SpareProcesses(self._configuration.get(options.SPARE_PROCESSES), self._command, self._directory)
        self._services = create_high_availability_services(self._configuration, self._executor)
        elections: list[LeaderElection] = []
        try:
            self.url = self._public_url(server.start())
            if reporter is not None:
                reporter.start()
            logger.info("job manager %d is at %s, works in %s", os.getpid(), self.url, self._directory)
            elections = [
                self._services.get_dispatcher_leader_election(),
                self._services.get_cluster_rest_endpoint_leader_election(),
            ]
            elections[1].start_leader_election(_RestContender())
            elections[0].start_leader_election(self)
            self._serve(elections, book)
        finally:
            for close in (
                self._spares.close,
                server.close,
                *([] if reporter is None else [reporter.close]),
                *(election.close for election in elections),
                self._services.close,
                book.withdraw,
            ):
                try:
                    close()
                except (HoldfastError, RuntimeError) as error:
                    logger.warning("%s", error)

    def stop(self) -> None:
        """End all processes of jobs after their epochs, then this process; the next leader continues the jobs."""
        self._messages.put(("stop", ""))

    def term(self) -> Term | None:
        """Return the current term, None while another process leads."""
        return self._term

    # Callbacks of the election, which must not block.

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self._session = leader_session_id
        self._messages.put(("granted", str(leader_session_id)))

    def revoke_leadership(self) -> None:
        session, self._session = self._session, None
        self._messages.put(("revoked", str(session)))

    def handle_error(self, error: BaseException) -> None:
        self._messages.put(("broken", f"The leader election failed: {redacted_message(error)}"))

    def _serve(self, elections: Sequence[LeaderElection], book: AddressBook) -> None:
        waiting: str | None = None
        is_ending, broken = False, None
        while True:
            if self._term is None and not is_ending:
                self._spares.fill(process_environment(), default_options(self._configuration))
            try:
                # The kernel may deliver a signal to another thread. Python runs the handler when this thread wakes up.
                message, argument = self._messages.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            term = self._term
            match message:
                case "granted" if not is_ending:
                    waiting = argument
                case "revoked":
                    waiting = None
                    if term is not None:
                        logger.info("this job manager does not lead any more")
                        term.dispatcher.end(at_once=True)
                case "stop":
                    is_ending = True
                case "broken":
                    logger.error("this job manager stops: %s", argument)
                    is_ending, broken = True, argument
                case "over" if term is not None and argument == term.session:
                    self._term = term = None
            if is_ending:
                if self._term is None:
                    break
                self._term.dispatcher.end(at_once=broken is not None)
            elif waiting is not None and self._term is None:
                self._begin(waiting, elections, book)
                waiting = None
        if broken is not None:
            raise JobManagerError(broken)

    def _begin(self, session: str, elections: Sequence[LeaderElection], book: AddressBook) -> None:
        max_ended = self._configuration.get(options.MAX_ENDED)
        ended = EndedJobs.of(self._configuration, str(self._directory), max_ended)
        stores = DispatcherStores(self._services, self._directory, self._executor, ended)
        processes = LocalProcesses(self._configuration, stores, self._directory, session, self._command, self._spares)
        machine = DispatcherMachine(
            self._clock,
            lambda: options.process_restarts(self._clock),
            lambda: options.clean_up_retries(self._configuration, self._clock),
            max_ended,
        )

        def over() -> None:
            with suppress(HoldfastError):
                stores.stop()
            self._messages.put(("over", session))

        def broken(message: str) -> None:
            self._messages.put(("broken", message))

        leader = uuid.UUID(session)
        dispatcher = Dispatcher(machine, stores, processes, lambda: self._leads(elections[0], leader), over, broken)
        self._term = Term(session, self._clock.now_ms(), dispatcher, stores, processes)
        try:
            stores.start()
            book.publish(self.url, self._bearer, session)
            for election in elections:
                election.confirm_leadership_async(leader, self.url)
            if self._leads(elections[0], leader):
                book.clear(session)
        except HoldfastError as error:
            broken(f"{type(error).__name__}: {redacted_message(error)}")
        else:
            logger.info("this job manager leads, in session %s", session)
            dispatcher.begin()

    def _leads(self, election: LeaderElection, session: uuid.UUID) -> bool:
        try:
            return self._session == session and election.has_leadership_async(session).result(_ANSWER_SECONDS)
        except (HoldfastError, TimeoutError, RuntimeError) as error:
            logger.warning("the election cannot be reached: %s", error)
            return False

    def _rest_server(self) -> RestServer:
        configuration = self._configuration
        host = configuration.get(options.REST_BIND_ADDRESS)
        certificate, key = configuration.get(options.REST_TLS_CERTIFICATE), configuration.get(options.REST_TLS_KEY)
        name = configuration.get(options.REST_ADDRESS)
        if name is not None and not _HOST.fullmatch(name):
            raise ConfigurationError(
                f"{options.REST_ADDRESS.key} is {name!r}: set the name of a host and nothing else, such as "
                "jobs.example.org."
            )
        if certificate is None and not _is_loopback(host):
            raise ConfigurationError(
                f"{options.REST_BIND_ADDRESS.key} is {host!r}, where connections can be intercepted: set "
                f"{options.REST_TLS_CERTIFICATE.key} and {options.REST_TLS_KEY.key}, or listen on 127.0.0.1."
            )
        if certificate is None and key is not None:
            raise ConfigurationError(
                f"{options.REST_TLS_KEY.key} is set without {options.REST_TLS_CERTIFICATE.key}: set both or none."
            )
        tls: ssl.SSLContext | None = server_context(certificate, key)
        limits = limits_from(configuration)
        names = {host.lower(), (name or host).lower()}
        limits = replace(
            limits,
            seconds=limits.seconds if configuration.contains(REST_REQUEST_TIMEOUT) else _REQUEST_SECONDS,
            hosts=limits.hosts | names,
            body_bytes=max(limits.body_bytes, configuration.get(options.MAX_SUBMISSION)),
        )
        ports = ports_from(configuration, REST_PORT)
        return RestServer(self._api, self._bearer, ports, limits, host, tls)

    def _public_url(self, url: str) -> str:
        name = self._configuration.get(options.REST_ADDRESS)
        scheme, _, place = url.partition("://")
        return url if name is None else f"{scheme}://{name}:{place.rpartition(':')[2]}"

    def _working_directory(self) -> tuple[Path, bool]:
        if self._kind != "none" and not self._configuration.contains(options.WORKING_DIRECTORY):
            return Path(tempfile.mkdtemp(prefix="holdfast-jobmanager-")), True
        key = options.WORKING_DIRECTORY.key
        directory = options.working_directory(self._configuration)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = directory / "lock"
            foreign = [name for name in _CLEARED if (directory / name).exists() and not lock.exists()]
            if foreign:
                raise ConfigurationError(
                    f"{key}: {str(directory)!r} is not the directory of a job manager, which would delete "
                    f"{foreign[0]!r} in it. Set another directory."
                )
            self._lock = lock.open("w")  # held until this process ends in any way
        except OSError as error:
            raise ConfigurationError(f"{key}: {str(directory)!r} cannot be used: {error}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"Another job manager works in {str(directory)!r}: set another {key} for this one, or "
                f"make both candidates of one cluster with {HA_TYPE.key}."
            ) from error
        for name in _CLEARED:
            shutil.rmtree(directory / name, ignore_errors=True)
        return directory, False


class _RestContender(LeaderContender):
    """The contender of the REST endpoint. It does nothing: the dispatcher's contender publishes the address of both."""

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        pass

    def revoke_leadership(self) -> None:
        pass

    def handle_error(self, error: BaseException) -> None:
        logger.error("The election of the REST endpoint failed: %s", error)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
