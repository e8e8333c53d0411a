"""The state of a stopped query: which operators and states it has, and each of them as a frame.

Spark's own readers do the work, `state-metadata` for what there is and `statestore` for what is in it, in Spark tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.errors import NotExistError, StateError
from holdfast.kernel.malformed import MALFORMED
from holdfast.spark.stopped_query.query_logs import QueryLogs

KEY: Final = "key"
VALUE: Final = "value"
MAP_KEY: Final = "map_key"
EXPIRES: Final = "expires"
TIME: Final = "timestamp"
STAMP: Final = "stamp"

Kind = Literal["value", "list", "map", "timers"]

_TRANSFORM: Final = ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_GROUPS: Final = ("applyInPandasWithState", "flatMapGroupsWithState", "mapGroupsWithState")
_DEDUPE: Final = "dedupe"
_DEDUPE_WITHIN: Final = "dedupeWithinWatermark"
_AGGREGATE: Final = "stateStoreSave"
_KINDS: Final[Mapping[str, Kind]] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS: Final = "TimerState"
_MODES: Final = {"NoTime": "none", "ProcessingTime": "processingtime", "EventTime": "eventtime"}
_DOMAINS: Final = {"processingtime": "processing", "eventtime": "event"}
_REFUSED: Final = {
    "symmetricHashJoin": "a join of two streams, whose rows wait for each other in a form of Spark's own",
    "sessionWindowStateStoreSaveExec": "an aggregation over session windows, which Spark merges in a form of its own",
    "globalLimit": "a limit",
}
_NO_TIMEOUT: Final = -1


@dataclass(frozen=True)
class QueryState:
    """One state of an operator.

    Attributes:
        name: Its name; of operators whose states have none, one that says what it is.
        kind: What it is.
        has_ttl: Whether its values have a time at which they expire.
        domain: Of timers, by which time they fire, `event` or `processing`.
        column: Of the buffer of an aggregation that it is; None for another state.
    """

    name: str
    kind: Kind
    has_ttl: bool = False
    domain: str | None = None
    column: int | None = None


@dataclass(frozen=True)
class QueryOperator:
    """One operator with state.

    Attributes:
        operator_id: Which of the query's, from 0.
        name: Spark's name for what it is.
        states: What it has.
        partitions: Into how many its state is cut.
        time_mode: Of `transformWithState`, as `StatefulProcessorHandle` has it; empty for other operators.
    """

    operator_id: int
    name: str
    states: tuple[QueryState, ...]
    partitions: int
    time_mode: str = ""

    def state(self, name: str) -> QueryState:
        """A state by its name.

        Raises:
            NotExistError: There is none.
        """
        for state in self.states:
            if state.name == name:
                return state
        raise NotExistError(
            f"Operator {self.operator_id} ({self.name}) has no state {name!r}; it has "
            f"{[state.name for state in self.states]!r}."
        )


class QueryStates:
    """The state of a query after a batch.

    Args:
        session: Of Spark.
        logs: Of the query.
    """

    def __init__(self, session: SparkSession, logs: QueryLogs) -> None:
        self._session = session
        self._logs = logs

    def operators(self) -> list[QueryOperator]:
        """The operators with state. Blocks.

        Raises:
            StateError: Spark cannot say.
        """
        reader = self._session.read.format("state-metadata").option("batchId", self._logs.batch_id)
        try:
            rows = reader.load(self._logs.folder.path).collect()
        except PySparkException as error:
            raise self._failed("the operators", error) from error
        found: dict[int, QueryOperator] = {}
        for row in rows:
            if row.operatorId not in found:
                found[row.operatorId] = self._operator(row)
        return [found[number] for number in sorted(found)]

    def operator(self, operator_id: int | None) -> QueryOperator:
        """An operator by its number; None for the only one.

        Raises:
            NotExistError: There is none.
            StateError: There are several, and none is named; or its state cannot be taken, or is not whole.
        """
        operators = self.operators()
        told = ", ".join(f"{one.operator_id} ({one.name})" for one in operators) or "none"
        if operator_id is None and len(operators) != 1:
            raise StateError(
                f"The query in {self._logs.folder.path!r} has {len(operators)} operators with state: {told}. Say which "
                "one with operator_id."
            )
        chosen = [one for one in operators if operator_id in (None, one.operator_id)]
        if not chosen:
            raise NotExistError(
                f"The query in {self._logs.folder.path!r} has no operator {operator_id!r} with state: {told}."
            )
        if chosen[0].name in _REFUSED or not chosen[0].states:
            why = _REFUSED.get(chosen[0].name, f"{chosen[0].name!r}, whose state is in a form that is not known")
            raise StateError(
                f"Operator {chosen[0].operator_id} of the query in {self._logs.folder.path!r} is {why}. Its state "
                "cannot be taken; take that of the others with operator_id."
            )
        self._require_partitions(chosen[0])
        return chosen[0]

    def _require_partitions(self, operator: QueryOperator) -> None:
        """Spark's reader takes the folders that there are, so a last one that is gone would not be missed."""
        folder = f"state/{operator.operator_id}"
        found = {name for name in self._logs.folder.names(folder) if name.isdecimal()}
        missing = [number for number in range(operator.partitions) if str(number) not in found]
        if missing and not self._is_of_all_rows(operator):
            raise StateError(
                f"{self._logs.folder.path}/{folder} has no folder {missing[0]}, but the state is in "
                f"{operator.partitions} partitions: the checkpoint is not whole, copy it again."
            )

    def _is_of_all_rows(self, operator: QueryOperator) -> bool:
        """Whether an aggregation groups by nothing: then its state is in one partition, whatever Spark says."""
        key = self._load(operator).schema[KEY].dataType if operator.name == _AGGREGATE else None
        return isinstance(key, StructType) and not key.fields

    def frame(self, operator: QueryOperator, state: QueryState) -> DataFrame:
        """A state as a frame: `key`, a struct, and what its kind has.

        That is `value`, of a map also `map_key`, of a list a list in its order; with a time to live `expires`, in
        milliseconds, of a list a list of them; of timers `timestamp`, in milliseconds.

        Raises:
            StateError: Spark cannot read it.
        """
        if operator.name in _TRANSFORM:
            return self._of_processor(operator, state)
        frame = self._load(operator)
        if operator.name in _GROUPS:
            return _of_groups(frame, state)
        if operator.name == _DEDUPE:
            return frame.select(KEY, F.lit(True).alias(VALUE))
        if operator.name == _DEDUPE_WITHIN:
            expires = F.floor(F.col(f"{VALUE}.expiresAtMicros") / 1000)
            return frame.select(KEY, expires.alias(TIME if state.kind == "timers" else VALUE))
        assert state.column is not None
        # Buffers of Spark may have one name twice, so they are taken by their places.
        named = _with_distinct_names(frame)
        return named.select(KEY, F.col(f"{VALUE}._{state.column}").alias(VALUE)).where(F.col(VALUE).isNotNull())

    def _of_processor(self, operator: QueryOperator, state: QueryState) -> DataFrame:
        if state.kind == "timers":
            frame = self._load(operator, readRegisteredTimers="true")
            return frame.select(KEY, F.col("expiration_timestamp_ms").alias(TIME))
        frame = self._load(operator, stateVarName=state.name, flattenCollectionTypes=str(state.kind == "map").lower())
        if state.kind == "list":
            listed = F.col("list_value")
            if not state.has_ttl:
                return frame.select(KEY, listed.alias(VALUE))
            return frame.select(
                KEY,
                F.transform(listed, lambda one: one[VALUE]).alias(VALUE),
                F.transform(listed, lambda one: one["ttlExpirationMs"]).alias(EXPIRES),
            )
        columns = [F.col(KEY)]
        if state.kind == "map":
            columns.append(F.col("user_map_key").alias(MAP_KEY))
        value = F.col("user_map_value" if state.kind == "map" else VALUE)
        if not state.has_ttl:
            return frame.select(*columns, value.alias(VALUE))
        return frame.select(*columns, value[VALUE].alias(VALUE), value["ttlExpirationMs"].alias(EXPIRES))

    def _operator(self, row: Any) -> QueryOperator:
        made = QueryOperator(int(row.operatorId), str(row.operatorName), (), int(row.numPartitions))
        if made.name in _TRANSFORM:
            return self._processor(made, row)
        states: tuple[QueryState, ...]
        if made.name in _GROUPS:
            states = (QueryState("state", "value"), QueryState("timers", "timers"))
        elif made.name == _DEDUPE:
            states = (QueryState("seen", "value"),)
        elif made.name == _DEDUPE_WITHIN:
            states = (QueryState("expires", "value"), QueryState("timers", "timers", domain="event"))
        elif made.name == _AGGREGATE:
            states = _buffers(self._load(made).schema[VALUE].dataType)
        else:
            return made
        return replace(made, states=states)

    def _processor(self, made: QueryOperator, row: Any) -> QueryOperator:
        try:
            properties = json.loads(row.operatorProperties)
            variables = properties["stateVariables"]
            variables = json.loads(variables) if isinstance(variables, str) else variables
            mode = _MODES[properties["timeMode"]]
            states = [
                QueryState(str(one["stateName"]), _KINDS[one["stateVariableType"]], bool(one["ttlEnabled"]))
                for one in variables
                if one["stateVariableType"] != _TIMERS
            ]
            has_timers = len(states) < len(variables)
        except MALFORMED as error:
            raise StateError(
                f"What Spark says of operator {made.operator_id} ({made.name}) in {self._logs.folder.path!r} is not "
                f"known here: {row.operatorProperties!r:.200}."
            ) from error
        if has_timers and mode in _DOMAINS:
            states.append(QueryState("timers", "timers", domain=_DOMAINS[mode]))
        return replace(made, states=tuple(states), time_mode=mode)

    def _load(self, operator: QueryOperator, **options: str) -> DataFrame:
        reader = self._session.read.format("statestore").options(
            operatorId=operator.operator_id, batchId=self._logs.batch_id, **options
        )
        try:
            return reader.load(self._logs.folder.path)
        except PySparkException as error:
            raise self._failed(f"operator {operator.operator_id} ({operator.name})", error) from error

    def _failed(self, what: str, error: PySparkException) -> StateError:
        folder = self._logs.folder
        cure = (
            " Its reader looks elsewhere if a path has a space, a % or the like in it: copy the directory to another."
        )
        return StateError(
            f"Spark cannot read {what} of the query in {folder.path!r} at batch {self._logs.batch_id}: {error!s:.600}"
            f"{cure if folder.is_escaped else ''}"
        )


