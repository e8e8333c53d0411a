"""The REST interface in the process of a job."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from holdfast.queryable.server.server_settings import parse_ports
from holdfast.rest.address import AddressFile
from holdfast.rest.server import RestServer, routes_of
from holdfast.runtime.job.rest_options import REST_PORT
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_observer import JobObserver

_log = logging.getLogger(__name__)
_LINGER_SECONDS: Final = 5.0


class EmbeddedRestServer(JobObserver):
    """Listens on the loopback while the job runs here; its address is in the job's directory while it leads."""

    def started(self, master: JobMaster) -> None:
        """Listen.

        Raises:
            ConfigurationError: It cannot listen.
        """
        self._bearer = secrets.token_urlsafe(32)
        ports = parse_ports(master.job.configuration.get(REST_PORT))
        self._server = RestServer(routes_of(master), self._bearer, ports)
        self._file = AddressFile(master.job.directory)
        self._url = self._server.start()
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
