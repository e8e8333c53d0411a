"""Read the state and the source positions of a stopped Spark query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import parse_duration
from holdfast.state.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state_processor.bootstrap import (
    KeyedStateTransformation,
    OperatorTransformation,
    SourcePositions,
    StateBootstrapTransformation,
)
from holdfast.types.type_parser import to_type

_OWN: Final = "__holdfast_"
_DOMAINS: Final = ("event", "processing")


class SparkQueryReader:
    """Reads the state and the positions of a stopped query of Structured Streaming.

    `SavepointWriter` makes a savepoint of them: `transformation` is the state of an operator, and `source_positions` is
    where the job continues. Spark tasks read. The query's checkpoint is not changed.

    >>> query = SparkQueryReader.read(spark, "/checkpoints/query")  # doctest: +SKIP
    >>> writer = SavepointWriter.new_savepoint().with_operator("counts", query.transformation())  # doctest: +SKIP
    >>> writer.with_source_positions(query.source_positions(["clicks"])).write("/savepoints/s")  # doctest: +SKIP
    '/savepoints/s'
    """

    def __init__(self, spark: Any, path: str, batch_id: int | None) -> None:
        from holdfast.spark.stopped_query import HadoopFolder, QueryStates, read_logs

        self._logs = read_logs(HadoopFolder(spark, path), batch_id)
        if any(str(query.id) == self._logs.query_id for query in spark.streams.active):
            raise StateError(f"The query in {path!r} is running: stop it first.")
        self._states = QueryStates(spark, self._logs)

    @classmethod
    def read(cls, spark: Any, path: str, batch_id: int | None = None) -> SparkQueryReader:
        """Open the checkpoint directory of a query that does not run. Blocks.

        Args:
            spark: A Spark session, of Spark 4.3 or newer.
            path: The query's `checkpointLocation`, on any file system that Spark reads.
            batch_id: The batch after which to read; None for the last committed one.

        Raises:
            NotExistError: There is no such query, or its logs do not have the batch.
            StateError: The batch was not committed; or none is given, and the query was stopped in a batch that had
                read something; or the query runs in this session.
            ConfigurationError: There is no session, or the logs have an unknown format.
            CorruptFileError: An entry of a log is damaged.
        """
        if spark is None or not hasattr(spark, "readStream"):
            raise ConfigurationError(
                f"The state of a query of Spark is read by a Spark session, not by {spark!r:.100}."
            )
        return cls(spark, str(path), batch_id)

    @property
    def batch_id(self) -> int:
        """The batch after which state and positions are read."""
        return self._logs.batch_id

    def metadata(self) -> pa.Table:
        """Return an Arrow table with a row for each state. Blocks.

        Columns: `operator_id`, `operator_name` (Spark's), `state`, `kind` (`value`, `list`, `map` or `timers`) and
        `has_ttl`. An operator whose state cannot be read has a row without a state.
        """
        rows = []
        for operator in self._states.operators():
            told = {"operator_id": operator.operator_id, "operator_name": operator.name}
            rows += [
                {**told, "state": state.name, "kind": state.kind, "has_ttl": state.has_ttl} for state in operator.states
            ] or [{**told, "state": None, "kind": None, "has_ttl": None}]
        names = [("operator_id", pa.int32()), ("operator_name", pa.string()), ("state", pa.string())]
        return pa.Table.from_pylist(rows, pa.schema([*names, ("kind", pa.string()), ("has_ttl", pa.bool_())]))

    def read_state(self, state: str, operator_id: int | None = None) -> Any:
        """Return a state as a DataFrame, which Spark tasks read lazily.

        Columns: `key`, a struct of the columns by which the query groups; `value`, of a list state a list; of a map
        state a row for each entry with `map_key`; with a time to live `expires`, in milliseconds; timers have
        `timestamp` instead of a value. Operators without named states have these: `applyInPandasWithState` has `state`
        and `timers`, `dropDuplicates` has `seen`, `dropDuplicatesWithinWatermark` has `expires` and `timers`, and an
        aggregation has one for each column of its buffer, by its name (`count`, `sum`, `sum_2`).

        Args:
            state: Its name.
            operator_id: The operator; None for the only one.

        Raises:
            NotExistError: There is no such operator or state.
            StateError: The state of the operator cannot be read, or there are several operators and none is given.
        """
        operator = self._states.operator(operator_id)
        return self._states.frame(operator, operator.state(state))

    def transformation(
        self,
        operator_id: int | None = None,
        *,
        processor: Any = None,
        time_to_live: Mapping[str, Any] | None = None,
        timers: str | None = None,
    ) -> StateBootstrapTransformation:
        """Return all state of an operator with its types, for `SavepointWriter.with_operator`. Blocks.

        It is keyed by the columns by which the query groups, as a job's `key_by` of these columns. State of a
        `transformWithState` becomes that of `holdfast.spark.transform_with_state` with the same processor;
        `dropDuplicates` that of `key_by(...).deduplicate()`; a sum, count, mean and so on that of `sum()`, `count()`,
        `mean()`.

        Args:
            operator_id: The operator; None for the only one.
            processor: The `StatefulProcessor` that continues. Its declarations in `init` must match the state, and have
                the times to live, which Spark does not store.
            time_to_live: Instead of a processor, the time to live of each state that has one, by name: milliseconds or
                a text such as `"1 h"`.
            timers: For `applyInPandasWithState` with timeouts, whether they are of `"processing"` or `"event"` time,
                which Spark does not store.

        Raises:
            NotExistError: There is no such operator.
            StateError: The state cannot be read, or does not match the processor; the message has the reason.
            ConfigurationError: A time to live or the kind of timers is missing or invalid.
        """
        operator = self._states.operator(operator_id)
        declared = None if processor is None else self._declared(operator, processor)
        lives = {name: parse_duration(time) for name, time in (time_to_live or {}).items()}
        unknown = sorted(lives.keys() - {state.name for state in operator.states if state.has_ttl})
        if unknown:
            raise ConfigurationError(f"time_to_live names {unknown!r}, which are no states with a time to live.")
        made = None
        for state in operator.states:
            frame = self._states.frame(operator, state)
            if state.kind == "timers":
                domain = state.domain or timers
                if domain not in _DOMAINS:
                    if frame.isEmpty():
                        continue
                    raise ConfigurationError(
                        f"Operator {operator.operator_id} ({operator.name}) has timeouts, and Spark does not keep of "
                        f"which time: say timers='processing' or timers='event', not {timers!r}."
                    )
                part = _keyed(frame).to_timers(f"{_OWN}timestamp", domain)
            else:
                descriptor = _descriptor(state, frame, lives) if declared is None else declared.get(state.name)
                if descriptor is None:
                    raise StateError(
                        f"The query has a state {state.name!r}, which {type(processor).__name__} does not declare: it "
                        "would be lost. Take this operator without processor=, or bring the states that are needed "
                        "by read_state() and OperatorTransformation."
                    )
                part = _with_state(frame, state, descriptor)
            made = part if made is None else made.and_also(part)
        assert made is not None
        return made

    def source_positions(self, inputs: Mapping[str, Any] | Sequence[str]) -> SourcePositions:
        """Return the positions of the sources after the batch, for `SavepointWriter.with_source_positions`. Blocks.

        Args:
            inputs: The sources of the query, in the order of its plan: by uid of the job's input the streaming
                DataFrame with which the query read it. A list of uids works without the frames; then the job must name
                them in `execution.state-recovery.changed-inputs.keep`, which confirms that each reads what the query
                read.

        Raises:
            ConfigurationError: They are not the sources of the query, or in another order.
            StateError: A file of a source is missing.
        """
        from holdfast.spark.stopped_query import positions_of

        if isinstance(inputs, str):
            raise ConfigurationError(f"Inputs are a dict of uids and DataFrames, or a list of uids, not {inputs!r}.")
        named = inputs if isinstance(inputs, Mapping) else dict.fromkeys(inputs)
        found = positions_of(self._logs, named)
        return SourcePositions(found.streaming, found.files)

    def _declared(self, operator: Any, processor: Any) -> Mapping[str, StateDescriptor[Any]]:
        from holdfast.spark.stateful_processor import declared_states

        if not operator.time_mode:
            raise ConfigurationError(
                f"Operator {operator.operator_id} is {operator.name!r}, which has no StatefulProcessor."
            )
        declared = declared_states(processor, operator.time_mode)
        for state in operator.states:
            descriptor = declared.get(state.name)
            if descriptor is not None:
                _require_same(state, descriptor, self._states.frame(operator, state))
        return declared


def _keyed(frame: Any) -> KeyedStateTransformation:
    """Return the rows of a state keyed by the query's columns; columns of the state get names of their own."""
    from holdfast.spark.stopped_query import KEY

    keys = frame.schema[KEY].dataType.names
    if not keys:
        raise StateError(
            "The query groups by no column, so its state belongs to no key: read it by read_state(), and give it one."
        )
    own = [f"`{name}` as `{_OWN}{name}`" for name in frame.columns if name != KEY]
    flat = frame.selectExpr(*[f"`{KEY}`.`{name.replace('`', '``')}`" for name in keys], *own)
    return OperatorTransformation.bootstrap_with(flat).key_by(keys)


def _with_state(frame: Any, state: Any, descriptor: StateDescriptor[Any]) -> StateBootstrapTransformation:
    stamp = None
    if state.has_ttl:
        from holdfast.spark.stopped_query import stamped

        # Spark keeps when a value expires, and the job when it was last used.
        frame, stamp = stamped(frame, state, descriptor.ttl_config.ttl), f"{_OWN}stamp"
    return _keyed(frame).to_state(
        descriptor, f"{_OWN}value", map_key=f"{_OWN}map_key" if state.kind == "map" else None, stamp=stamp
    )


def _descriptor(state: Any, frame: Any, lives: Mapping[str, int]) -> StateDescriptor[Any]:
    value = frame.schema["value"].dataType
    if state.kind == "map":
        made: StateDescriptor[Any] = MapStateDescriptor(
            state.name, to_type(frame.schema["map_key"].dataType), to_type(value)
        )
    elif state.kind == "list":
        made = ListStateDescriptor(state.name, to_type(value.elementType))
    else:
        made = ValueStateDescriptor(state.name, to_type(value))
    if state.has_ttl:
        if state.name not in lives:
            raise ConfigurationError(
                f"State {state.name!r} has a time to live, and Spark does not keep how long it is: say it with "
                f"time_to_live={{{state.name!r}: '1 h'}}, or with processor=, the StatefulProcessor that declares it."
            )
        made.enable_time_to_live(StateTtlConfig.new_builder(lives[state.name]).build())
    return made


def _require_same(state: Any, descriptor: StateDescriptor[Any], frame: Any) -> None:
    """Raise an error if a processor declares a state differently."""
    if state.kind == "timers":
        return
    found = _descriptor(state, frame, {state.name: 1})
    for descriptor_of in (descriptor, found):
        descriptor_of.initialize_serializer_unless_set()
    kinds = (found.kind, descriptor.kind)
    types = [(one.type_info, getattr(one, "key_type_info", None)) for one in (found, descriptor)]
    if kinds[0] is not kinds[1] or types[0] != types[1]:
        raise StateError(
            f"State {state.name!r} is a {found.kind.value} of {types[0][0]} in the query, but the processor declares a "
            f"{descriptor.kind.value} of {types[1][0]}."
        )
    if state.has_ttl != descriptor.ttl_config.is_enabled():
        raise StateError(
            f"State {state.name!r} has {'a' if state.has_ttl else 'no'} time to live in the query, but the processor "
            "declares otherwise."
        )