def stamped(frame: DataFrame, state: QueryState, time_to_live: int) -> DataFrame:
    """A state with the times of last use, `stamp`, in place of those at which it expires, in milliseconds."""
    expires = F.col(EXPIRES)
    if state.kind == "list":
        used = F.transform(expires, lambda one: one - F.lit(time_to_live))
    else:
        used = expires - F.lit(time_to_live)
    return frame.withColumn(STAMP, used).drop(EXPIRES)


def _of_groups(frame: DataFrame, state: QueryState) -> DataFrame:
    value = F.col(VALUE)
    if state.kind == "timers":
        time = value["timeoutTimestamp"]
        return frame.select(KEY, time.alias(TIME)).where(F.col(TIME) != _NO_TIMEOUT)
    return frame.select(KEY, value["groupState"].alias(VALUE)).where(F.col(VALUE).isNotNull())


def _buffers(value: Any) -> tuple[QueryState, ...]:
    assert isinstance(value, StructType)
    taken: list[str] = []
    for at, field in enumerate(value.fields):
        number = 1 + sum(other.name == field.name for other in value.fields[:at])
        taken.append(field.name if number == 1 else f"{field.name}_{number}")
    return tuple(QueryState(name, "value", column=at) for at, name in enumerate(taken))


def _with_distinct_names(frame: DataFrame) -> DataFrame:
    value = frame.schema[VALUE].dataType
    assert isinstance(value, StructType)
    fields: Sequence[str] = [f"_{at}: {field.dataType.simpleString()}" for at, field in enumerate(value.fields)]
    return frame.withColumn(VALUE, F.col(VALUE).cast(f"struct<{', '.join(fields)}>"))
