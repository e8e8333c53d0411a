"""Sinks: how output leaves a job exactly once.

Writers run in the tasks and only *stage*: what they write must be durable, and visible to nobody. Each hands back
committables, which become part of the epoch's checkpoint. After the commit point the driver hands them to the
committer, and again after a recovery, so a commit must be idempotent for ever::

    task    create_writer -> write | write_batch* -> flush -> prepare_commit -> close    (abort if the attempt fails)
                                                        |
    driver                     checkpoint complete  ->  Committer.commit([CommitRequest, ...])

A writer lives for one attempt at one epoch; an epoch that runs again has new writers with other file names. What a
failed attempt has staged is removed by `sweep`.
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
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

Committable = Any
"""A JSON value: it is stored in `_metadata`, and read again by whoever recovers the job."""

OWNER_DIGITS = 8
SEND_ERRORS = "numRecordsSendErrors"
"""The metric of elements that a sink could not write; Flink's name."""


class RefusedElementError(ValueError):
    """What a writer raises for elements that its target cannot take, before it has taken anything of them.

    The job fails with these words, or the elements go to the sink's dead letters. A writer of batches may raise it
    because of one row: then it is given parts of the batch, down to single rows. `OutputTypeError` does the same.
    """


def dead_letter_type(element_type: TypeInformation) -> TypeInformation:
    """Type of elements that a sink could not write, with its uid, the epoch, and why."""
    types = [element_type, Types.STRING(), Types.LONG(), Types.STRING()]
    return Types.ROW_NAMED(["row", "sink", "epoch", "reason"], types)


@dataclass(frozen=True)
class WriterInitContext:
    """What a writer is told: one subtask of one sink in one attempt of one epoch.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        epoch: The epoch, from 1.
        subtask: Number of the subtask, from 0.
        parallelism: Number of subtasks.
        attempt: The attempt of the epoch.
        token: The leader's fencing token.
        input_type: Type of the elements.
        staging_dir: A directory of the job that survives until the files in it are swept; URI or path.
        processing_time: The epoch's processing time, in milliseconds.
        watermark: The watermark at the end of the epoch before, in milliseconds.
        incarnation: The incarnation of the job, as in `CommitRequest`.
        target: What `Sink.prepare` has returned.
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

    @property
    def owner(self) -> str:
        """The sink in file names: eight hexadecimal digits derived from its uid."""
        return owner_of(self.uid)

    def file_name(self, suffix: str) -> str:
        """A new name that nobody else uses, which carries token, epoch and attempt so that a sweeper can judge it."""
        name = FileName(self.token, self.epoch, self.attempt, self.owner, self.subtask, new_nonce())
        return name.format(suffix)


@dataclass(frozen=True)
class CommitterInitContext:
    """What a committer, and a sweep, is told.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        uid: The sink.
        staging_dir: The same directory as that of the writers.
        services: What the engine offers by name, for instance `read_parquet(paths) -> DataFrame`.
        incarnations: Those that the job has had in its directory, the current one last.
        require_lead: Asks the register; raises FencedError if another process leads. For targets where who comes last
            shuts out who came before: it is asked before.
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
    """The part of a file name that names the operator."""
    return OperatorID.from_uid(uid).to_hex()[:OWNER_DIGITS]


class WriterContext(ABC):
    """What is known beside an element that is written."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds; None if the stream has none."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark in milliseconds."""


class _Writer:
    """The life of a writer, whichever way it is fed."""

    def flush(self, end_of_input: bool) -> None:
        """Makes everything written so far durable; the last call before `prepare_commit`.

        Args:
            end_of_input: Whether the job ends with this epoch, so that no later one can take what is still held back.
        """

    def prepare_commit(self) -> list[Committable]:
        """Returns what the committer needs to make the staged output visible; JSON values."""
        return []

    def close(self) -> None:
        """Releases resources after `prepare_commit`."""

    def abort(self) -> None:
        """The attempt has failed: releases resources and removes what was staged, if it can; may never be called."""


