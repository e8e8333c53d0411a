"""`for_each_epoch(write)`: any Spark writer, after the commit point, exactly over the rows of one epoch.

Tasks stage the rows in Parquet files in the job's own directory. When the checkpoint that names them is complete, the
driver calls `write(df, epoch, incarnation)` with a frame over exactly these files, and repeats it until it returns. So
`write` sees the same bytes under the same epoch and incarnation every time, and is exactly once in effect if it skips
what is at most the last epoch that it wrote of this incarnation.

`last_epoch(incarnation)` asks the target which that is. With it, a job whose directory was put back from an older copy
is refused, as by the sinks that keep a ledger themselves; without it, `write` skips the new rows that come under the
numbers of epochs that it has written.

A function of two parameters is called with frame and epoch alone. That is enough for nothing that outlives the job's
directory, because another incarnation counts its epochs anew.

`write` is not called for an epoch that has no rows: tick epochs would call it for nothing.
"""

from __future__ import annotations

import inspect
import operator
import queue
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.sinks.task_owned import checked_paths, staged_paths, sweep_task_owned
from holdfast.errors import ConfigurationError, UserFunctionError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    ParquetStaging,
    Sink,
    WriterInitContext,
    read_staged,
    require_parquet,
)
from holdfast.storage.job_directory import FileName
from holdfast.types.arrow import batch_to_elements, times_to_texts
from holdfast.types.flink_text import pyflink_print_formatter
from holdfast.types.type_information import TypeInformation

logger = get_logger(__name__)

READ_PARQUET: Final = "read_parquet"
"""The service that this sink needs of the engine: `read_parquet(paths) -> frame`."""

