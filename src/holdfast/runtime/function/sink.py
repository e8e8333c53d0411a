"""Sinks: how output leaves a job exactly once.

Writers run in the tasks and only *stage*: their output must be durable, and invisible to readers. Each returns
committables, which become part of the epoch's checkpoint. When the checkpoint is complete, the driver passes them to
the committer, and again after a recovery, so a commit must always be idempotent::

    task    create_writer -> write | write_batch* -> flush -> prepare_commit -> close    (abort if the attempt fails)
                                                        |
    driver                     checkpoint complete  ->  Committer.commit([CommitRequest, ...])

A writer lives for one try of one epoch; an epoch that runs again has new writers with other file names. `sweep`
removes what failed tries have staged.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from holdfast.errors import ConfigurationError
from holdfast.kernel import fault
from holdfast.kernel.ids import OperatorID, new_nonce
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import FileName
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import Timestamps, element_schema
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

Committable = Any
"""A JSON value: it is stored in `_metadata`, and read again when the job recovers."""

OWNER_DIGITS = 8
SEND_ERRORS = "numRecordsSendErrors"
"""Metric of elements that a sink could not write; Flink's name."""
ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
CHECKSUM: Final = "checksum"
"""Key of a committable: XXH3-64 of all bytes of its file, hexadecimal. Older versions wrote none."""


class RefusedElementError(ValueError):
    """Raised by a writer for elements that its target cannot store, before any of them is stored.

    The job fails with this message, or the elements go to the dead letters of the sink. A writer of batches may raise
    it for a single row: it then gets parts of the batch, down to single rows. `OutputTypeError` has the same effect.
    """


def dead_letter_type(element_type: TypeInformation) -> TypeInformation:
    """Return the type of dead letters of a sink: the element, the uid of the sink, the epoch and the reason."""
    types = [element_type, Types.STRING(), Types.LONG(), Types.STRING()]
    return Types.ROW_NAMED(["row", "sink", "epoch", "reason"], types)


@dataclass(frozen=True)
class WriterInitContext:
    """The context of a new writer: one subtask of one sink in one try of one epoch.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        epoch: The epoch, from 1.
        subtask: Index of the subtask, from 0.
        parallelism: Number of subtasks.
        attempt: Number of earlier tries of the epoch under this token.
        token: The fencing token of the leader.
        input_type: Type of the elements.
        staging_dir: A directory of the job in which files stay until they are swept; URI or path.
        processing_time: The processing time of the epoch, in milliseconds since 1970.
        watermark: The watermark at the end of the epoch before, in milliseconds since 1970.
        incarnation: The incarnation of the job, as in `CommitRequest`.
        target: The result of `Sink.prepare`.
        is_real_time: Whether the task lives for many epochs, so that a writer may write directly.
    """

    job_id: str
    uid: str
    epoch: int
    subtask: int
    parallelism: int
    attempt: int
    token: int
    input_type: TypeInformation
    staging_dir: str
    processing_time: int = 0
    watermark: int = -(2**63)
    incarnation: str = ""
    target: Any = None
    is_real_time: bool = False

    @property
    def owner(self) -> str:
        """The sink in file names: eight hexadecimal digits derived from its uid."""
        return owner_of(self.uid)

    def file_name(self, suffix: str) -> str:
        """Return a new unique file name. It has token, epoch and try, by which the sweeper judges it."""
        name = FileName(self.token, self.epoch, self.attempt, self.owner, self.subtask, new_nonce())
        return name.format(suffix)


@dataclass(frozen=True)
class CommitterInitContext:
    """The context of a committer, and of a sweep.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        staging_dir: The directory of the writers.
        services: Services of the engine by name, for instance `read_parquet(paths) -> DataFrame`.
        incarnations: All incarnations of the job in its directory, the current one last.
        require_lead: Reads the register, and raises FencedError if another process leads. Call it before an operation
            on the target that would fence out the leader.
    """

    job_id: str
    uid: str
    staging_dir: str
    services: Mapping[str, Any] = field(default_factory=dict)
    incarnations: tuple[str, ...] = ()
    require_lead: Callable[[], object] = lambda: None

    @property
    def owner(self) -> str:
        """The sink in file names, as in `WriterInitContext`."""
        return owner_of(self.uid)


def owner_of(uid: str) -> str:
    """Return the part of a file name that identifies the operator."""
    return OperatorID.from_uid(uid).to_hex()[:OWNER_DIGITS]