class SinkWriter(_Writer, ABC):
    """Stages the output of one subtask, element by element.

    A writer that also defines `write_batch(batch: pyarrow.RecordBatch)` is fed with whole batches instead; see
    `BatchSinkWriter`. One whose target is away raises `StorageError`, so that the job waits for it.
    """

    @abstractmethod
    def write(self, element: Any, context: WriterContext) -> None:
        """Stages one element.

        Raises:
            RefusedElementError: The target cannot take it.
        """


class BatchSinkWriter(_Writer, ABC):
    """Stages the output of one subtask in Arrow batches, without making Python objects of the rows."""

    @abstractmethod
    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Stages one batch: a column for each field of a row type, otherwise one column `value`.

        Raises:
            RefusedElementError: The target cannot take a row of it; nothing of the batch is staged.
        """


class CommitRequest:
    """One committable that is to be committed, and the committer's answer for it.

    A request without an answer counts as committed when `Committer.commit` returns.

    What tells one epoch from all others for ever is (incarnation, uid, epoch): a job that starts anew counts its epochs
    in a new incarnation. Within one, the epochs of a sink are committed strictly in their order, so a target that
    remembers the last epoch of each incarnation knows that one at most that is committed.

    Attributes:
        committable: What the writer handed out.
        incarnation: The incarnation of the job that wrote it: new with each job directory, each `--fresh` and each
            `-s`. When it is committed again by a job that was started from the checkpoint, it is still that of the
            writer.
        uid: The sink that wrote it.
        epoch: The epoch that wrote it.
        subtask: The subtask that wrote it.
        checkpoint_id: The completed checkpoint that names it.
        number_of_retries: How often the committer asked for a retry of it before.
        is_recovered: Whether it comes from a restored checkpoint, so that an earlier process may have committed it.
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
    ) -> None:
        self.committable = committable
        self.incarnation = incarnation
        self.uid = uid
        self.epoch = epoch
        self.subtask = subtask
        self.checkpoint_id = checkpoint_id
        self.number_of_retries = number_of_retries
        self.is_recovered = is_recovered
        self._answer = "committed"
        self._reason: BaseException | None = None

    @property
    def answer(self) -> str:
        """`committed`, `already`, `retry`, `known` (dropped) or `unknown` (fails the job)."""
        return self._answer

    @property
    def reason(self) -> BaseException | None:
        """Why it was not committed, if the committer said so."""
        return self._reason

    def get_committable(self) -> Committable:
        """The committable; Flink's name."""
        return self.committable

    def get_number_of_retries(self) -> int:
        """How often it was retried before; Flink's name."""
        return self.number_of_retries

    def retry_later(self, reason: BaseException | None = None) -> None:
        """Asks for another try of the same committable, up to `sink.committer.retries` times."""
        self._settle("retry", reason)

    def update_and_retry_later(self, committable: Committable, reason: BaseException | None = None) -> None:
        """Asks for another try with a changed committable, for instance with what is left of it.

        The change lives in this process only: after a recovery the committable of the checkpoint comes again.
        """
        self.committable = committable
        self._settle("retry", reason)

    def signal_already_committed(self) -> None:
        """Says that an earlier try has committed it: a success."""
        self._settle("already", None)

    def signal_failed_with_known_reason(self, reason: BaseException) -> None:
        """Gives it up on purpose: it is logged, counted as failed, and the job goes on."""
        self._settle("known", reason)

    def signal_failed_with_unknown_reason(self, reason: BaseException) -> None:
        """Fails the job, which commits it again when it recovers."""
        self._settle("unknown", reason)

    def _settle(self, answer: str, reason: BaseException | None) -> None:
        self._answer = answer
        self._reason = reason


