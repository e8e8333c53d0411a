"""The REST interface in the process of a job."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.queryable.server.server_settings import ports_from
from holdfast.rest.address import AddressFile
from holdfast.rest.connection import RestBounds
from holdfast.rest.server import RestServer, routes_of
from holdfast.runtime.job.rest_options import (
    REST_CONNECTIONS,
    REST_CONNECTIONS_OF_ADDRESS,
    REST_HOSTS,
    REST_MAX_BODY,
    REST_MAX_HEADER,
    REST_METRICS_TOKEN_FILE,
    REST_PORT,
    REST_REQUEST_TIMEOUT,
    REST_STRANGERS,
    REST_THREADS,
)
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_observer import JobObserver

_log = get_logger(__name__)
_LINGER_SECONDS: Final = 5.0


class EmbeddedRestServer(JobObserver):
    """Listens on the loopback while the job runs here; its address is in the job's directory while it leads."""

    def check(self, configuration: Configuration) -> None:
        """Look at the options of REST."""
        ports_from(configuration, REST_PORT)
        bounds_from(configuration)

    def started(self, master: JobMaster) -> None:
        """Listen.

        Raises:
            ConfigurationError: It cannot listen.
        """
        self._bearer = secrets.token_urlsafe(32)
        options = master.job.configuration
        ports, bounds = ports_from(options, REST_PORT), bounds_from(options)
        self._server = RestServer(routes_of(master), self._bearer, ports, bounds)
        self._file = AddressFile(master.job.directory)
        self._url = master.rest_url = self._server.start()
        _log.info("REST of job %r is served at %s", master.job.name, self._url)

    def leads(self, token: int) -> None:
        """Say so in the job's directory.

        Raises:
            StorageError: It cannot be written.
        """
        self._file.publish(self._url, self._bearer, token)

    def ended(self) -> None:
        """Listen no more, once the outcome of a stop with a savepoint has been fetched."""
        self._server.close(_LINGER_SECONDS)
        self._file.withdraw()


def bounds_from(options: Configuration) -> RestBounds:
    """Return what the REST interface takes.

    Raises:
        ConfigurationError: With one of the options nobody could ask anything.
    """
    for option in (
        REST_CONNECTIONS,
        REST_CONNECTIONS_OF_ADDRESS,
        REST_STRANGERS,
        REST_THREADS,
        REST_REQUEST_TIMEOUT,
        REST_MAX_HEADER,
    ):
        if options.get(option) <= 0:
            raise ConfigurationError(f"{option.key} must be more than 0.")
    return RestBounds(
        connections=options.get(REST_CONNECTIONS),
        of_one_address=options.get(REST_CONNECTIONS_OF_ADDRESS),
        strangers=options.get(REST_STRANGERS),
        threads=options.get(REST_THREADS),
        seconds=options.get(REST_REQUEST_TIMEOUT) / 1000,
        header_bytes=options.get(REST_MAX_HEADER),
        body_bytes=options.get(REST_MAX_BODY),
        scraper=_scraper_token(options.get(REST_METRICS_TOKEN_FILE)),
        hosts=frozenset(name.strip().lower() for name in options.get(REST_HOSTS)),
    )


def _scraper_token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{REST_METRICS_TOKEN_FILE.key}: {file!r} cannot be read: {error}.") from error
    if not token:
        raise ConfigurationError(f"{REST_METRICS_TOKEN_FILE.key}: {file!r} is empty, and a token is not.")
    return token