class WriterContext(ABC):
    """The context of an element that is written."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Return the event time of the element in milliseconds since 1970, None if it has none."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in milliseconds since 1970."""


class _Writer:
    """The methods that both kinds of writers have.

    Attributes:
        writes_directly: Whether elements reach the target as they are written, at least once. In a real-time job such
            a writer goes on behind a barrier: `flush` and `prepare_commit` are called at each one, and `close` when the
            task ends.
    """

    writes_directly: bool = False

    def set_processing_time(self, now: int) -> None:
        """Take the current processing time, in milliseconds since 1970, before elements come.

        Only a real-time task calls it. In an epoch the time is that of the context.
        """

    def flush(self, end_of_input: bool) -> None:
        """Make all output durable; called before `prepare_commit`. May block.

        Args:
            end_of_input: Whether the job ends with this epoch, so that nothing may be kept for a later one.

        Raises:
            CheckpointDeclinedError: It is not possible now. The writer keeps the output, gets more of it, and is
                flushed again.
        """

    def prepare_commit(self) -> list[Committable]:
        """Return what the committer needs to make the staged output visible, as JSON values."""
        return []

    def close(self) -> None:
        """Release resources after `prepare_commit`."""

    def abort(self) -> None:
        """Release resources after a failure, and remove staged output if possible; it may never be called."""


class SinkWriter(_Writer, ABC):
    """Stages the output of one subtask, element by element.

    A writer that also defines `write_batch(batch: pyarrow.RecordBatch)` gets whole batches instead; see
    `BatchSinkWriter`. Raise `StorageError` if the target cannot be reached: the job then waits for it, as its restart
    strategy allows.

    >>> class ListWriter(SinkWriter):
    ...     def __init__(self):
    ...         self.rows = []
    ...
    ...     def write(self, element, context):
    ...         self.rows.append(element)
    ...
    ...     def prepare_commit(self):
    ...         return [self.rows] if self.rows else []
    >>> writer = ListWriter()
    >>> writer.write("kelp", None)
    >>> writer.flush(end_of_input=False)
    >>> writer.prepare_commit()
    [['kelp']]
    """

    @abstractmethod
    def write(self, element: Any, context: WriterContext) -> None:
        """Stage one element.

        Raises:
            RefusedElementError: The target cannot store it.
        """


class ColumnSinkWriter(SinkWriter):
    """A writer that takes columns with their event times where it can, and elements elsewhere.

    Attributes:
        takes_columns: Whether it can take columns at all. If not, no columns are made for it.
    """

    takes_columns: bool

    @abstractmethod
    def write_columns(self, batch: pa.RecordBatch, timestamps: Timestamps | None) -> bool:
        """Stage many elements; return False, and stage none, if `write` has to be called with each of them.

        Args:
            batch: A column for each field of a row type, otherwise one column `value`.
            timestamps: The event times; None if the elements have none.
        """


