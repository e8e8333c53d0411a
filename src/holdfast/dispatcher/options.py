"""Options of job managers and their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.ha import options as ha
from holdfast.kernel.clock import Clock
from holdfast.kernel.configuration import ConfigOption, Configuration, MemorySize
from holdfast.kernel.restart_strategy import (
    UNLIMITED,
    ExponentialDelayRestartStrategy,
    FixedDelayRestartStrategy,
    NoRestartStrategy,
    RestartStrategy,
)

REST_BIND_ADDRESS: Final = ConfigOption(
    "rest.bind-address",
    str,
    "127.0.0.1",
    "The address on which a job manager listens. Addresses other than the loopback need TLS (rest.tls.certificate).",
)
REST_ADDRESS: Final = ConfigOption[str | None](
    "rest.address",
    str,
    None,
    "The host name under which clients reach a job manager, and for which its certificate is issued. Default: "
    "rest.bind-address.",
)
REST_TLS_CERTIFICATE: Final = ConfigOption[str | None](
    "rest.tls.certificate", str, None, "File with the certificate chain of a job manager (PEM). It enables TLS."
)
REST_TLS_KEY: Final = ConfigOption[str | None](
    "rest.tls.key", str, None, "File with the key of the job manager's certificate (PEM)."
)
REST_TLS_AUTHORITY: Final = ConfigOption[str | None](
    "rest.tls.authority",
    str,
    None,
    "File with the certificate authorities that clients trust (PEM). Default: those of the system.",
)
WORKING_DIRECTORY: Final = ConfigOption[str | None](
    "process.jobmanager.working-dir",
    str,
    None,
    "Local directory of a job manager for programs and logs of its jobs. Default: .holdfast/jobmanager in the home "
    "directory, and with high availability a temporary directory.",
    fallback_keys=("process.working-dir",),
)
MAX_SUBMISSION: Final = ConfigOption(
    "jobmanager.max-submission-size",
    MemorySize,
    100 << 20,
    "Maximum length of a request of `holdfast submit`. A request is a third longer than its files.",
)

SPARE_PROCESSES: Final = ConfigOption(
    "jobmanager.spare-processes",
    int,
    0,
    "Number of processes that a job manager keeps ready while it stands by, each with a JVM that has run a small job. "
    "Jobs that it takes over, or that are submitted to it, start in one of them. Each takes about 1 GB, and more with "
    "more than two cores.",
)
MAX_ENDED: Final = ConfigOption(
    "jobstore.max-capacity",
    int,
    100,
    "Number of ended jobs that a job manager remembers, including those of earlier leaders.",
)


def working_directory(configuration: Configuration) -> Path:
    """Return the working directory of a job manager without high availability, where clients find its address.

    Raises:
        ConfigurationError: The option is empty, or the user has no home directory.
    """
    chosen = configuration.get(WORKING_DIRECTORY)
    if chosen is None:
        try:
            return Path.home() / ".holdfast" / "jobmanager"
        except RuntimeError as error:  # for example a user id without a user, in a container
            raise ConfigurationError(f"The user has no home directory: set {WORKING_DIRECTORY.key}.") from error
    if not chosen.strip():
        raise ConfigurationError(f"{WORKING_DIRECTORY.key} is empty: set a directory.")
    return Path(chosen).absolute()


def process_restarts(clock: Clock) -> RestartStrategy:
    """Return the restart strategy of a job's process: always, after at most a minute."""
    return ExponentialDelayRestartStrategy(1000, 60_000, 2.0, 600_000, 0.1, UNLIMITED, clock=clock)


def clean_up_retries(configuration: Configuration, clock: Clock) -> RestartStrategy:
    """Return the retry strategy of a clean-up.

    Raises:
        ConfigurationError: An option is invalid.
    """
    try:
        return _clean_up_retries(configuration, clock)
    except ConfigurationError as error:
        raise ConfigurationError(f"Options cleanup-strategy.*: {error}") from error


def _clean_up_retries(configuration: Configuration, clock: Clock) -> RestartStrategy:
    match configuration.get(ha.CLEANUP_STRATEGY):
        case ha.CleanupStrategy.EXPONENTIAL_DELAY:
            return ExponentialDelayRestartStrategy(
                configuration.get(ha.CLEANUP_EXPONENTIAL_INITIAL_BACKOFF),
                configuration.get(ha.CLEANUP_EXPONENTIAL_MAX_BACKOFF),
                2.0,
                1 << 40,
                0.0,
                configuration.get(ha.CLEANUP_EXPONENTIAL_ATTEMPTS),
                clock=clock,
            )
        case ha.CleanupStrategy.FIXED_DELAY:
            return FixedDelayRestartStrategy(
                configuration.get(ha.CLEANUP_FIXED_ATTEMPTS), configuration.get(ha.CLEANUP_FIXED_DELAY)
            )
    return NoRestartStrategy()