class Committer(ABC):
    """Makes staged output visible, in the driver, after the checkpoint that names it is complete."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits the committables of one epoch of one incarnation; epochs come in their order.

        An epoch of which a request is to be tried again holds up the next one.

        It must be idempotent for ever: after a crash the same committables come again, perhaps long after they were
        committed, perhaps while a deposed leader commits them as well. A request for which nothing is said counts as
        committed; an exception stands for `signal_failed_with_unknown_reason` of all requests.
        """

    def last_epoch(self, incarnation: str) -> int | None:
        """The highest epoch of an incarnation of which the target says that its commit has begun, None if it cannot.

        A target that says so protects from a job directory that was put back from a copy, and then counts to epochs
        again that were committed before.
        """
        return None

    def close(self) -> None:  # noqa: B027 - not every committer holds something
        """Releases resources at the end of the job attempt."""


class Sink(ABC):
    """Where a stream ends. It is pickled in the driver and used in tasks, so it holds settings and no connections."""

    @abstractmethod
    def create_writer(self, context: WriterInitContext) -> SinkWriter | BatchSinkWriter:
        """A writer for one subtask, epoch and attempt."""

    def check_input(self, element_type: TypeInformation) -> None:  # noqa: B027 - most sinks take everything
        """Looks at the type of the stream when the program connects the two.

        Raises:
            ConfigurationError: The sink cannot write elements of this type.
        """

    def key_columns(self) -> Sequence[str]:
        """The columns by which its rows replace each other, so that those of a key should come from one subtask.

        Returns:
            Their names; none if rows are only added.
        """
        return ()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure, in the driver and before any task runs, that the target is the one it was.

        Args:
            context: The same as for the committer.
            kept: What this method returned when the restored checkpoint was written, None without one.

        Returns:
            What identifies the target, a JSON value: checkpoints keep it, and writers get it.

        Raises:
            StorageError: The target is not there, or is another one; the job waits for it as its restarts allow.
        """
        return None

    def create_committer(self, context: CommitterInitContext) -> Committer | None:
        """The committer of a job attempt; None for a sink with nothing to commit (at least once, or only for show)."""
        return None

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Removes staged files of dead attempts and returns how many.

        Args:
            context: The same as for the committer.
            is_dead: Whether a name belongs to an attempt that can no longer be committed; only such files may go.
        """
        return 0


# A writer that stages Arrow batches in one file, mostly of Parquet: what sinks and edges of epoch jobs write in tasks.
#
# Measured for 100,000 rows (a string of ten characters and two longs) on one core, batches of 10,000 rows, fsync
# included, in milliseconds of CPU and megabytes; pyarrow's defaults are the first line, ours the second::
#
#     snappy, dictionary         13.7 ms   1.58 MB      (16.6 ms with a row group for each batch)
#     snappy, no dictionary       7.6 ms   1.51 MB
#     lz4, no dictionary          6.1 ms   1.62 MB
#     zstd, no dictionary         9.3 ms   1.01 MB
#     none, no dictionary         3.3 ms   3.00 MB
#
# Dictionaries of columns with many distinct values cost more than they save; `use_dictionary` names the columns that
# gain.

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20

CHECKSUM: Final = "checksum"
"""In a committable: XXH3-64 of all bytes of the file that it names, hexadecimal. Older versions wrote none."""


class FormatWriter(Protocol):
    """Writes one file.

    Attributes:
        is_open: Whether `close` has yet to be called.
    """

    is_open: bool

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Writes rows behind those that are there."""

    def close(self) -> None:
        """Ends the file, which the caller closes."""


class FileFormat(Protocol):
    """How files are written."""

    @property
    def keeps_columns(self) -> bool:
        """Whether files have the columns by which directories are named."""

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file; the caller closes both."""