class BatchSinkWriter(_Writer, ABC):
    """Stages the output of one subtask as Arrow batches, without Python objects for the rows; see `SinkWriter`.

    >>> import pyarrow as pa
    >>> class CountingWriter(BatchSinkWriter):
    ...     def __init__(self):
    ...         self.rows = 0
    ...
    ...     def write_batch(self, batch):
    ...         self.rows += batch.num_rows
    ...
    ...     def prepare_commit(self):
    ...         return [{"rows": self.rows}]
    >>> writer = CountingWriter()
    >>> writer.write_batch(pa.RecordBatch.from_pydict({"word": ["kelp", "cod"]}))
    >>> writer.flush(end_of_input=False)
    >>> writer.prepare_commit()
    [{'rows': 2}]
    """

    @abstractmethod
    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Stage one batch.

        Args:
            batch: A column for each field of a row type, otherwise one column `value`.

        Raises:
            RefusedElementError: The target cannot store a row of it; nothing of the batch is staged.
        """


class CommitRequest:
    """A committable to be committed, and the answer of the committer.

    A request without an answer counts as committed when `Committer.commit` returns.

    (incarnation, uid, epoch) identifies an epoch for ever: a job that starts anew counts its epochs in a new
    incarnation. Within one, the epochs of a sink are committed strictly in order, so a target that remembers the last
    epoch of each incarnation can skip what it has committed already.

    Attributes:
        committable: The committable of the writer.
        incarnation: The incarnation of the job that wrote it: new with each job directory, each `--fresh` and each
            `-s`. A job that was started from the checkpoint commits it with the incarnation of the writer.
        uid: The sink that wrote it.
        epoch: The epoch that wrote it.
        subtask: The subtask that wrote it.
        checkpoint_id: The completed checkpoint that names it.
        number_of_retries: Number of earlier retries.
        is_recovered: Whether it is from a restored checkpoint, so that an earlier process may have committed it.
        epoch_committables: All committables of the sink in this epoch, also those that are committed in other calls; a
            target records which of them it has. Empty if they are unknown.

    >>> request = CommitRequest({"file": "a"}, epoch=4, subtask=0, checkpoint_id=2)
    >>> request.answer
    'committed'
    >>> request.retry_later()
    >>> request.answer
    'retry'
    """

    def __init__(
        self,
        committable: Committable,
        *,
        epoch: int,
        subtask: int,
        checkpoint_id: int,
        number_of_retries: int = 0,
        is_recovered: bool = False,
        incarnation: str = "",
        uid: str = "",
        epoch_committables: Sequence[Committable] = (),
    ) -> None:
        self.committable = committable
        self.incarnation = incarnation
        self.uid = uid
        self.epoch = epoch
        self.subtask = subtask
        self.checkpoint_id = checkpoint_id
        self.number_of_retries = number_of_retries
        self.is_recovered = is_recovered
        self.epoch_committables = epoch_committables
        self._answer = "committed"
        self._reason: BaseException | None = None

    @property
    def answer(self) -> str:
        """`committed`, `already`, `retry`, `known` (failed and dropped) or `unknown` (fails the job)."""
        return self._answer

    @property
    def reason(self) -> BaseException | None:
        """Why it was not committed, if the committer gave a reason."""
        return self._reason

    def get_committable(self) -> Committable:
        """Return `committable`; Flink's name."""
        return self.committable

    def get_number_of_retries(self) -> int:
        """Return `number_of_retries`; Flink's name."""
        return self.number_of_retries

    def retry_later(self, reason: BaseException | None = None) -> None:
        """Request a retry with the same committable, at most `sink.committer.retries` times."""
        self._set_answer("retry", reason)

    def update_and_retry_later(self, committable: Committable, reason: BaseException | None = None) -> None:
        """Request a retry with a changed committable, for instance with the uncommitted rest.

        The change is not durable: after a recovery the committable of the checkpoint comes again.
        """
        self.committable = committable
        self._set_answer("retry", reason)

    def signal_already_committed(self) -> None:
        """Report that an earlier attempt has committed it; a success."""
        self._set_answer("already", None)

    def signal_failed_with_known_reason(self, reason: BaseException) -> None:
        """Give it up: it is logged and counted as failed, and the job goes on."""
        self._set_answer("known", reason)

    def signal_failed_with_unknown_reason(self, reason: BaseException) -> None:
        """Fail the job, which commits it again when it recovers."""
        self._set_answer("unknown", reason)

    def _set_answer(self, answer: str, reason: BaseException | None) -> None:
        self._answer = answer
        self._reason = reason


