"""Sinks whose committer works in the driver: `ForEachEpochSink`, `CollectSink` and `PrintSink`.

Tasks stage the rows in Parquet files in the job's own directory. When the checkpoint that names them is complete, the
driver calls a function with them, hands them to an iterator, or prints them.
"""

from __future__ import annotations

import inspect
import operator
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.sinks.staged_files import require_whole_epoch, staged_paths, sweep_staged_files, verified_paths
from holdfast.errors import ConfigurationError, UserFunctionError
from holdfast.kernel.failure_text import one_line, user_traceback
from holdfast.kernel.ids import new_nonce
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

READ_PARQUET: Final = "read_parquet"
"""The service of the engine that `ForEachEpochSink` needs: `read_parquet(paths) -> frame`."""

EPOCH_SUFFIX: Final = ".parquet"
INCARNATION: Final = "incarnation"
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ForEachEpochSink(Sink):
    """Calls a function in the driver with the rows of each epoch, after its checkpoint is complete.

    The call is repeated until it returns, always with the same rows under the same epoch and incarnation. So the sink
    is exactly once in effect if `write` skips epochs that are not higher than the last one that it has written of this
    incarnation. An incarnation is one life of the job: a new job directory, `--fresh` and `-s` begin another one, which
    counts its epochs from 1. Epochs without rows are skipped.

    Args:
        write: `write(df, epoch, incarnation)` or `write(df, epoch)`; the result is ignored. `df` is a Spark DataFrame
            of the epoch's rows. With two parameters it cannot tell incarnations apart, which is not enough for output
            that outlives the job directory. A third parameter with a default and another name is not passed.
        last_epoch: `last_epoch(incarnation)` returns the last epoch of an incarnation that the target has, or None.
            With it, a job whose directory was restored from an older copy is rejected. Without it, `write` would skip
            the new rows under the numbers of old epochs, and they would be lost.

    Raises:
        ConfigurationError: An argument is not callable.

    Example:
        >>> import tempfile
        >>> from holdfast.testing import EpochProgram
        >>> program = EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> def write(df, epoch, incarnation):
        ...     print(epoch, df.to_pylist())  # an Arrow table here, where there is no Spark
        >>> result = words.for_each_epoch(write).uid("database")
        >>> job = program.run(tempfile.mkdtemp(), [{"words": [("kelp", 1)]}, {"words": [("kelp", 2)]}])
        1 [{'word': 'kelp', 'n': 1}]
        2 [{'word': 'kelp', 'n': 2}]
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
        # Tasks only stage; the functions stay in the driver, so they need not be picklable.
        return _without_function, ()

    def check_input(self, element_type: TypeInformation) -> None:
        require_parquet("for_each_epoch", element_type)

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        name = context.file_name(EPOCH_SUFFIX)
        return _SparkReadableStaging(context.staging_dir, name, {"file": name})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _FunctionCommitter(self.write, self.last_epoch, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead)


class _SparkReadableStaging(ParquetStaging):
    """Stages times of day as text, because Spark has no type for them."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        super().write_batch(times_to_texts(batch))


class _FunctionCommitter(Committer):
    def __init__(
        self,
        write: Callable[..., Any],
        last_epoch: Callable[[str], int | None] | None,
        context: CommitterInitContext,
    ) -> None:
        self._write = _with_incarnation(write)
        self._last_epoch = last_epoch
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        if not requests:  # of a committer that wraps this one, and holds all back
            return
        epoch = requests[0].epoch
        paths = staged_paths(self._context, requests)
        require_whole_epoch(requests, "for_each_epoch")  # the function may know an epoch by its number
        frame = self._context.services[READ_PARQUET](paths)
        try:
            self._write(frame, epoch, requests[0].incarnation)
        except Exception as error:  # noqa: BLE001 - it is the reason of the next try
            failure = _user_error(self._context.uid, epoch, error)
            for request in requests:
                request.retry_later(failure)

    def last_epoch(self, incarnation: str) -> int | None:
        last = None if self._last_epoch is None else self._last_epoch(incarnation)
        if last is None:
            return None
        try:
            return operator.index(last)
        except TypeError:
            raise ConfigurationError(
                f"last_epoch of for_each_epoch {self._context.uid!r} returned {last!r}. Return the last epoch of the "
                "incarnation that the target has, an integer or None."
            ) from None


