"""In which directories below the path of a sink its files are."""

from __future__ import annotations

import datetime
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from holdfast.datastream.sinks.partitioned import PartitionedStaging, Values
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import BatchSinkWriter, RefusedElementError

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
