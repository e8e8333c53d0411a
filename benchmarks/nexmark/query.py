"""What a query of Nexmark is here: the columns that it reads, the program, and what its rows mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.common import ColumnTimestampAssigner, Duration, WatermarkStrategy
from holdfast.datastream import DataStream

LATENESS: Final = Duration.of_seconds(4)
"""By so much events may be out of order, as in the published definition of the table."""

DAY: Final = "cast(floor(date_time / 86400000) as bigint)"
"""The number of the day, in words that Spark and DuckDB share."""


@dataclass(frozen=True)
class Input:
    """Columns of one kind of event.

    Attributes:
        kind: `person`, `auction` or `bid`.
        columns: Name and type of each.
        expressions: What a column is, by name; the column of that name unless given.
        where: Which events; all unless given.
    """

    kind: str
    columns: str
    expressions: Mapping[str, str]
    where: str | None = None

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.split()[0] for column in self.columns.split(", ")]

    @property
    def selected(self) -> list[str]:
        """What is selected, for Spark and DuckDB."""
        types = [column.split()[1] for column in self.columns.split(", ")]
        return [
            f"cast({self.expressions.get(name, name)} as {kind}) as {name}"
            for name, kind in zip(self.names, types, strict=True)
        ]


def of(kind: str, columns: str, where: str | None = None, /, **expressions: str) -> Input:
    """Return what is read of a kind of event; see `Input`."""
    return Input(kind, columns, expressions, where)


@dataclass(frozen=True)
class Query:
    """A query as a DataStream program.

    Attributes:
        name: `q0` to `q22`.
        inputs: What it reads, by the uid of the stream.
        build: Makes the stream of results.
        keys: Columns of the result of which a later row replaces an earlier one; empty if rows are only added.
        by_columns: Whether Python never touches a row.
        needs_spark: Whether the program has Spark expressions.
    """

    name: str
    inputs: Mapping[str, Input]
    build: Callable[[Mapping[str, DataStream]], DataStream]
    keys: tuple[str, ...] = ()
    by_columns: bool = True
    needs_spark: bool = False


def timed(stream: Any) -> DataStream:
    """The stream with event time."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS)
    timed_stream: DataStream = stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ColumnTimestampAssigner("date_time"))
    )
    return timed_stream