def _with_incarnation(write: Callable[..., Any]) -> Callable[[Any, int, str], Any]:
    """Return the user's function with three parameters, whether or not it has one for the incarnation."""
    try:
        parameters = inspect.signature(write).parameters
    except (TypeError, ValueError):  # not every function that is written in C has a signature
        return lambda frame, epoch, _: write(frame, epoch)
    named = parameters.get(INCARNATION)
    if named is not None and named.kind is not named.POSITIONAL_ONLY:
        return lambda frame, epoch, incarnation: write(frame, epoch, incarnation=incarnation)
    required = [p for p in parameters.values() if p.kind in _POSITIONAL and p.default is p.empty]
    if len(required) >= 3:
        return write
    return lambda frame, epoch, _: write(frame, epoch)


def _user_error(uid: str, epoch: int, error: Exception) -> UserFunctionError:
    failure = UserFunctionError(
        uid,
        None,
        epoch,
        f"the function of for_each_epoch {uid!r} raised {type(error).__name__} for epoch {epoch}; the epoch is "
        f"complete, and the function is called again with the same rows until it returns: {one_line(error)}",
        details=user_traceback(error),
    )
    failure.__cause__ = error
    return failure


def _without_function() -> ForEachEpochSink:
    return ForEachEpochSink(_only_in_the_driver)


def _only_in_the_driver(frame: Any, epoch: int) -> None:
    raise AssertionError("the function of for_each_epoch runs in the driver only")


# `stream.execute_and_collect()`. The sink is pickled into tasks, and the mailbox stays in the process that reads it;
# they find each other by a name. Each staged file is delivered once, even if the commit of an epoch is repeated.

COLLECTED_SUFFIX: Final = ".collected"
CAPACITY: Final = 64
"""Staged files that may wait for the reader; the job blocks when there are more."""

_POLL_SECONDS: Final = 1.0
"""The longest delay of an interrupt that arrives just when the reader begins to wait for an element."""

_mailboxes: dict[str, Mailbox] = {}


class _End:
    """The end of the job, with its error if it failed."""

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
        """Queue the elements of a staged file unless they were delivered before. Blocks while the queue is full."""
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
        """End the iteration of the reader, or raise the error there."""
        while not self._closed:
            try:
                self._queue.put(_End(error), timeout=0.2)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        """Stop reading; release threads that wait in `deliver` or for an element."""
        self._closed = True
        _mailboxes.pop(self.name, None)
        with suppress(queue.Full):  # then no reader waits
            self._queue.put_nowait(_End(None))

    def __iter__(self) -> Iterator[Any]:
        while not self._closed:
            try:
                item = self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield from item


class CollectSink(Sink):
    """Delivers a stream to the mailbox with this name in the driver process."""

    def __init__(self, mailbox: str) -> None:
        self._mailbox = mailbox

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        name = context.file_name(COLLECTED_SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _CollectCommitter(self._mailbox, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead)


class _CollectCommitter(Committer):
    def __init__(self, mailbox: str, context: CommitterInitContext) -> None:
        self._mailbox = mailbox
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        mailbox = _mailboxes.get(self._mailbox)
        if mailbox is None:
            return  # its reader has closed it, or was in a process that has ended
        for request, path in zip(requests, verified_paths(self._context, requests), strict=True):
            mailbox.deliver(request.committable["file"], path)


PRINTED_SUFFIX: Final = ".printed"


class PrintSink(Sink):
    """Prints the elements of each completed epoch on the driver's standard output, in PyFlink's format.

    Lines have the prefixes of PyFlink: the identifier, and the number of the subtask if there are several. Elements of
    a declared type look like ``(kelp,1)`` or ``+I[kelp,1]``, others as `str` shows them. A line is printed again only
    if the process dies between printing it and recording that.

    Args:
        element_type: The type of the stream's elements.
        sink_identifier: A prefix that distinguishes the lines of several streams.

    Example:
        >>> import tempfile
        >>> from holdfast.testing import EpochProgram
        >>> program = EpochProgram()
        >>> result = program.source("words", "word string, n bigint").print("words")
        >>> job = program.run(tempfile.mkdtemp(), [{"words": [("kelp", 1)]}])
        words> +I[kelp,1]
    """

    def __init__(self, element_type: TypeInformation, sink_identifier: str | None = None) -> None:
        self._type = element_type
        self._identifier = sink_identifier

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        name = context.file_name(PRINTED_SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name, "parallelism": context.parallelism})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _PrintCommitter(self._type, self._identifier, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead)


class _PrintCommitter(Committer):
    def __init__(self, element_type: TypeInformation, identifier: str | None, context: CommitterInitContext) -> None:
        self._type = element_type
        self._identifier = identifier
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        lines: list[str] = []
        text = pyflink_print_formatter(self._type)
        for request, path in zip(requests, verified_paths(self._context, requests), strict=True):
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