EPOCH_SUFFIX: Final = ".parquet"
INCARNATION: Final = "incarnation"
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ForEachEpochSink(Sink):
    """Calls a function in the driver with the rows of each epoch.

    Args:
        write: `write(df, epoch, incarnation)`, or `write(df, epoch)`; what it returns is ignored. A third parameter
            that has a default and another name than `incarnation` is left alone.
        last_epoch: Asks the target for the last epoch that it has of an incarnation; None if it has none.

    Raises:
        ConfigurationError: One is not callable.
    """

    def __init__(self, write: Callable[..., Any], last_epoch: Callable[[str], int | None] | None = None) -> None:
        if not callable(write):
            raise ConfigurationError(f"for_each_epoch takes a function write(df, epoch, incarnation), not {write!r}.")
        if last_epoch is not None and not callable(last_epoch):
            raise ConfigurationError(
                f"last_epoch of for_each_epoch is a function, called with an incarnation, not {last_epoch!r}."
            )
        self.write = write
        self.last_epoch = last_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks only stage; the functions stay in the driver, so they may hold what cannot be pickled.
        return _without_function, ()

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type."""
        require_parquet("for_each_epoch", element_type)

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(EPOCH_SUFFIX)
        return _ToldStaging(context.staging_dir, name, {"file": name})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Calls the function."""
        return _CallingCommitter(self.write, self.last_epoch, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_task_owned(context, is_dead)


class _ToldStaging(ParquetStaging):
    """Stages what Spark can read, which knows times of day as texts."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        super().write_batch(times_to_texts(batch))


class _CallingCommitter(Committer):
    def __init__(
        self,
        write: Callable[..., Any],
        last_epoch: Callable[[str], int | None] | None,
        context: CommitterInitContext,
    ) -> None:
        self._write = _of_three(write)
        self._ask = last_epoch
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        epoch = requests[0].epoch
        paths = staged_paths(self._context, requests)
        frame = self._context.services[READ_PARQUET](paths)
        try:
            self._write(frame, epoch, requests[0].incarnation)
        except Exception as error:
            logger.warning("for_each_epoch of %r failed for epoch %d", self._context.uid, epoch, exc_info=True)
            failure = _user_error(self._context.uid, epoch, error)
            for request in requests:
                request.retry_later(failure)

    def last_epoch(self, incarnation: str) -> int | None:
        last = None if self._ask is None else self._ask(incarnation)
        if last is None:
            return None
        try:
            return operator.index(last)
        except TypeError:
            raise ConfigurationError(
                f"last_epoch of for_each_epoch {self._context.uid!r} returned {last!r}. Return the last epoch that the "
                "target has of the incarnation, a number or None."
            ) from None


def _of_three(write: Callable[..., Any]) -> Callable[[Any, int, str], Any]:
    """The user's function, whether or not it wants to know the incarnation."""
    try:
        parameters = inspect.signature(write).parameters
    except (TypeError, ValueError):  # one that is not written in Python does not tell
        return lambda frame, epoch, _: write(frame, epoch)
    named = parameters.get(INCARNATION)
    if named is not None and named.kind is not named.POSITIONAL_ONLY:
        return lambda frame, epoch, incarnation: write(frame, epoch, incarnation=incarnation)
    required = [p for p in parameters.values() if p.kind in _POSITIONAL and p.default is p.empty]
    if len(required) >= 3:
        return write
    return lambda frame, epoch, _: write(frame, epoch)


def _user_error(uid: str, epoch: int, error: Exception) -> UserFunctionError:
    text = "".join(traceback.format_exception(error))
    failure = UserFunctionError(
        uid,
        None,
        epoch,
        f"the function of for_each_epoch {uid!r} raised {type(error).__name__} for epoch {epoch}; the epoch is "
        f"complete, and the function is called again with the same rows until it returns\n{text}",
    )
    failure.__cause__ = error
    return failure


def _without_function() -> ForEachEpochSink:
    return ForEachEpochSink(_only_in_the_driver)


def _only_in_the_driver(frame: Any, epoch: int) -> None:
    raise AssertionError("the function of for_each_epoch runs in the driver only")


# `stream.execute_and_collect()`: the elements of each completed epoch, handed to an iterator in the driver.
#
# The sink is pickled into tasks, the mailbox stays in the process that reads it; they find each other by a name. Each
# staged file is delivered once, also if an epoch's commit is repeated after a failure.

COLLECTED_SUFFIX: Final = ".collected"
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
        name = context.file_name(COLLECTED_SUFFIX)
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


# `stream.print()`: the elements of each completed epoch, as lines on the driver's standard output.
#
# Lines appear after the commit point, so they are what really happened. They appear again only if the process dies
# between printing and noting that it has.

PRINTED_SUFFIX: Final = ".printed"


class PrintSink(Sink):
    """Prints each element as PyFlink does, with its prefixes: identifier, and subtask if there are several.

    Elements of a declared type look like ``(kelp,1)`` or ``+I[kelp,1]``, others as `str` shows them.

    Args:
        element_type: Type of the stream's elements.
        sink_identifier: A prefix that tells the lines of several streams apart.
    """

    def __init__(self, element_type: TypeInformation, sink_identifier: str | None = None) -> None:
        self._type = element_type
        self._identifier = sink_identifier

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(PRINTED_SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name, "parallelism": context.parallelism})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Prints."""
        return _PrintingCommitter(self._type, self._identifier, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_task_owned(context, is_dead)


class _PrintingCommitter(Committer):
    def __init__(self, element_type: TypeInformation, identifier: str | None, context: CommitterInitContext) -> None:
        self._type = element_type
        self._identifier = identifier
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        lines: list[str] = []
        text = pyflink_print_formatter(self._type)
        for request, path in zip(requests, checked_paths(self._context, requests), strict=True):
            prefix = self._prefix(request)
            for batch in read_staged([path]).to_batches():
                lines.extend(f"{prefix}{text(element)}\n" for element in batch_to_elements(batch, self._type))
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def _prefix(self, request: CommitRequest) -> str:
        parts = [self._identifier] if self._identifier else []
        if request.committable["parallelism"] > 1:
            parts.append(str(request.subtask + 1))
        return ":".join(parts) + "> " if parts else ""
