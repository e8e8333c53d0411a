"""`FileOutputSink` and `ParquetFileSink`: write files into a directory, exactly once.

A task writes into a hidden folder of the output directory, which readers skip (Spark, pyarrow, DuckDB, Polars). After
the commit point the driver renames each file, within the file system, to its final name::

    <path>/.holdfast/<incarnation>-<sink>/<token>-<epoch>-...staged -> <path>/<bucket>/part-<epoch>-<subtask>-<nonce>

Readers never see a row of an epoch whose checkpoint is not complete. The files of one epoch appear one after the other,
so a reader may see some of them while they are being committed.

Commits can be repeated for ever, even when a consumer has taken a file since: a ledger beside the output records what
was committed (`output_directory`), and a missing file proves nothing.
"""

from __future__ import annotations

import datetime
import os
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from holdfast.datastream.sinks.output_directory import (
    HIDDEN_FOLDER,
    CommitLedger,
    OutputDirectory,
    StagedFile,
    output_directory,
)
from holdfast.datastream.sinks.staged_files import foreign_committables_error
from holdfast.errors import AlreadyExistError, ConfigurationError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    CommitRequest,
    Committable,
    Committer,
    CommitterInitContext,
    FileFormat,
    ParquetFormat,
    ParquetStaging,
    RefusedElementError,
    Sink,
    WriterInitContext,
    require_parquet,
)
from holdfast.storage.file_system import (
    FileSystem,
    absolute,
    base_name,
    is_absolute,
    is_in_directory,
    join,
    local_path,
    parent,
)
from holdfast.storage.job_directory import FileName
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation

logger = get_logger(__name__)

_POSITIONS: Final = "__positions"

Values = tuple[Any, ...]
"""The values of the partition columns of a row."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
LONGEST: Final = 255
"""Bytes that file systems allow in a name."""
_LETTERS: Final = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "DDD": "%j"}
_ESCAPED: Final = re.compile("[^A-Za-z0-9 _.,+@~\x80-\U0010ffff-]")
"""Characters that are percent-encoded in a directory's name. No others: Spark decodes each number to one character."""
_TOKEN: Final = re.compile(r"'[^']*'|([A-Za-z])\1*|[^A-Za-z']")
WriterFactory = Callable[[str], BatchSinkWriter]
"""Creates the writer of a bucket from its directory."""
STAGED_SUFFIX: Final = ".staged"
_LONGEST_PATH: Final = 4096


class PartitionedStaging(BatchSinkWriter):
    """Writes each row with the writer of its partition.

    Args:
        columns: The partition columns; none for a single partition.
        create: Creates the writer of a partition from its values.
    """

    def __init__(self, columns: Sequence[str], create: Callable[[Values], BatchSinkWriter]) -> None:
        self._columns = list(columns)
        self._create = create
        self._writers: dict[Values, BatchSinkWriter] = {}

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch; rows of one partition keep their order."""
        if not batch.num_rows:
            return
        parts = list(self._split(batch))
        for values, _ in parts:  # before anything is written, because a partition may be rejected
            if values not in self._writers:
                self._writers[values] = self._create(values)
        for values, part in parts:
            self._writers[values].write_batch(part)

    def flush(self, end_of_input: bool) -> None:
        for writer in self._writers.values():
            writer.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        return [committable for writer in self._writers.values() for committable in writer.prepare_commit()]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()

    def partitions(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the partition values of each row."""
        return pa.Table.from_batches([batch]).select(self._columns)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not self._columns:
            yield (), batch
            return
        table = self.partitions(batch)
        positions = pa.array(range(batch.num_rows), pa.int64())
        groups = table.append_column(_POSITIONS, positions).group_by(self._columns, use_threads=False)
        for row in groups.aggregate([(_POSITIONS, "list")]).to_pylist():
            taken = row[f"{_POSITIONS}_list"]
            part = batch if len(taken) == batch.num_rows else batch.take(pa.array(taken, pa.int64()))
            yield tuple(row[name] for name in self._columns), part