@dataclass(frozen=True)
class ParquetFormat:
    """How Parquet files are written.

    Attributes:
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are.
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
        """Readers take the columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file; the caller closes both."""
        dictionary = self.use_dictionary if isinstance(self.use_dictionary, bool) else list(self.use_dictionary)
        writer: FormatWriter = pq.ParquetWriter(
            file, schema, compression=self.compression, use_dictionary=dictionary, write_page_checksum=True
        )
        return writer


class ParquetStaging(BatchSinkWriter):
    """Stages the batches of one subtask and epoch in one new file; without rows there is no file and no committable.

    A file in the job's directory will be read by a committer, so the committable has the checksum of its bytes.

    Args:
        directory: Where the file is staged.
        name: Its name there, which nobody else uses.
        committable: What identifies the staged output to the committer; rows and bytes are added to it.
        file_format: How the file is written.
        check: Called before the file is made; raises if the directory is not the right one.
        open_output: Makes the file, given the committable, which it may add to; by default one with that name.
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
        """Takes a batch; whole row groups are written as they fill, so that memory stays bounded."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def flush(self, end_of_input: bool) -> None:
        """Writes what waits and makes the file durable."""
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
        """Bytes in the file, and of what waits to be written into it."""
        written = 0 if self._file is None else self._file.tell()
        return written + self._waiting_bytes

    def prepare_commit(self) -> list[Committable]:
        """What was staged: one committable, or none if there were no rows."""
        if self._bytes is None:
            return []
        checksum = {} if self._sum is None else {CHECKSUM: self._sum.hexdigest()}
        return [{**self._committable, "rows": self._rows, "bytes": self._bytes, **checksum}]

    def abort(self) -> None:
        """Removes the file as far as it was written."""
        if self._output is not None:
            error = InterruptedError("the attempt has failed")
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
        """Leaves the file's context: the file is durable then, or removed and the error translated."""
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
    """A file whose bytes are summed up as they are written."""

    def __init__(self, file: BinaryIO, checksum: Any) -> None:
        self._file = file
        self._sum = checksum

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class StagingSink(Sink):
    """Stages the elements of an edge that leads from one epoch job of an epoch to a later one.

    Nothing of it is committed, and no checkpoint names its files: the driver hands their names to the later epoch job.
    """

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(".parquet")
        return ParquetStaging(context.staging_dir, name, {"file": name})


def read_staged(paths: Sequence[str]) -> pa.Table:
    """The rows of staged files, in the order of the paths."""
    tables = []
    for path in paths:
        with file_system_for(path).open_input(path) as file:
            tables.append(pq.read_table(file))
    return pa.concat_tables(tables)


def require_columns(sink: str, element_type: TypeInformation) -> None:
    """Refuses a stream whose elements are pickled: nobody but Python could read its one column.

    Raises:
        ConfigurationError: The stream's type is undeclared.
    """
    if is_pickled(element_type):
        raise ConfigurationError(
            f"{sink} writes columns, but the type of the stream's elements was not declared, so they are pickled: pass "
            "output_type to the operator before it, for instance output_type='key string, n bigint'."
        )


def require_parquet(sink: str, element_type: TypeInformation) -> None:
    """Refuses a stream whose elements no Parquet file has.

    Raises:
        ConfigurationError: The stream's type is undeclared, or a column is, or has in it, a struct without fields.
    """
    require_columns(sink, element_type)
    require_full_structs(sink, element_type)


def require_full_structs(what: str, element_type: TypeInformation) -> None:
    """Refuses a stream that has structs without fields, where Parquet files are to hold it.

    Raises:
        ConfigurationError: A column of the stream is, or has in it, such a struct.
    """
    for column in element_schema(element_type):
        if _has_empty_struct(column.type):
            raise ConfigurationError(
                f"{what} writes Parquet files, which have no structs without fields, and the column {column.name!r} is "
                f"{column.type}: leave it out, or give the struct a field."
            )


def _has_empty_struct(kind: pa.DataType) -> bool:
    parts = [kind.field(position).type for position in range(kind.num_fields)]
    return any(map(_has_empty_struct, parts)) if parts else pa.types.is_struct(kind)


def is_pickled(element_type: TypeInformation) -> bool:
    """Whether elements of this type are pickled because their type is not known."""
    return element_type == Types.PICKLED_BYTE_ARRAY()
