"""`for_each_epoch(write)`: any Spark writer, after the commit point, exactly over the rows of one epoch.

Tasks stage the rows in Parquet files in the job's own directory. When the checkpoint that names them is complete, the
driver calls `write(df, epoch)` with a frame over exactly these files, and repeats it until it returns. So `write` sees
the same bytes under the same epoch number every time, and is exactly once in effect if it writes idempotently by
epoch.

`write` is not called for an epoch that has no rows: tick epochs would call it for nothing.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.datastream.sinks.task_owned import staged_paths, sweep_task_owned
from holdfast.errors import ConfigurationError, UserFunctionError
from holdfast.runtime.sink import CommitRequest, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.staging import ParquetStaging, require_columns
from holdfast.storage.naming import FileName
from holdfast.types.type_information import TypeInformation

logger = logging.getLogger(__name__)

READ_PARQUET: Final = "read_parquet"
"""The service that this sink needs of the engine: `read_parquet(paths) -> frame`."""

SUFFIX: Final = ".parquet"


class ForEachEpochSink(Sink):
    """Calls a function in the driver with the rows of each epoch.

    Args:
        write: `write(df, epoch)`; what it returns is ignored.

    Raises:
        ConfigurationError: It is not callable.
    """

    def __init__(self, write: Callable[[Any, int], Any]) -> None:
        if not callable(write):
            raise ConfigurationError(f"for_each_epoch takes a function write(df, epoch), not {write!r}.")
        self.write = write

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks only stage; the function stays in the driver, so it may hold what cannot be pickled.
        return _without_function, ()

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type."""
        require_columns("for_each_epoch", element_type)

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(SUFFIX)
        return ParquetStaging(context.staging_dir, name, {"file": name})

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Calls the function."""
        return _CallingCommitter(self.write, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_task_owned(context, is_dead)


class _CallingCommitter(Committer):
    def __init__(self, write: Callable[[Any, int], Any], context: CommitterInitContext) -> None:
        self._write = write
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        epoch = requests[0].epoch
        paths = staged_paths(self._context, requests)
        frame = self._context.services[READ_PARQUET](paths)
        try:
            self._write(frame, epoch)
        except Exception as error:
            logger.warning("for_each_epoch of %r failed for epoch %d", self._context.uid, epoch, exc_info=True)
            failure = _user_error(self._context.uid, epoch, error)
            for request in requests:
                request.retry_later(failure)


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