class Buckets(ABC):
    """Assigns rows to directories below the path of a sink."""

    @abstractmethod
    def writer(self, processing_time: int, keeps_columns: bool, create: WriterFactory) -> BatchSinkWriter:
        """Return a writer that writes each row with the writer of its bucket.

        Args:
            processing_time: The processing time at the beginning of the epoch, in milliseconds.
            keeps_columns: Whether files contain the columns that directories are named by.
            create: Creates the writer of a bucket.
        """

    def check_schema(self, sink: str, schema: pa.Schema) -> None:  # noqa: B027 - most buckets take every row
        """Check that rows of a schema can be assigned.

        Raises:
            ConfigurationError: They cannot.
        """


@dataclass(frozen=True)
class _BasePath(Buckets):
    def writer(self, processing_time: int, keeps_columns: bool, create: WriterFactory) -> BatchSinkWriter:
        return create("")


BASE_PATH: Final = _BasePath()
"""All files are in one directory."""


@dataclass(frozen=True)
class TimeBuckets(Buckets):
    """A directory for each hour, day or another unit, by processing time.

    Attributes:
        pattern: A pattern of Java's `DateTimeFormatter` with the letters `yyyy`, `yy`, `MM`, `dd`, `DDD`, `HH`, `mm`
            and `ss`, text in single quotes, and other characters.
        timezone: The name of a time zone.

    Raises:
        ConfigurationError: The pattern has other letters, or the time zone is unknown.
    """

    pattern: str = "yyyy-MM-dd--HH"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        self.directory(0)

    def writer(self, processing_time: int, keeps_columns: bool, create: WriterFactory) -> BatchSinkWriter:
        return _TimeWriter(self, processing_time, create)

    def directory(self, milliseconds: int) -> str:
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigurationError(f"There is no time zone {self.timezone!r} on this machine: {error}") from error
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, zone)
        found = "".join(self._part(match[0], moment) for match in _TOKEN.finditer(self.pattern))
        parts = found.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or parts[0][0] in "._":
            raise ConfigurationError(
                f"The bucket pattern {self.pattern!r} gives {found!r}, which cannot be a directory."
            )
        return found

    def _part(self, token: str, moment: datetime.datetime) -> str:
        if token in _LETTERS:
            return moment.strftime(_LETTERS[token])
        if token[0].isascii() and token[0].isalpha():
            raise ConfigurationError(
                f"The pattern {self.pattern!r} of a bucket has {token!r}; it can have {', '.join(_LETTERS)}, and text "
                "in single quotes."
            )
        return token.strip("'") if len(token) > 1 else token


class _TimeWriter(PartitionedStaging):
    def __init__(self, buckets: TimeBuckets, processing_time: int, create: WriterFactory) -> None:
        super().__init__((), lambda values: create(values[0]))
        self._buckets, self._now = buckets, processing_time

    def set_processing_time(self, now: int) -> None:
        self._now = now

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        yield (self._buckets.directory(self._now),), batch


@dataclass(frozen=True)
class ColumnBuckets(Buckets):
    """A directory for each combination of values, such as `day=2026-11-24/word=kelp`.

    Attributes:
        columns: The columns, the outermost first.
    """

    columns: tuple[str, ...]

    def writer(self, processing_time: int, keeps_columns: bool, create: WriterFactory) -> BatchSinkWriter:
        return _ColumnWriter(self.columns, keeps_columns, create)

    def check_schema(self, sink: str, schema: pa.Schema) -> None:
        for name in self.columns:
            kind = schema.field(name).type if name in schema.names else None
            if kind is None or pa.types.is_nested(kind) or pa.types.is_binary(kind):
                what = "no column of the stream" if kind is None else str(kind)
                raise ConfigurationError(
                    f"{sink} is partitioned by {name!r}, which is {what}: use columns of simple types out of "
                    f"{schema.names!r}."
                )
        if set(schema.names) <= set(self.columns):
            raise ConfigurationError(
                f"{sink} is partitioned by all columns of the stream, so no column is left for its files."
            )


class _ColumnWriter(PartitionedStaging):
    def __init__(self, columns: Sequence[str], keeps_columns: bool, create: WriterFactory) -> None:
        def create_in_directory(values: Values) -> BatchSinkWriter:
            writer = create(_directory(columns, values))
            return writer if keeps_columns else _ColumnDroppingWriter(writer, columns)

        super().__init__(columns, create_in_directory)


