"""Files in a directory, exactly once.

A task writes into a hidden folder of the output directory, under a name that no reader follows (Spark, pyarrow, DuckDB,
Polars); after the commit point the driver moves each file, within the file system, to its final name::

    <path>/.holdfast/<incarnation>-<sink>/<token>-<epoch>-...staged -> <path>/<bucket>/part-<epoch>-<subtask>-<nonce>

No reader ever sees a row of an epoch whose checkpoint is not complete. The files of one epoch appear one after the
other, so a reader may see a part of them while they are being committed.

Commits may be repeated for ever, also when a consumer has taken a file since: what was committed is told by a ledger
beside the output (`output_directory`), and never by a file that is not there.
"""

from __future__ import annotations

import datetime
import os
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final
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

# Staging by partition: the rows of one subtask and epoch in a file for each combination of values of some columns.

_POSITIONS: Final = "__positions"

Values = tuple[Any, ...]
"""Of the partition columns of a row, in their order."""


class PartitionedStaging(BatchSinkWriter):
    """Hands each row to the writer of its partition, and hands out what all of them hand out.

    Args:
        columns: The columns by which rows are divided; none for a single partition.
        make: Makes the writer of a partition, whose values it is given.
    """

    def __init__(self, columns: Sequence[str], make: Callable[[Values], BatchSinkWriter]) -> None:
        self._columns = list(columns)
        self._make = make
        self._writers: dict[Values, BatchSinkWriter] = {}

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Divides a batch; rows of one partition keep their order."""
        if not batch.num_rows:
            return
        parts = list(self._divided(batch))
        for values, _ in parts:  # before anything is written: a partition may be refused
            if values not in self._writers:
                self._writers[values] = self._make(values)
        for values, part in parts:
            self._writers[values].write_batch(part)

    def flush(self, end_of_input: bool) -> None:
        """Makes all files durable."""
        for writer in self._writers.values():
            writer.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """What was staged, a committable for each file."""
        return [committable for writer in self._writers.values() for committable in writer.prepare_commit()]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def abort(self) -> None:
        """Removes the files as far as they were written."""
        for writer in self._writers.values():
            writer.abort()

    def partitions(self, batch: pa.RecordBatch) -> pa.Table:
        """The values by which the rows of a batch are divided."""
        return pa.Table.from_batches([batch]).select(self._columns)

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
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


# In which directories below the path of a sink its files are.

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
LONGEST: Final = 255
"""Bytes that file systems take as a name."""
_LETTERS: Final = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "DDD": "%j"}
_ESCAPED: Final = re.compile("[^A-Za-z0-9 _.,+@~\x80-\U0010ffff-]")
"""Characters that stand in a directory's name as their numbers. No others: Spark reads a number as one character."""
_TOKEN: Final = re.compile(r"'[^']*'|([A-Za-z])\1*|[^A-Za-z']")

Make = Callable[[str], BatchSinkWriter]
"""Makes the writer of a bucket, whose directory it is given."""


class Buckets(ABC):
    """Divides the rows of a task among directories."""

    @abstractmethod
    def writer(self, processing_time: int, keeps_columns: bool, make: Make) -> BatchSinkWriter:
        """A writer that gives each row to that of its bucket.

        Args:
            processing_time: Of the epoch, in milliseconds.
            keeps_columns: Whether files have the columns that the names of directories have.
            make: Makes the writer of a bucket.
        """

    def check_schema(self, sink: str, schema: pa.Schema) -> None:  # noqa: B027 - most buckets take every row
        """Looks whether rows of a schema can be divided.

        Raises:
            ConfigurationError: They cannot.
        """


@dataclass(frozen=True)
class _BasePath(Buckets):
    """All files are in one directory."""

    def writer(self, processing_time: int, keeps_columns: bool, make: Make) -> BatchSinkWriter:
        return make("")


BASE_PATH: Final = _BasePath()
"""All files are in one directory."""


