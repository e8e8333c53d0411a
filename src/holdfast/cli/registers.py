"""Finding the registers of jobs, in their directories or where `-D high-availability.*` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from holdfast.errors import ConfigurationError
from holdfast.ha.services.factory import create_high_availability_services
from holdfast.ha.services.ha_services import HighAvailabilityServices
from holdfast.ha.services.job_register import file_register_of, is_elsewhere
from holdfast.ha.services.options import ha_type
from holdfast.kernel.configuration import Configuration
from holdfast.storage.file_system.s3_options import use_s3_options
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.fenced_register import FencedRegister


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-D` to a command that reads registers."""
    return click.option(
        "-D",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="How to reach an object store (s3.*), and where the registers are if not in the directory "
        "(high-availability.type and what belongs to it).",
    )(command)


class Registers:
    """The registers of jobs; the coordination store is reached when a job needs it.

    Args:
        properties: Options as `key=value`.

    Raises:
        ConfigurationError: One is not of that form, or unknown.
    """

    def __init__(self, properties: Iterable[str] = ()) -> None:
        self._configuration = Configuration.from_properties(properties)
        self._configuration.validate()
        use_s3_options(self._configuration)
        self._services: HighAvailabilityServices | None = None

    def of(self, directory: JobDirectory) -> FencedRegister:
        """The register of a job.

        Raises:
            ConfigurationError: It is in a coordination store, and the options do not say in which.
            StorageError: The store does not answer.
        """
        if not is_elsewhere(directory) or ha_type(self._configuration) == "none":
            return file_register_of(directory)
        if self._services is None:
            self._services = create_high_availability_services(self._configuration, ThreadPoolExecutor(1))
        register = self._services.get_checkpoint_recovery_factory().get_register(directory.job_id)
        if register is None:
            raise ConfigurationError(f"The cluster of these options has no register of the job in {directory.path!r}.")
        return register

    def close(self) -> None:
        """Ends the connection to the coordination store."""
        if self._services is not None:
            self._services.close()
