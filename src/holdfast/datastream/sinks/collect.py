"""`stream.execute_and_collect()`: the elements of each completed epoch, handed to an iterator in the driver.

The sink is pickled into tasks, the mailbox stays in the process that reads it; they find each other by a name. Each
staged file is delivered once, also if an epoch's commit is repeated after a failure.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.datastream.sinks.task_owned import checked_paths, sweep_task_owned
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.function.staging import ParquetStaging, read_staged
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.information.type_information import TypeInformation

SUFFIX: Final = ".collected"
CAPACITY: Final = 64
"""Staged files that may wait to be read; the job waits when the reader is slower."""

_LOOK_SECONDS: Final = 1.0
"""How long an interrupt may wait that Python was told of at the very moment when it began to wait for an element."""

_mailboxes: dict[str, Mailbox] = {}


class _End:
    """The job has ended; with the error if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Mailbox:
    """Elements on their way from the committer to the reader."""

    def __init__(self, element_type: TypeInformation) -> None:
        self.name = new_nonce()
        self._type = element_type
        self._queue: queue.Queue[list[Any] | _End] = queue.Queue(CAPACITY)
        self._seen: set[str] = set()
        self._closed = False
        _mailboxes[self.name] = self

    def deliver(self, file: str, path: str) -> None:
        """Queues the elements of a staged file, unless that was done before. Blocks while the reader is behind."""
        if file in self._seen or self._closed:
            return
        elements: list[Any] = []
        for batch in read_staged([path]).to_batches():
            elements.extend(batch_to_elements(batch, self._type))
        while not self._closed:
            try:
                self._queue.put(elements, timeout=0.2)
                break
            except queue.Full:
                continue
        self._seen.add(file)

    def end(self, error: BaseException | None = None) -> None:
        """Tells the reader that nothing more comes."""
        while not self._closed:
            try:
                self._queue.put(_End(error), timeout=0.2)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        """The reader wants no more; whoever delivers is let go, and a thread that waits for an element."""
        self._closed = True
        _mailboxes.pop(self.name, None)
        with suppress(queue.Full):  # then nobody waits
            self._queue.put_nowait(_End(None))

    def __iter__(self) -> Iterator[Any]:
        while not self._closed:
            try:
                item = self._queue.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield from item


class CollectSink(Sink):
    """Delivers a stream to the mailbox of a given name in this process."""

    def __init__(self, mailbox: str) -> None:
        self._mailbox = mailbox

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Delivers to the mailbox."""
        return _DeliveringCommitter(self._mailbox, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_task_owned(context, is_dead)


class _DeliveringCommitter(Committer):
    def __init__(self, mailbox: str, context: CommitterInitContext) -> None:
        self._mailbox = mailbox
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        mailbox = _mailboxes.get(self._mailbox)
        if mailbox is None:
            return  # its reader has closed it, or was in a process that is gone
        for request, path in zip(requests, checked_paths(self._context, requests), strict=True):
            mailbox.deliver(request.committable["file"], path)
