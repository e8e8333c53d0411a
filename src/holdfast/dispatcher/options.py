"""Options of a job manager and of those who look for it."""

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
    "Where a job manager listens. Another address than one of the loopback needs TLS: rest.tls.certificate.",
)
REST_ADDRESS: Final = ConfigOption[str | None](
    "rest.address",
    str,
    None,
    "The name under which a job manager is reached, if it is not rest.bind-address: what clients connect to, and what "
    "its certificate is for.",
)
REST_TLS_CERTIFICATE: Final = ConfigOption[str | None](
    "rest.tls.certificate", str, None, "File with the certificate chain of a job manager (PEM); turns TLS on."
)
REST_TLS_KEY: Final = ConfigOption[str | None](
    "rest.tls.key", str, None, "File with the key of the job manager's certificate (PEM)."
)
REST_TLS_AUTHORITY: Final = ConfigOption[str | None](
    "rest.tls.authority",
    str,
    None,
    "File with the certificates by which clients know job managers (PEM); by default those of the system.",
)
WORKING_DIRECTORY: Final = ConfigOption[str | None](
    "process.jobmanager.working-dir",
    str,
    None,
    "Local directory of a job manager: programs and logs of its jobs. By default .holdfast/jobmanager in the home "
    "directory without high availability, and a temporary one with it.",
    fallback_keys=("process.working-dir",),
)
MAX_SUBMISSION: Final = ConfigOption(
    "jobmanager.max-submission-size",
    MemorySize,
    100 << 20,
    "Longest request of `holdfast submit`: a third more than its files.",
)

SPARE_PROCESSES: Final = ConfigOption(
    "jobmanager.spare-processes",
    int,
    0,
    "How many processes, each with a JVM that has run a small job, a job manager keeps ready while it stands by. A job "
    "that it takes over, or that is submitted to it, starts in one of them. Each takes about 1 GB, and more with more "
    "than two cores.",
)
MOST_ENDED: Final = ConfigOption(
    "jobstore.max-capacity",
    int,
    100,
    "Of how many jobs that have ended a job manager tells how, also of those that ended under a leader before.",
)


def working_directory(configuration: Configuration) -> Path:
    """Where a job manager without high availability works, and where its clients look for it.

    Raises:
        ConfigurationError: It is empty, as that of a variable that is not set, or the user has no home directory.
    """
    chosen = configuration.get(WORKING_DIRECTORY)
    if chosen is None:
        try:
            return Path.home() / ".holdfast" / "jobmanager"
        except RuntimeError as error:  # as of a number that no user has, in a container
            raise ConfigurationError(f"This user has no home directory: set {WORKING_DIRECTORY.key}.") from error
    if not chosen.strip():
        raise ConfigurationError(f"{WORKING_DIRECTORY.key} is empty, and must be a directory.")
    return Path(chosen).absolute()


def process_restarts(clock: Clock) -> RestartStrategy:
    """When the process of a job that died is started again: always, after at most a minute."""
    return ExponentialDelayRestartStrategy(1000, 60_000, 2.0, 600_000, 0.1, UNLIMITED, clock)


def clean_up_retries(configuration: Configuration, clock: Clock) -> RestartStrategy:
    """When a clean-up that failed is tried again.

    Raises:
        ConfigurationError: An option is out of bounds.
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
                clock,
            )
        case ha.CleanupStrategy.FIXED_DELAY:
            return FixedDelayRestartStrategy(
                configuration.get(ha.CLEANUP_FIXED_ATTEMPTS), configuration.get(ha.CLEANUP_FIXED_DELAY)
            )
    return NoRestartStrategy()