class _ColumnDroppingWriter(BatchSinkWriter):
    def __init__(self, writer: BatchSinkWriter, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._writer = writer
        self.flush, self.prepare_commit = writer.flush, writer.prepare_commit  # type: ignore[method-assign]
        self.close, self.abort = writer.close, writer.abort  # type: ignore[method-assign]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch.drop_columns(self._columns))


def _directory(columns: Sequence[str], values: Values) -> str:
    """Return the directory of a combination of values.

    Raises:
        RefusedElementError: Its name is too long. A commit that fails for it would be retried for ever.
    """
    names = [f"{_text(name)}={_text(value)}" for name, value in zip(columns, values, strict=True)]
    for name, column in zip(names, columns, strict=True):
        if (size := len(name.encode())) > LONGEST:
            raise RefusedElementError(
                f"the directory for a value of {column!r}, {name!r:.60}..., would have a name of {size} bytes; file "
                f"systems allow {LONGEST}"
            )
    return "/".join(names)


def _text(value: Any) -> str:
    if value is None or value == "":
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", str(value))


class RollingStaging(BatchSinkWriter):
    """Writes the rows of one subtask, epoch and bucket; begins a new file when the current one is large enough.

    Args:
        create: Creates the writer of a new file.
        part_size: Bytes after which a new file begins; 0 for one file. Rows that are not yet written count
            uncompressed.
    """

    def __init__(self, create: Callable[[], ParquetStaging], part_size: int) -> None:
        self._create = create
        self._part_size = part_size
        self._files: list[ParquetStaging] = []
        self._current: ParquetStaging | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a batch into one file."""
        if self._current is None:
            self._current = self._create()
            self._files.append(self._current)
        self._current.write_batch(batch)
        if self._part_size and self._current.size >= self._part_size:
            self._current.flush(False)
            self._current = None

    def flush(self, end_of_input: bool) -> None:
        if self._current is not None:
            self._current.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        return [committable for file in self._files for committable in file.prepare_commit()]

    def abort(self) -> None:
        """Delete the unfinished file; a sweep deletes the others."""
        if self._current is not None:
            self._current.abort()


@dataclass(frozen=True)
class FileNames:
    """The names of files: `<prefix>-<epoch>-<subtask>-<nonce><suffix>`."""

    prefix: str = "part"
    suffix: str = ""

    def __post_init__(self) -> None:
        if "/" in self.prefix + self.suffix or "\0" in self.prefix + self.suffix or self.prefix[:1] in ("", ".", "_"):
            raise ConfigurationError(
                f"The prefix {self.prefix!r} or the suffix {self.suffix!r} cannot be used: names of files contain no "
                "'/', and readers skip those that begin with '.' or '_'."
            )


class FileOutputSink(Sink):
    """Writes a stream into a directory of files, exactly once; the base of `ParquetFileSink` and `FileSink`.

    Args:
        path: The directory, or `s3://bucket/directory`; it is created if it is missing. A relative path
            is resolved in the driver's working directory.
        file_format: The format of the files.
        names: The names of the files.
        buckets: The directories of the files below the path.
        part_size: Bytes after which a task begins a new file; 0 for no limit. Every file ends with its epoch.

    Raises:
        ConfigurationError: There is no file system for the path.
    """

    NAME_IN_UIDS: ClassVar = "OutputFiles"

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_format: FileFormat,
        names: FileNames,
        buckets: Buckets = BASE_PATH,
        part_size: int = 0,
    ) -> None:
        self.path = absolute(os.fspath(path))
        file_system_for(self.path)
        if type(part_size) is not int or part_size < 0:
            raise ConfigurationError(f"part_size must be a number of bytes, or 0 for no limit, not {part_size!r}.")
        self.format = file_format
        self.names = names
        self.buckets = buckets
        self.part_size = part_size

    def check_input(self, element_type: TypeInformation) -> None:
        self.buckets.check_schema(repr(self), element_schema(element_type))

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Check that the directory is the same as before; give a new one an identity. Blocks.

        Raises:
            StorageError: It is another directory, or missing.
            ConfigurationError: A sink of another kind has written the checkpoint.
        """
        directory = output_directory(self.path)
        if kept is not None and not (type(kept) is dict and {"path", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which directory {self!r} wrote into, but {reprlib.repr(kept)}. Start "
                "from another one (-s PATH)."
            )
        if kept is None or kept["path"] != self.path:
            made = {"path": self.path, "identity": directory.ensure_identity()}
            self._warn_of_unknown_output(context)
            return made
        directory.require_identity(kept["identity"])
        return kept

    def _warn_of_unknown_output(self, context: CommitterInitContext) -> None:
        """Warn if the directory has output that no checkpoint of the job names: the checkpoints may be lost."""
        own = {staging_folder(name, context.owner) for name in (context.job_id, *context.incarnations)}
        names = file_system_for(self.path).list_names(join(self.path, HIDDEN_FOLDER))
        others = {join(HIDDEN_FOLDER, name) for name in names if name.endswith(f"-{context.owner}")} - own
        if any(CommitLedger(output_directory(self.path), folder).last_epoch() is not None for folder in others):
            logger.warning(
                "%r has output that a sink %r of this or another job has committed, but no checkpoint of this job "
                "names it. If it is this job's own output, rows will be duplicated: check that the checkpoint "
                "directory is mounted, and that the program uses the right one",
                self.path,
                context.uid,
            )

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        return self.buckets.writer(
            context.processing_time,
            self.format.keeps_columns,
            partial(self._bucket_writer, context),
        )

    def _bucket_writer(self, context: WriterInitContext, bucket: str) -> BatchSinkWriter:
        output_directory(self.path).check_final_name(self._final_name(context, bucket, new_nonce()))
        return RollingStaging(partial(self._stage, context, bucket), self.part_size)

    def _final_name(self, context: WriterInitContext, bucket: str, nonce: str) -> str:
        name = f"{self.names.prefix}-{context.epoch:09d}-{context.subtask:05d}-{nonce}{self.names.suffix}"
        return f"{bucket}/{name}" if bucket else name

    def _stage(self, context: WriterInitContext, bucket: str) -> ParquetStaging:
        staged = context.file_name(STAGED_SUFFIX)
        name = FileName.parse(staged)
        assert name is not None
        folder = staging_folder(context.incarnation or context.job_id, context.owner)
        committable = {
            "directory": self.path,
            "staged": join(folder, staged),
            "final": self._final_name(context, bucket, name.nonce),
        }
        check, output = None, output_directory(self.path)
        if context.target is not None:
            identity = committable["identity"] = context.target["identity"]
            check = partial(output.require_identity, identity)
        return ParquetStaging(join(self.path, folder), staged, committable, self.format, check, output.open_staged)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _FileCommitter(self.path, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        swept = 0
        output = output_directory(self.path)
        for name in (context.job_id, *context.incarnations):
            folder = staging_folder(name, context.owner)
            for listed in file_system_for(self.path).list_names(join(self.path, folder)):
                found = FileName.parse(listed)
                if found is not None and is_dead(found):
                    swept += output.discard(folder, listed)
        return swept

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


class _FileCommitter(Committer):
    def __init__(self, path: str, context: CommitterInitContext) -> None:
        self._path = path
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        # The directory is that of the writer; the sink may write to another one today.
        groups: dict[tuple[str, str, bool], list[CommitRequest]] = {}
        for request in requests:
            _check_committable(request.committable)
            groups.setdefault(_place(request.committable), []).append(request)
        for (directory, _, has_ledger), listed in groups.items():
            if has_ledger:
                _commit_epoch(output_directory(directory), listed)
            else:
                _commit_without_ledger(file_system_for(directory), listed)

    def last_epoch(self, incarnation: str) -> int | None:
        folder = staging_folder(incarnation, self._context.owner)
        return CommitLedger(output_directory(self._path), folder).last_epoch() if incarnation else None


def _place(committable: dict[str, Any]) -> tuple[str, str, bool]:
    """Return the directory of a committable, its folder there, and whether that has a ledger."""
    return committable["directory"], parent(committable["staged"]), "identity" in committable


def _check_committable(committable: Any) -> None:
    """Check that a committable renames a staged file within its directory, and nothing else.

    Raises:
        ConfigurationError: It does not, so a sink of another kind has made it.
    """
    try:
        directory, staged, final = (committable[name] for name in ("directory", "staged", "final"))
        hidden, buckets = staged.split("/")[0], final.split("/")
        is_inside = hidden == HIDDEN_FOLDER != buckets[0] and is_in_directory(staged) and is_in_directory(final)
        texts = [committable.get("identity", ""), committable.get("upload", "")]
        for text in (directory, staged, final, *texts):
            if len(os.fsencode(text)) > _LONGEST_PATH:
                raise ValueError("a path is too long")
        is_whole = local_path(directory) is not None or all(texts)  # output in a store had both from the beginning
        if not (is_inside and is_absolute(directory) and is_whole and all(type(text) is str for text in texts)):
            raise ValueError("a path is outside of the directory")
    except PARSE_ERRORS as error:
        raise foreign_committables_error("sink of files", committable, error) from error


def _commit_epoch(directory: OutputDirectory, requests: Sequence[CommitRequest]) -> None:
    """Commits the files of one epoch of one incarnation, which may be a part of its files.

    Raises:
        StorageError: The directory is missing, or was missing for a moment.
        ConfigurationError: A staged file is missing, and no intent says that its commit has begun; or the ledger says
            that files of the epoch are committed, and they are not.
    """
    epoch, identity = requests[0].epoch, requests[0].committable["identity"]
    directory.require_identity(identity)
    files = [_staged_file(request.committable) for request in requests]
    whole = _files_of_epoch(requests)
    ledger = CommitLedger(directory, parent(files[0].staged))
    last = ledger.last_epoch()
    if last is not None and last > epoch:
        _require_moved(directory, files, epoch, last)
        return _signal_already(requests)
    named = ledger.named(epoch, whole) if last == epoch else set()
    new = [file for file in whole if file not in named]
    if named and not new and ledger.is_done(epoch):
        return _signal_already(requests)
    if new:
        missing = set(directory.missing(new))
        if missing:
            directory.require_identity(identity)  # the mount may have vanished since
        for request, file in zip(requests, files, strict=True):
            if file.staged in missing and file not in named:
                raise _missing_file(request.committable, join(directory.path, file.staged))
        ledger.begin(epoch, [file for file in new if file.staged not in missing], whole)
    directory.move(files)
    directory.check_moved(identity, files)
    others = [file for file in whole if file not in files]
    if len(directory.missing(others)) == len(others):
        ledger.finish(epoch)
    return None


def _signal_already(requests: Sequence[CommitRequest]) -> None:
    for request in requests:
        request.signal_already_committed()


def _staged_file(committable: dict[str, Any]) -> StagedFile:
    return StagedFile(*(str(committable.get(name, "")) for name in StagedFile._fields))


def _files_of_epoch(requests: Sequence[CommitRequest]) -> list[StagedFile]:
    """Return the files of these requests, and the others of their epoch in the same ledger."""
    place = _place(requests[0].committable)
    files = [_staged_file(request.committable) for request in requests]
    for committable in requests[0].epoch_committables:
        with suppress(ConfigurationError):  # of a committer that wraps the one of this sink, and makes requests anew
            _check_committable(committable)
            if _place(committable) == place:
                files.append(_staged_file(committable))
    return list(dict.fromkeys(files))


def _require_moved(directory: OutputDirectory, files: Sequence[StagedFile], epoch: int, last: int) -> None:
    """Check that files of an epoch are not staged any more, because a later one has begun.

    Raises:
        ConfigurationError: Some are.
    """
    missing = set(directory.missing(files))
    left = [file for file in files if file.staged not in missing]
    if left:
        raise ConfigurationError(
            f"The ledger of {directory.path!r} has epoch {last}, so epoch {epoch} must be committed, but {len(left)} "
            f"of its files are still staged, the first one as {left[0].staged!r}: two copies of one job directory are "
            "running, or a committer has left them out. Nothing was committed now. If their rows are missing in the "
            f"output, rename each (this one to {left[0].final!r}), otherwise delete them; then start the job again."
        )


def _commit_without_ledger(fs: FileSystem, requests: Sequence[CommitRequest]) -> None:
    """Commit what a version of Holdfast without ledgers has staged, where a missing file counts as committed.

    Raises:
        ConfigurationError: A file is missing, and no earlier process can have committed it.
    """
    moves = [_names(request.committable) for request in requests]
    for request, (staged, final), outcome in zip(requests, moves, fs.rename_all(moves), strict=True):
        if outcome is None:
            continue
        request.signal_already_committed()
        if isinstance(outcome, AlreadyExistError):
            # An earlier try linked the final name, and died before it deleted the staged one.
            fs.delete_in(parent(staged), base_name(staged))
        elif not fs.exists(final):
            if not request.is_recovered and not request.number_of_retries:
                raise _missing_file(request.committable, staged) from outcome
            logger.warning(
                "neither %r, staged with %s rows in epoch %d, nor %r exists: it was committed, and removed since",
                staged, request.committable.get("rows", "its"), request.epoch, final,
            )  # fmt: skip


def _names(committable: dict[str, Any]) -> tuple[str, str]:
    directory = committable["directory"]
    return join(directory, committable["staged"]), join(directory, committable["final"])


def _missing_file(committable: dict[str, Any], staged: str) -> ConfigurationError:
    return ConfigurationError(
        f"A task has staged {committable.get('rows', 'its')} rows in {staged!r}, but the driver does not find this "
        "file, and no record says that it was committed: the directory is not shared between the hosts, or the file "
        "was deleted. Nothing of its epoch was committed. Mount the directory under the same path on all hosts, and "
        "restore the file; then start the job again."
    )


def staging_folder(name: str, owner: str) -> str:
    """Return the staging folder of one sink in one incarnation, relative to the output directory."""
    return join(HIDDEN_FOLDER, f"{name}-{owner}")


class ParquetFileSink(FileOutputSink):
    """Writes a stream into a directory of Parquet files, exactly once.

    Args:
        path: The directory, or `s3://bucket/directory`; it is created if it is missing. A relative path
            is resolved in the driver's working directory.
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether to dictionary-encode all columns, or the names of those to encode. Off by default,
            because it costs time and helps only for columns with few distinct values.
        partition_by: The partition columns. Files are in directories such as `day=2026-11-24/word=kelp`, as Spark,
            DuckDB and Polars read them, and do not contain these columns.
        part_size: Bytes after which a task begins a new file; 0 for no limit. Every file ends with its epoch.

    Raises:
        ConfigurationError: There is no file system for the path, or the compression is unknown.

    Example:
        >>> import tempfile
        >>> import pyarrow.parquet as pq
        >>> from holdfast.datastream import ParquetFileSink
        >>> from holdfast.testing import EpochProgram
        >>> place, program = tempfile.mkdtemp(), EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> result = words.sink_to(ParquetFileSink(f"{place}/out", partition_by="word")).uid("files")
        >>> job = program.run(f"{place}/job", [{"words": [("kelp", 1), ("rock", 2)]}])
        >>> pq.read_table(f"{place}/out").sort_by("n").to_pylist()
        [{'n': 1, 'word': 'kelp'}, {'n': 2, 'word': 'rock'}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str = "snappy",
        use_dictionary: bool | Sequence[str] = False,
        partition_by: str | Sequence[str] = (),
        part_size: int = 0,
    ) -> None:
        dictionary = use_dictionary if isinstance(use_dictionary, bool) else tuple(use_dictionary)
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        buckets = ColumnBuckets(columns) if columns else BASE_PATH
        file_format = ParquetFormat(compression, dictionary)
        super().__init__(path, file_format, FileNames(suffix=".parquet"), buckets, part_size)

    def check_input(self, element_type: TypeInformation) -> None:
        """Check that the stream has a declared type, and the partition columns.

        Raises:
            ConfigurationError: It has not.
        """
        require_parquet("ParquetFileSink", element_type)
        super().check_input(element_type)
