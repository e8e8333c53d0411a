"""The query server in the process of a job."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.queryable.server.server import StateServer
from holdfast.queryable.server.server_settings import ServerSettings, ports_from
from holdfast.queryable.wire.limits import Limits
from holdfast.queryable.wire.tls import client_context, server_context
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.job.query_options import (
    ADVERTISED_HOST,
    GREETING_TIMEOUT,
    HOST,
    IDLE_TIMEOUT,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_OF_ADDRESS,
    MAX_IN_FLIGHT,
    MAX_KEYS,
    MAX_MESSAGE,
    MAX_STRANGERS,
    MAX_WAITING,
    POLL_INTERVAL,
    PORTS,
    SERVER_TOKEN,
    TLS_AUTHORITY,
    TLS_CERTIFICATE,
    TLS_KEY,
    TOKEN,
)
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_observer import JobObserver

_log = get_logger(__name__)


class EmbeddedQueryServer(JobObserver):
    """Holds all queryable states of the job for as long as it runs here, and keeps their locations."""

    def __init__(self) -> None:
        self._server: StateServer | None = None

    def check(self, configuration: Configuration) -> None:
        """Look at the options of the server."""
        settings_from(configuration)

    def started(self, master: JobMaster) -> None:
        """Listen, and follow the job's checkpoints as they complete.

        Raises:
            ConfigurationError: It cannot listen.
        """
        job = master.job
        server = StateServer(settings_from(job.configuration))
        server.start()
        self._server = server
        follower = server.serve_job(job.directory, job.register)
        if job.leadership is not None:
            job.leadership.address = "{}:{}".format(*server.get_server_address())

        def completed(record: EpochProgress) -> None:
            if record.checkpoint_id is not None:
                follower.notify()

        master.progress.listen(completed)
        _log.info("queryable state of job %r is served at %s:%d", job.name, *server.get_server_address())

    def ended(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()


def settings_from(configuration: Configuration) -> ServerSettings:
    """Return how a server listens by a configuration.

    Raises:
        ConfigurationError: An option does not fit.
    """
    limits = Limits(
        message_bytes=configuration.get(MAX_MESSAGE),
        keys=configuration.get(MAX_KEYS),
        in_flight=configuration.get(MAX_IN_FLIGHT),
        connections=configuration.get(MAX_CONNECTIONS),
        of_one_address=configuration.get(MAX_CONNECTIONS_OF_ADDRESS),
        strangers=configuration.get(MAX_STRANGERS),
        greeting_seconds=configuration.get(GREETING_TIMEOUT) / 1000,
        idle_seconds=configuration.get(IDLE_TIMEOUT) / 1000,
        all_bytes=configuration.get(MAX_WAITING),
    )
    if limits.budget_bytes < limits.message_bytes:
        raise ConfigurationError(
            f"{MAX_WAITING.key} ({limits.budget_bytes} bytes) has no room for one message of {MAX_MESSAGE.key} "
            f"({limits.message_bytes} bytes)."
        )
    _check_bounds(limits)
    tls = server_context(configuration.get(TLS_CERTIFICATE), configuration.get(TLS_KEY))
    authority = configuration.get(TLS_AUTHORITY)
    return ServerSettings(
        host=configuration.get(HOST),
        ports=ports_from(configuration, PORTS),
        token=configuration.get(TOKEN),
        server_token=configuration.get(SERVER_TOKEN),
        tls=tls,
        peer_tls=client_context(authority or True) if tls is not None else None,
        limits=limits,
        poll=configuration.get(POLL_INTERVAL) / 1000,
        advertised=configuration.get(ADVERTISED_HOST) or "",
    )


def _check_bounds(limits: Limits) -> None:
    """Nobody could ask a server with one of them at 0."""
    given = {
        MAX_CONNECTIONS: limits.connections,
        MAX_CONNECTIONS_OF_ADDRESS: limits.of_one_address,
        MAX_STRANGERS: limits.strangers,
        GREETING_TIMEOUT: limits.greeting_seconds,
        IDLE_TIMEOUT: limits.idle_seconds,
    }
    for option, value in given.items():
        if value <= 0:
            raise ConfigurationError(f"{option.key} must be more than 0.")
