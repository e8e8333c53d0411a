"""Those who accompany a job without being part of it: the servers of queries of its state and of REST.

They live in layers above this one, so the launcher names them and they are loaded by name.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.runtime.job.query_options import ENABLE
from holdfast.runtime.job.rest_options import OTLP_ENDPOINT, REST_ENABLE

if TYPE_CHECKING:
    from holdfast.runtime.master.job_master import JobMaster

_log = get_logger(__name__)
_QUERY_SERVER: Final = "holdfast.queryable.server.embedded:EmbeddedQueryServer"
_REST_SERVER: Final = "holdfast.rest.embedded:EmbeddedRestServer"
_REPORTER: Final = "holdfast.rest.metric.otlp:EmbeddedOtlpReporter"


class JobObserver(ABC):
    """Accompanies one job; what goes wrong here never harms the job."""

    def check(self, configuration: Configuration) -> None:  # noqa: B027 - some have no options
        """The job is about to begin; nothing listens yet.

        Raises:
            ConfigurationError: An option does not fit.
        """

    @abstractmethod
    def started(self, master: JobMaster) -> None:
        """The job begins in this process."""

    def leads(self, token: int) -> None:  # noqa: B027 - most have nothing to do
        """The process has become the leader with this token, at the beginning of each attempt."""

    @abstractmethod
    def ended(self) -> None:
        """The job has ended in this process, however it did."""


class JobObservers:
    """The observers of one job.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._begun: list[JobObserver] = []

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Let the observers know that the job runs for as long as the block does.

        Raises:
            ConfigurationError: An option of one does not fit.
        """
        observers = observers_for(self._master.job.configuration)
        for observer in observers:
            observer.check(self._master.job.configuration)
        for observer in observers:
            try:
                observer.started(self._master)
                self._begun.append(observer)
            except HoldfastError as error:
                _log.error("Job %r runs without %s: %s", self._master.job.name, type(observer).__name__, error)
        try:
            yield
        finally:
            for observer in self._begun:
                try:
                    observer.ended()
                except Exception:
                    _log.exception("%s of job %r could not be ended", type(observer).__name__, self._master.job.name)

    def leads(self, token: int) -> None:
        """Let the observers know that the process leads."""
        for observer in self._begun:
            try:
                observer.leads(token)
            except HoldfastError as error:
                _log.warning("%s of job %r: %s", type(observer).__name__, self._master.job.name, error)


def observers_for(configuration: Configuration) -> list[JobObserver]:
    """Return the observers that a configuration asks for."""
    names = [_QUERY_SERVER] if configuration.get(ENABLE) else []
    if configuration.get(REST_ENABLE):
        names.append(_REST_SERVER)
    if configuration.get(OTLP_ENDPOINT) is not None:
        names.append(_REPORTER)
    return [_load(name) for name in names]


def _load(path: str) -> JobObserver:
    module, _, name = path.partition(":")
    observer = getattr(importlib.import_module(module), name)()
    assert isinstance(observer, JobObserver)
    return observer