class Committer(ABC):
    """Makes staged output visible, in the driver, after the checkpoint that names it is complete.

    >>> class Moving(Committer):
    ...     def commit(self, requests):
    ...         for request in requests:
    ...             print("visible:", request.committable["file"])
    >>> Moving().commit([CommitRequest({"file": "a"}, epoch=4, subtask=0, checkpoint_id=2)])
    visible: a
    """

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commit the committables of one epoch of one incarnation; epochs come in order. May block.

        The first call of an epoch has all of them, and each further one those that are to be retried. A committer that
        wraps one of Holdfast's may hand these requests on in parts, except to `for_each_epoch`.

        Must always be idempotent: after a crash the same committables come again, perhaps long after they were
        committed, perhaps while a deposed leader commits them as well. A request that is to be retried delays the next
        epoch. A request without an answer counts as committed; an exception stands for
        `signal_failed_with_unknown_reason` of all requests.
        """

    def last_epoch(self, incarnation: str) -> int | None:
        """Return the highest epoch of an incarnation whose commit has begun in the target, None if that is unknown.

        It protects against a job directory that was restored from a copy, and then repeats epochs that were committed
        before.
        """
        return None

    def close(self) -> None:  # noqa: B027 - not every committer holds something
        """Release resources at the end of the job attempt."""


class Sink(ABC):
    """The end of a stream. It is pickled in the driver and used in tasks, so it has settings and no connections.

    See [sinks](../guide/sinks.md) for a complete example.
    """

    @abstractmethod
    def create_writer(self, context: WriterInitContext) -> SinkWriter | BatchSinkWriter:
        """Return a writer for one subtask and try of an epoch."""

    def check_input(self, element_type: TypeInformation) -> None:  # noqa: B027 - most sinks take everything
        """Check the type of the stream when the program connects it to the sink.

        Raises:
            ConfigurationError: The sink cannot write elements of this type.
        """

    def key_columns(self) -> Sequence[str]:
        """Return the columns by which rows replace each other, so that those of a key should come from one subtask.

        Returns:
            Their names; none if rows are only added.
        """
        return ()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Check, in the driver and before any task runs, that the target is the same as before. May block.

        Args:
            context: The same as for the committer.
            kept: The result of this method in the restored checkpoint, None without one.

        Returns:
            A JSON value that identifies the target: checkpoints keep it, and writers get it.

        Raises:
            StorageError: The target does not exist, or is another one; the job waits for it as its restart strategy
                allows.
        """
        return None

    def create_committer(self, context: CommitterInitContext) -> Committer | None:
        """Return the committer of a job attempt; None for a sink without commits (at least once, or print)."""
        return None

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Remove staged files of dead tries. May block.

        Args:
            context: The same as for the committer.
            is_dead: Whether a file name belongs to a try that can no longer be committed; remove only such files.

        Returns:
            The number of removed files.
        """
        return 0


# Why Parquet files are written without dictionaries. Measured for 100,000 rows (a string of ten characters and two
# longs) on one core, batches of 10,000 rows, fsync included, in milliseconds of CPU and megabytes; pyarrow's defaults
# are the first line, ours the second::
#
#     snappy, dictionary         13.7 ms   1.58 MB      (16.6 ms with a row group for each batch)
#     snappy, no dictionary       7.6 ms   1.51 MB
#     lz4, no dictionary          6.1 ms   1.62 MB
#     zstd, no dictionary         9.3 ms   1.01 MB
#     none, no dictionary         3.3 ms   3.00 MB
#
# Dictionaries of columns with many distinct values cost more than they save; `use_dictionary` names columns that gain.


class FormatWriter(Protocol):
    """Writes one file.

    Attributes:
        is_open: Whether `close` was not called yet.
    """

    is_open: bool

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Append rows."""

    def close(self) -> None:
        """End the file; the caller closes it."""


class FileFormat(Protocol):
    """A file format of sinks."""

    @property
    def keeps_columns(self) -> bool:
        """Whether files keep the columns that directories are named by."""

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """Return a writer of one file; the caller closes both."""


