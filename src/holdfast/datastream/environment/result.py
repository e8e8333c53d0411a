"""What the ways of running a job return."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from holdfast.datastream.sinks.collect import Mailbox
from holdfast.runtime.job.status import JobExecutionResult
from holdfast.runtime.master.job_client import JobClient

__all__ = ["CollectedElements", "JobExecutionResult"]


class CollectedElements(Iterator[Any]):
    """The elements of a stream as the epochs of its running job complete; close it, or use it in a `with` statement.

    The job waits when the reader is far behind. If the job fails, the error is raised after the elements of its
    completed epochs. Who interrupts a wait for the next element cancels the job: nobody would read on.
    """

    def __init__(self, mailbox: Mailbox, client: JobClient) -> None:
        self._mailbox = mailbox
        self._client = client
        self._elements = iter(mailbox)
        self._watcher = threading.Thread(target=self._watch, name="holdfast-collect", daemon=True)
        self._watcher.start()

    def __next__(self) -> Any:
        try:
            return next(self._elements)
        except KeyboardInterrupt:
            self._let_go()
            raise

    def next(self) -> Any:
        """The next element; StopIteration if there is none any more."""
        return next(self)

    def get_job_client(self) -> JobClient:
        """The handle of the running job."""
        return self._client

    def close(self) -> None:
        """Ends the job if it still runs, and waits for its end; what was not read is lost."""
        self._let_go()
        self._watcher.join()

    def __enter__(self) -> CollectedElements:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _let_go(self) -> None:
        self._mailbox.close()
        self._elements = iter(())
        if not self._client.get_job_status().is_terminal_state():
            self._client.cancel()

    def _watch(self) -> None:
        try:
            self._client.await_termination()
        except Exception as error:
            self._mailbox.end(error)
        else:
            self._mailbox.end()
