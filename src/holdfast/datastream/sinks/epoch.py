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
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.sinks.task_owned import staged_paths, sweep_task_owned
from holdfast.errors import ConfigurationError, UserFunctionError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.function.staging import ParquetStaging, require_parquet
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.times_of_day import with_texts
from holdfast.types.information.type_information import TypeInformation

logger = get_logger(__name__)

READ_PARQUET: Final = "read_parquet"
"""The service that this sink needs of the engine: `read_parquet(paths) -> frame`."""

SUFFIX: Final = ".parquet"
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
        name = context.file_name(SUFFIX)
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
        super().write_batch(with_texts(batch))


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