@dataclass(frozen=True)
class ParquetFormat:
    """The format of Parquet files.

    Attributes:
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are.

    Raises:
        ConfigurationError: The compression is unknown.
    """

    compression: str = "snappy"
    use_dictionary: bool | tuple[str, ...] = False

    def __post_init__(self) -> None:
        if self.compression not in ("snappy", "zstd", "lz4", "gzip", "none"):
            raise ConfigurationError(
                f"Parquet files are compressed with snappy, zstd, lz4, gzip or none, not {self.compression!r}."
            )

    @property
    def keeps_columns(self) -> bool:
        """False: readers take these columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        dictionary = self.use_dictionary if isinstance(self.use_dictionary, bool) else list(self.use_dictionary)
        writer: FormatWriter = pq.ParquetWriter(
            file, schema, compression=self.compression, use_dictionary=dictionary, write_page_checksum=True
        )
        return writer


class ParquetStaging(BatchSinkWriter):
    """Stages the batches of one subtask and epoch in one new file; without rows there is no file and no committable.

    The committable of a file in the job's directory has the checksum of its bytes, because a committer reads it.

    Args:
        directory: Directory of the file.
        name: Its unique name.
        committable: Identifies the staged output to the committer; rows and bytes are added to it.
        file_format: The format of the file.
        check: Called before the file is created; raises if the directory is not the right one.
        open_output: Creates the file for a committable, to which it may add; None creates one with that name.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        committable: dict[str, Any],
        file_format: FileFormat | None = None,
        check: Callable[[], None] | None = None,
        open_output: Callable[[dict[str, Any]], AbstractContextManager[BinaryIO]] | None = None,
    ) -> None:
        self._check = check
        self._path = join(directory, name)
        self._open_output = open_output or self._open
        self._sum = xxhash.xxh3_64() if open_output is None else None
        self._committable = committable
        self._format: FileFormat = file_format or ParquetFormat()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._output: AbstractContextManager[BinaryIO] | None = None
        self._file: BinaryIO | None = None
        self._writer: FormatWriter | None = None
        self._bytes: int | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take a batch; full row groups are written at once, so that memory stays bounded."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def flush(self, end_of_input: bool) -> None:
        """Write what is buffered, and make the file durable."""
        if self._waiting:
            self._write_row_group()
        if self._writer is None:
            return
        try:
            with fault.point("sink.stage"):
                self._writer.close()
                assert self._file is not None
                size = self._file.tell()
                self._leave(None, None, None)
        except BaseException:
            self._leave(*sys.exc_info())
            raise
        self._bytes = size

    @property
    def size(self) -> int:
        """Bytes in the file and in the buffer."""
        written = 0 if self._file is None else self._file.tell()
        return written + self._waiting_bytes

    def prepare_commit(self) -> list[Committable]:
        """Return one committable, or none if there were no rows."""
        if self._bytes is None:
            return []
        checksum = {} if self._sum is None else {CHECKSUM: self._sum.hexdigest()}
        return [{**self._committable, "rows": self._rows, "bytes": self._bytes, **checksum}]

    def abort(self) -> None:
        """Remove the file."""
        if self._output is not None:
            error = InterruptedError("the job attempt has failed")
            with suppress(Exception):  # the context manager reports the error that it was left with
                self._leave(InterruptedError, error, None)

    def _open(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        return file_system_for(self._path).open_output(self._path)

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            if self._check is not None:
                self._check()
            self._output = self._open_output(self._committable)
            file = self._output.__enter__()
            self._file = file if self._sum is None else cast("BinaryIO", _Summed(file, self._sum))
            self._writer = self._format.open_writer(self._file, table.schema)
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except BaseException:
            self._leave(*sys.exc_info())
            raise
        self._rows += table.num_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _leave(self, *exception: Any) -> None:
        """Leave the context of the file: it is durable then, or removed and the error translated."""
        output, writer = self._output, self._writer
        self._output = self._file = self._writer = None
        if output is None:
            return
        if writer is not None and writer.is_open:
            with suppress(Exception):  # the file is thrown away; its writer must not try again when it is collected
                writer.close()
            writer.is_open = False
        output.__exit__(*exception)


class _Summed:
    """A file that computes the checksum of what is written."""

    def __init__(self, file: BinaryIO, checksum: Any) -> None:
        self._file = file
        self._sum = checksum

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class StagingSink(Sink):
    """Stages the elements of an edge from one epoch job of an epoch to a later one.

    Its files are not committed and in no checkpoint: the driver passes their names to the later epoch job.
    """

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        name = context.file_name(".parquet")
        return ParquetStaging(context.staging_dir, name, {"file": name})


def read_staged(paths: Sequence[str]) -> pa.Table:
    """Return the rows of staged files, in the order of the paths."""
    tables = []
    for path in paths:
        with file_system_for(path).open_input(path) as file:
            tables.append(pq.read_table(file))
    return pa.concat_tables(tables)


def require_columns(sink: str, element_type: TypeInformation) -> None:
    """Reject a stream of pickled elements, whose one column only Python could read.

    Raises:
        ConfigurationError: The type of the stream is undeclared.
    """
    if is_pickled(element_type):
        raise ConfigurationError(
            f"{sink} writes columns, but the type of the stream's elements was not declared, so they are pickled: pass "
            "output_type to the operator before it, for instance output_type='key string, n bigint'."
        )


def require_parquet(sink: str, element_type: TypeInformation) -> None:
    """Reject a stream whose elements cannot be stored in Parquet files.

    Raises:
        ConfigurationError: The type of the stream is undeclared, or a column has a struct without fields.
    """
    require_columns(sink, element_type)
    require_full_structs(sink, element_type)


def require_full_structs(what: str, element_type: TypeInformation) -> None:
    """Reject structs without fields, which Parquet files cannot store.

    Raises:
        ConfigurationError: A column is, or contains, such a struct.
    """
    for column in element_schema(element_type):
        if _has_empty_struct(column.type):
            raise ConfigurationError(
                f"{what} writes Parquet files, which cannot store structs without fields, and the column "
                f"{column.name!r} is {column.type}: leave it out, or give the struct a field."
            )


def _has_empty_struct(kind: pa.DataType) -> bool:
    parts = [kind.field(position).type for position in range(kind.num_fields)]
    return any(map(_has_empty_struct, parts)) if parts else pa.types.is_struct(kind)


def is_pickled(element_type: TypeInformation) -> bool:
    return element_type == Types.PICKLED_BYTE_ARRAY()