@dataclass(frozen=True)
class TimeBuckets(Buckets):
    """A directory for each hour, day or the like, by the time at which an epoch is processed.

    Attributes:
        pattern: As `DateTimeFormatter` of Java has it, of the letters `yyyy`, `yy`, `MM`, `dd`, `DDD`, `HH`, `mm` and
            `ss`, texts in single quotes, and other characters.
        timezone: By its name.

    Raises:
        ConfigurationError: The pattern has other letters, or there is no such time zone.
    """

    pattern: str = "yyyy-MM-dd--HH"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        self.directory(0)

    def writer(self, processing_time: int, keeps_columns: bool, make: Make) -> BatchSinkWriter:
        return make(self.directory(processing_time))

    def directory(self, milliseconds: int) -> str:
        """The directory of a moment."""
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigurationError(f"There is no time zone {self.timezone!r} on this machine: {error}") from error
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, zone)
        found = "".join(self._part(match[0], moment) for match in _TOKEN.finditer(self.pattern))
        parts = found.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or parts[0][0] in "._":
            raise ConfigurationError(f"The pattern {self.pattern!r} gives {found!r}, which is no directory for output.")
        return found

    def _part(self, token: str, moment: datetime.datetime) -> str:
        if token in _LETTERS:
            return moment.strftime(_LETTERS[token])
        if token[0].isascii() and token[0].isalpha():
            raise ConfigurationError(
                f"The pattern {self.pattern!r} of a bucket has {token!r}; known are {', '.join(_LETTERS)}, and texts "
                "in single quotes."
            )
        return token.strip("'") if len(token) > 1 else token


@dataclass(frozen=True)
class ColumnBuckets(Buckets):
    """A directory for each combination of values, such as `day=2026-11-24/word=kelp`.

    Attributes:
        columns: The columns, the outermost first.
    """

    columns: tuple[str, ...]

    def writer(self, processing_time: int, keeps_columns: bool, make: Make) -> BatchSinkWriter:
        return _ColumnWriter(self.columns, keeps_columns, make)

    def check_schema(self, sink: str, schema: pa.Schema) -> None:
        for name in self.columns:
            kind = schema.field(name).type if name in schema.names else None
            if kind is None or pa.types.is_nested(kind) or pa.types.is_binary(kind):
                what = "no column of the stream" if kind is None else str(kind)
                raise ConfigurationError(
                    f"{sink} is divided by {name!r}, which is {what}: name columns of simple types out of "
                    f"{schema.names!r}."
                )
        if set(schema.names) <= set(self.columns):
            raise ConfigurationError(
                f"{sink} is divided by all columns of the stream, so nothing is left for its files."
            )


class _ColumnWriter(PartitionedStaging):
    def __init__(self, columns: Sequence[str], keeps_columns: bool, make: Make) -> None:
        def make_in(values: Values) -> BatchSinkWriter:
            writer = make(_directory(columns, values))
            return writer if keeps_columns else _WithoutColumns(writer, columns)

        super().__init__(columns, make_in)


