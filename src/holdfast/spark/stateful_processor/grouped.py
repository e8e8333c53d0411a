"""What a `GroupedData` of Spark groups, and by which columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from holdfast.errors import ConfigurationError
from holdfast.spark.frame import element_type_of
from holdfast.spark.stateful_processor.processor import ProcessorInput

_DELAY: Final = "spark.watermarkDelayMs"
"""Where Spark keeps the delay of `withWatermark` in the metadata of the column."""


@dataclass(frozen=True)
class Grouping:
    """A frame and how it is grouped.

    Attributes:
        frame: The frame; what it is grouped by that is no column of it comes behind its columns.
        input: What a processor makes of its rows.
    """

    frame: DataFrame
    input: ProcessorInput


def grouping_of(grouped: Any) -> Grouping:
    """Take apart what `df.groupBy(...)` has returned.

    Raises:
        ConfigurationError: It is something else, or groups by nothing.
    """
    if not isinstance(grouped, GroupedData):
        raise ConfigurationError(f"transform_with_state() takes df.groupBy(...), not a {type(grouped).__name__}")
    frame: DataFrame = grouped._df
    row_type = element_type_of(frame)
    keys = grouped.agg(F.lit(1).alias("_one")).columns[:-1]
    if not keys:
        raise ConfigurationError("transform_with_state() needs groupBy() with at least one column")
    expressions: Any = grouped._jgd.groupingExprs()
    names = {name.lower(): name for name in row_type.names}
    for at, key in enumerate(keys):
        if not _is_column(expressions.apply(at)):
            # Rows keep what they have under this name, and some names are none of a column.
            keys[at] = f"_key{at}" if key.lower() in names or {".", "`"} & set(key) else key
            frame = _with_key(frame, keys[at], key, expressions.apply(at))
        elif key not in row_type.names:
            keys[at] = names[key.lower()]
    return Grouping(frame, ProcessorInput(row_type, tuple(keys), *_event_time(frame)))


def with_initial_state(rows: Grouping, states: Grouping) -> tuple[Grouping, DataFrame]:
    """Give rows and rows of initial state one form: both, of which one is null, and the columns of the key.

    Raises:
        ConfigurationError: They are grouped by another number of columns, or the state is a stream.
    """
    if len(rows.input.keys) != len(states.input.keys):
        raise ConfigurationError(
            f"initialState is grouped by {list(states.input.keys)!r}, the frame by {list(rows.input.keys)!r}"
        )
    if states.frame.isStreaming:
        raise ConfigurationError("initialState is a static frame, not a stream, as in Spark")
    row, state = (F.struct(*one.input.row_type.names) for one in (rows, states))
    row_ddl, state_ddl = (one.input.row_type.ddl for one in (rows, states))
    names = [f"_key{at}" for at in range(len(rows.input.keys))]
    row_keys, state_keys = (
        [F.col(key).alias(name) for key, name in zip(one.input.keys, names, strict=True)] for one in (rows, states)
    )
    pairs = rows.frame.select(row.alias("_row"), F.lit(None).cast(state_ddl).alias("_state"), *row_keys)
    given = ProcessorInput(
        rows.input.row_type, tuple(names), rows.input.event_time, rows.input.delay, states.input.row_type
    )
    started = states.frame.select(F.lit(None).cast(row_ddl).alias("_row"), state.alias("_state"), *state_keys)
    return Grouping(pairs, given), started


def _with_key(frame: DataFrame, name: str, shown: str, expression: Any) -> DataFrame:
    try:
        return frame.withColumn(name, F.expr(_unaliased(expression)))
    except AnalysisException as error:  # a function of Python, for instance, is none of SQL
        raise ConfigurationError(
            f"transform_with_state() cannot take {shown!r} from groupBy(): make a column of it with withColumn(), and "
            "group by that"
        ) from error


def _is_column(expression: Any) -> bool:
    kind = str(expression.getClass().getSimpleName())
    return kind == "AttributeReference" or (kind == "UnresolvedAttribute" and int(expression.nameParts().size()) == 1)


def _unaliased(expression: Any) -> str:
    is_alias = expression.getClass().getSimpleName() == "Alias"
    return str((expression.child() if is_alias else expression).sql())


def _event_time(frame: DataFrame) -> tuple[str | None, int]:
    for field in frame.schema:
        if _DELAY in (field.metadata or {}):
            return field.name, int(field.metadata[_DELAY])
    return None, 0
