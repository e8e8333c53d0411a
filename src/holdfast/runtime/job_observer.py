"""Those who accompany a job without being part of it, such as the server that answers queries of its state.

They live in layers above this one, so the launcher names them and they are loaded by name.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job import Job
from holdfast.runtime.progress import ProgressReporter
from holdfast.runtime.query_options import ENABLE

_log = logging.getLogger(__name__)
_QUERY_SERVER: Final = "holdfast.queryable.embedded:EmbeddedQueryServer"


class JobObserver(ABC):
    """Accompanies one job; what goes wrong here never harms the job."""

    @abstractmethod
    def started(self, job: Job, progress: ProgressReporter) -> None:
        """The job begins in this process. Records with a checkpoint id follow the completion of that checkpoint."""

    @abstractmethod
    def ended(self) -> None:
        """The job has ended in this process, however it did."""


def observers_for(configuration: Configuration) -> list[JobObserver]:
    """Return the observers that a configuration asks for."""
    names = [_QUERY_SERVER] if configuration.get(ENABLE) else []
    return [_load(name) for name in names]


@contextmanager
def observing(job: Job, progress: ProgressReporter) -> Iterator[None]:
    """Let the observers of a job know that it runs for as long as the block does."""
    begun: list[JobObserver] = []
    for observer in observers_for(job.configuration):
        try:
            observer.started(job, progress)
            begun.append(observer)
        except HoldfastError as error:
            _log.error("Job %r runs without %s: %s", job.name, type(observer).__name__, error)
    try:
        yield
    finally:
        for observer in begun:
            try:
                observer.ended()
            except Exception:
                _log.exception("%s of job %r could not be ended", type(observer).__name__, job.name)


def _load(path: str) -> JobObserver:
    module, _, name = path.partition(":")
    observer = getattr(importlib.import_module(module), name)()
    assert isinstance(observer, JobObserver)
    return observer