class _WithoutColumns(BatchSinkWriter):
    def __init__(self, writer: BatchSinkWriter, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._writer = writer
        self.flush, self.prepare_commit = writer.flush, writer.prepare_commit  # type: ignore[method-assign]
        self.close, self.abort = writer.close, writer.abort  # type: ignore[method-assign]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch.drop_columns(self._columns))


def _directory(columns: Sequence[str], values: Values) -> str:
    """The directory of a combination of values.

    Raises:
        RefusedElementError: No file system takes its name; who finds out at the commit would try that for ever.
    """
    names = [f"{_text(name)}={_text(value)}" for name, value in zip(columns, values, strict=True)]
    for name, column in zip(names, columns, strict=True):
        if (size := len(name.encode())) > LONGEST:
            raise RefusedElementError(
                f"the directory for a value of {column!r}, {name!r:.60}..., would have a name of {size} bytes, of "
                f"which file systems take {LONGEST}"
            )
    return "/".join(names)


def _text(value: Any) -> str:
    if value is None or value == "":
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", str(value))


# Files that end when they are large: one after the other, for the rows of one subtask, epoch and bucket.


class RollingStaging(BatchSinkWriter):
    """Begins another file when the present one is large enough.

    Args:
        make: Makes the writer of a new file.
        part_size: Bytes after which a file ends, 0 if it does not; what waits to be compressed counts as it is.
    """

    def __init__(self, make: Callable[[], ParquetStaging], part_size: int) -> None:
        self._make = make
        self._part_size = part_size
        self._files: list[ParquetStaging] = []
        self._current: ParquetStaging | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; it goes into one file as a whole."""
        if self._current is None:
            self._current = self._make()
            self._files.append(self._current)
        self._current.write_batch(batch)
        if self._part_size and self._current.size >= self._part_size:
            self._current.flush(False)
            self._current = None

    def flush(self, end_of_input: bool) -> None:
        """Makes the last file durable; those before it are."""
        if self._current is not None:
            self._current.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """What was staged, a committable for each file."""
        return [committable for file in self._files for committable in file.prepare_commit()]

    def abort(self) -> None:
        """Removes the file that is not whole; the others are swept."""
        if self._current is not None:
            self._current.abort()


logger = get_logger(__name__)

STAGED_SUFFIX: Final = ".staged"
_LONGEST: Final = 4096
"""Bytes of a path."""


@dataclass(frozen=True)
class FileNames:
    """How files are called: `<prefix>-<epoch>-<subtask>-<nonce><suffix>`.

    Attributes:
        prefix: What names begin with.
        suffix: What they end with.
    """

    prefix: str = "part"
    suffix: str = ""

    def __post_init__(self) -> None:
        if "/" in self.prefix + self.suffix or "\0" in self.prefix + self.suffix or self.prefix[:1] in ("", ".", "_"):
            raise ConfigurationError(
                f"Files are called <prefix>-...<suffix>, without '/', and readers skip names that begin with '.' or "
                f"'_': {self.prefix!r} and {self.suffix!r} cannot be used."
            )


class FileOutputSink(Sink):
    """Writes a stream into a directory of files, exactly once.

    Args:
        path: The directory, or `s3://bucket/directory`; it is made if it is missing. A relative path
            is taken from the driver's working directory.
        file_format: Of the files.
        names: Of the files.
        buckets: In which directories below the path they are.
        part_size: Bytes after which a task begins another file, 0 if it does not; one ends with each epoch anyway.

    Raises:
        ConfigurationError: There is no file system for the path.
    """

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
            raise ConfigurationError(f"part_size is a number of bytes, or 0 for files of any size, not {part_size!r}.")
        self.format = file_format
        self.names = names
        self.buckets = buckets
        self.part_size = part_size

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream without the columns of the buckets."""
        self.buckets.check_schema(repr(self), element_schema(element_type))

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure that the directory is the one it was; one that no checkpoint knows gets an identity."""
        directory = output_directory(self.path)
        if kept is not None and not (type(kept) is dict and {"path", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which directory {self!r} wrote into, but {reprlib.repr(kept)}. Start "
                "from another one (-s PATH)."
            )
        if kept is None or kept["path"] != self.path:
            made = {"path": self.path, "identity": directory.ensure_identity()}
            self._tell_of_earlier(context)
            return made
        directory.require(kept["identity"])
        return kept

    def _tell_of_earlier(self, context: CommitterInitContext) -> None:
        """Says that output is there which no checkpoint of the job knows of: its checkpoints may be away."""
        own = {staging_folder(name, context.owner) for name in (context.job_id, *context.incarnations)}
        names = file_system_for(self.path).list_names(join(self.path, HIDDEN_FOLDER))
        others = {join(HIDDEN_FOLDER, name) for name in names if name.endswith(f"-{context.owner}")} - own
        if any(CommitLedger(output_directory(self.path), folder).last_epoch() is not None for folder in others):
            logger.warning(
                "%r has output that a sink %r committed before, of this job or of another, and no checkpoint of this "
                "job knows of it. If it is this job's, what is read again will be there twice: look whether the "
                "directory of its checkpoints is mounted, or whether the program names another one",
                self.path,
                context.uid,
            )

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        """Stages files in the hidden folder."""
        return self.buckets.writer(
            context.processing_time,
            self.format.keeps_columns,
            partial(self._in_bucket, context),
        )

    def _in_bucket(self, context: WriterInitContext, bucket: str) -> BatchSinkWriter:
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
            check = partial(output.require, identity)
        return ParquetStaging(join(self.path, folder), staged, committable, self.format, check, output.open_staged)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Moves staged files to their final names."""
        return _FileCommitter(self.path, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes the staged files of dead attempts of this sink in this job, and nothing of other jobs."""
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
        for request in requests:
            _check(request.committable)
        # The directory is the one that the writer used, which may not be where the sink writes today.
        for directory, group in groupby(requests, key=lambda request: str(request.committable["directory"])):
            listed = list(group)
            if "identity" in listed[0].committable:
                _commit(output_directory(directory), listed)
            else:
                _move_all(file_system_for(directory), listed)

    def last_epoch(self, incarnation: str) -> int | None:
        folder = staging_folder(incarnation, self._context.owner)
        return CommitLedger(output_directory(self._path), folder).last_epoch() if incarnation else None


def _check(committable: Any) -> None:
    """Make sure that a committable moves a staged file of a directory to a name in it, and nothing else.

    Raises:
        ConfigurationError: It does not: somebody else has written it.
    """
    try:
        directory, staged, final = (committable[name] for name in ("directory", "staged", "final"))
        hidden, buckets = staged.split("/")[0], final.split("/")
        is_inside = hidden == HIDDEN_FOLDER != buckets[0] and is_in_directory(staged) and is_in_directory(final)
        texts = [committable.get("identity", ""), committable.get("upload", "")]
        for text in (directory, staged, final, *texts):
            if len(os.fsencode(text)) > _LONGEST:
                raise ValueError("no path is as long as one of its texts")
        is_whole = local_path(directory) is not None or all(texts)  # output in a store had both from the beginning
        if not (is_inside and is_absolute(directory) and is_whole and all(type(text) is str for text in texts)):
            raise ValueError("it names other places")
    except PARSE_ERRORS as error:
        raise foreign_committables_error("sink of files", committable, error) from error


def _commit(directory: OutputDirectory, requests: Sequence[CommitRequest]) -> None:
    """Commits the files of one epoch of one incarnation.

    Raises:
        StorageError: The directory is not there, or went away.
        ConfigurationError: A staged file is not there, and nothing says that it was committed.
    """
    first = requests[0]
    identity = first.committable["identity"]
    directory.require(identity)
    files = [StagedFile(*(str(r.committable.get(name, "")) for name in StagedFile._fields)) for r in requests]
    ledger = CommitLedger(directory, parent(files[0].staged))
    last = ledger.last_epoch()
    was_done = (last is not None and last > first.epoch) or ledger.is_done(first.epoch)
    if not was_done:
        has_begun = ledger.has_begun(first.epoch, files)
        if not has_begun:
            missing = set(directory.missing(files))
            if missing:
                directory.require(identity)  # it may have gone away since
            for request, file in zip(requests, files, strict=True):
                if file.staged in missing:
                    raise _missing(request.committable, join(directory.path, file.staged))
            ledger.begin(first.epoch, files)
        directory.move(files)
        directory.check_moved(identity, files)
        ledger.finish(first.epoch)
    if was_done:
        for request in requests:
            request.signal_already_committed()


def _move_all(fs: FileSystem, requests: Sequence[CommitRequest]) -> None:
    """Commits what a version of Holdfast without ledgers has staged: a file that is gone then was committed.

    Raises:
        ConfigurationError: A file is not there that no earlier process can have committed.
    """
    moves = [_names(request.committable) for request in requests]
    for request, (staged, final), outcome in zip(requests, moves, fs.rename_all(moves), strict=True):
        if outcome is None:
            continue
        request.signal_already_committed()
        if isinstance(outcome, AlreadyExistError):
            # An earlier try linked the final name, and died before it removed the staged one.
            fs.delete_in(parent(staged), base_name(staged))
        elif not fs.exists(final):
            if not request.is_recovered and not request.number_of_retries:
                raise _missing(request.committable, staged) from outcome
            logger.warning(
                "neither %r, staged with %s rows in epoch %d, nor %r is there: it was committed, and taken since",
                staged, request.committable.get("rows", "its"), request.epoch, final,
            )  # fmt: skip


def _names(committable: dict[str, Any]) -> tuple[str, str]:
    directory = committable["directory"]
    return join(directory, committable["staged"]), join(directory, committable["final"])


def _missing(committable: dict[str, Any], staged: str) -> ConfigurationError:
    return ConfigurationError(
        f"A task has staged {committable.get('rows', 'its')} rows in {staged!r}, but the driver does not find this "
        "file, and nothing says that it was committed: the directory is not shared between the hosts, or somebody has "
        "deleted the file. Nothing of its epoch was committed. Let all hosts have the directory mounted under the same "
        "path, and bring the file to its place; then start the job again."
    )


def staging_folder(name: str, owner: str) -> str:
    """Where one sink of one incarnation stages, relative to the output directory."""
    return join(HIDDEN_FOLDER, f"{name}-{owner}")


# Parquet files, exactly once (`output_files`).


class ParquetFileSink(FileOutputSink):
    """Writes a stream into a directory of Parquet files, exactly once.

    Args:
        path: The directory, or `s3://bucket/directory`; it is made if it is missing. A relative path
            is taken from the driver's working directory.
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are. Off by default: it
            costs time, and gains only for columns with few distinct values.
        partition_by: Columns by whose values files are divided, in directories such as `day=2026-11-24/word=kelp`, as
            Spark, DuckDB and Polars read them. The files do not have these columns.
        part_size: Bytes after which a task begins another file, 0 if it does not; one ends with each epoch anyway.

    Raises:
        ConfigurationError: There is no file system for the path, or an unknown compression.
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
        """Refuses a stream of undeclared type."""
        require_parquet("ParquetFileSink", element_type)
        super().check_input(element_type)
