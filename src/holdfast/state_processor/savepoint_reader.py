"""Read savepoints and retained checkpoints as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path, root_of
from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.window.window import TimeWindow, TimeWindowSerializer
from holdfast.state.operator_snapshot import Mode
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.state_processor.reader_function import KeyedStateReaderFunction, read_keys
from holdfast.state_processor.state_table import Keys, OperatorStateTable, StateTable, StoredOperator
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

_ROWS_AT_ONCE: Final = 64 * 1024
_PARTS_A_CORE: Final = 2
_PARTS_IN_TURN: Final = 16


class SavepointReader:
    """Reads the state in a savepoint or a retained checkpoint: `SavepointReader.read(spark, path)`.

    With a Spark session tables are DataFrames, which Spark tasks read lazily. With None they are Arrow tables, read at
    once. Only the requested key groups, keys, namespaces and columns are read. No class of a program is loaded: values
    that only its classes can read stay bytes.

    >>> import tempfile
    >>> from holdfast.state import ValueStateDescriptor
    >>> from holdfast.state_processor import OperatorTransformation, SavepointWriter
    >>> rows = OperatorTransformation.bootstrap_with(pa.table({"user": ["ada", "bob"], "n": [3, 1]}))
    >>> counts = rows.key_by("user").to_state(ValueStateDescriptor("count", "bigint"), "n")
    >>> path = SavepointWriter.new_savepoint().with_operator("visits", counts).write(f"{tempfile.mkdtemp()}/s")
    >>> reader = SavepointReader.read(None, path)
    >>> reader.states("visits")
    {'count': 'value'}
    >>> reader.read_keyed_state("visits", "count", keys=["ada"]).to_pylist()
    [{'key_group': 45, 'key': 'ada', 'value': 3}]

    Attributes:
        checkpoint: The savepoint or checkpoint.
    """

    def __init__(self, spark: Any, checkpoint: CompletedCheckpoint) -> None:
        self._spark = spark
        self.checkpoint = checkpoint

    @classmethod
    def read(cls, spark: Any, path: str) -> SavepointReader:
        """Open a savepoint or a retained checkpoint. Blocks.

        Args:
            spark: A Spark session, or None.
            path: Its directory, or its `_metadata` file.

        Raises:
            NotExistError: There is no savepoint.
            CorruptFileError: Its document is damaged.
            FormatVersionError: A newer release has written it.
        """
        return cls(spark, read_by_path(str(path)))

    def operators(self) -> list[str]:
        """Return the uids of the operators, sorted."""
        return sorted(operator.uid for operator in self.checkpoint.metadata.operators)

    def metadata(self) -> pa.Table:
        """Return an Arrow table with a row for each operator: ids, parallelism, sizes, as in Flink's metadata."""
        rows = [
            {
                "checkpoint-id": self.checkpoint.checkpoint_id,
                "operator-name": operator.name,
                "operator-uid": operator.uid,
                "operator-uid-hash": operator.operator_id,
                "operator-parallelism": operator.parallelism,
                "operator-max-parallelism": operator.max_parallelism,
                "operator-subtask-state-count": len(operator.runs)
                + sum(part is not None for part in operator.subtasks),
                "operator-coordinator-state-size-in-bytes": 0,
                "operator-total-size-in-bytes": operator.state_size,
            }
            for operator in sorted(self.checkpoint.metadata.operators, key=lambda operator: operator.uid)
        ]
        return pa.Table.from_pylist(rows)

    def states(self, uid: str) -> dict[str, str]:
        """Return the kind of each state of an operator, by name.

        Returns:
            The kind of keyed state (`value`, `list`, `map` and so on), `timers`, or of operator state `split`, `union`
            or `broadcast`.

        Raises:
            NotExistError: There is no such operator.
        """
        operator = self._operator(uid)
        found: dict[str, str] = {}
        if operator.runs:
            forms = self._stored(operator).forms
            found = {name: "timers" if form.kind is None else form.kind.value for name, form in forms.items()}
        return {**found, **OperatorStateTable.kinds(operator)}

    def read_keyed_state(
        self,
        uid: str,
        state: str,
        *,
        columns: Sequence[str] | None = None,
        keys: Sequence[Any] | None = None,
        key_groups: int | Iterable[int] | None = None,
        namespaces: Sequence[Any] | None = None,
        key_type: Any = None,
        map_key_type: Any = None,
        expired: bool = False,
    ) -> Any:
        """Return a keyed state, that of windows included, as a table; of a map with a row for each entry.

        Columns: `key_group`, `key` (of several columns a struct; without a declared type bytes), `namespace` (bytes;
        only of state with namespaces, such as that of windows), of time windows `window_start` and `window_end` in
        milliseconds, `map_key`, `value` (of a list state a list), and with a time to live `stamp`, the time of the last
        use in milliseconds. The contents of windows are the state `window-contents`.

        Args:
            uid: Uid of the operator, or its operator id.
            state: Name of the state.
            columns: Only these columns.
            keys: Only these keys, as the program has them.
            key_groups: Only this key group, or these.
            namespaces: Only these namespaces: a `TimeWindow` each, or bytes.
            key_type: Type of keys without a declared type; all keys must have it.
            map_key_type: The same for map keys.
            expired: Whether to return expired values that are still in the files.

        Returns:
            A DataFrame with a session, else an Arrow table.

        Raises:
            NotExistError: There is no such operator or state.
            StateError: The operator has no keyed state.
            OutputTypeError: A key has another type.
            CorruptFileError: A run is damaged.
        """
        table = self.state_table(
            uid, state, columns=columns, keys=keys, namespaces=namespaces, key_type=key_type,
            map_key_type=map_key_type, expired=expired,
        )  # fmt: skip
        return self._read([table], table.operator.wanted_groups(key_groups, table.keys))

    def read_keys(
        self, uid: str, function: KeyedStateReaderFunction, *, key_groups: int | Iterable[int] | None = None
    ) -> list[Any]:
        """Return the results of a function for each key of an operator that has any state; each key once. Blocks.

        It runs in this process. Unlike tables it can read what only the program can read: its classes are loaded, and
        values unpickled.

        Args:
            uid: Uid of the operator, or its operator id.
            function: Reads the states of a key as the program declares them.
            key_groups: Only this key group, or these.

        Raises:
            NotExistError: There is no such operator.
            UserFunctionError: The function raised.
            StateMigrationError: It declares a state with an incompatible type.
            CorruptFileError: A run is damaged.
        """
        if not isinstance(function, KeyedStateReaderFunction):
            raise ConfigurationError(f"read_keys() takes a KeyedStateReaderFunction, not {function!r}.")
        stored = self._stored(self._operator(uid))
        return list(read_keys(stored, _cut_to_groups(stored.wanted_groups(key_groups, None)), function))

    def state_table(
        self,
        uid: str,
        state: str,
        *,
        columns: Sequence[str] | None = None,
        keys: Sequence[Any] | None = None,
        namespaces: Sequence[Any] | None = None,
        key_type: Any = None,
        map_key_type: Any = None,
        expired: bool = False,
    ) -> StateTable:
        """Return the table that `read_keyed_state` would read; arguments and errors are the same."""
        stored = self._stored(self._operator(uid))
        form = stored.form(state)
        if namespaces is not None and not form.has_namespace:
            raise ConfigurationError(f"State {state!r} of {uid!r} has no namespaces.")
        return StateTable(
            stored,
            form,
            None if keys is None else Keys.of(stored.key, keys),
            None if namespaces is None else tuple(map(_namespace, namespaces)),
            None if columns is None else tuple(columns),
            _type(key_type),
            _type(map_key_type),
            expired,
        )

    def require_key(self, uid: str, key: Any) -> None:
        """Raise an error if a value cannot be a key of an operator.

        Raises:
            NullKeyError, OutputTypeError: It cannot.
            NotExistError, StateError: There is no such operator, or it has no keys.
        """
        Keys.of(self._stored(self._operator(uid)).key, [key])

    def read_timers(
        self,
        uid: str,
        *,
        columns: Sequence[str] | None = None,
        keys: Sequence[Any] | None = None,
        key_groups: int | Iterable[int] | None = None,
        key_type: Any = None,
    ) -> Any:
        """Return the timers of an operator that have not fired, as a table.

        Columns: `key_group`, `key`, `domain` (`event` or `processing`), `service` (`user-timers` for those of
        functions, `window-timers` for those of windows), `timestamp` in milliseconds, `namespace`. Other arguments and
        errors are those of `read_keyed_state`.
        """
        stored = self._stored(self._operator(uid))
        wanted = None if keys is None else Keys.of(stored.key, keys)
        only = None if columns is None else tuple(columns)
        names = [name for name in stored.forms if name.startswith(TIMER_PREFIX)]
        tables = [StateTable(stored, stored.form(name), wanted, None, only, _type(key_type)) for name in names]
        if not tables:
            raise NotExistError(f"Operator {uid!r} has no timers in the savepoint; it has {list(stored.forms)}.")
        return self._read(tables, stored.wanted_groups(key_groups, wanted))

    def read_list_state(self, uid: str, name: str) -> Any:
        """Return a list state that is split over subtasks: one column `value`, all elements.

        Raises:
            NotExistError: There is no such operator or state.
        """
        return self._operator_state(uid, name, Mode.SPLIT_DISTRIBUTE)

    def read_union_state(self, uid: str, name: str) -> Any:
        """Return a union list state, once: one column `value`. Errors are those of `read_list_state`."""
        return self._operator_state(uid, name, Mode.UNION)

    def read_broadcast_state(self, uid: str, name: str) -> Any:
        """Return a broadcast state, once: columns `key` and `value`. Errors are those of `read_list_state`."""
        return self._operator_state(uid, name, Mode.BROADCAST)

    def _operator_state(self, uid: str, name: str, mode: Mode) -> Any:
        table = OperatorStateTable(root_of(self.checkpoint), self._operator(uid)).read(name, mode)
        if self._spark is None:
            return table
        from holdfast.spark.state_parts import frame_of_table

        return frame_of_table(self._spark, table)

    def _operator(self, uid: str) -> OperatorMetadata:
        operators = self.checkpoint.metadata.operators
        for operator in operators:
            if uid in (operator.uid, operator.operator_id):
                return operator
        raise NotExistError(
            f"Savepoint does not contain state with operator uid {uid!r}; it has "
            f"{sorted(operator.uid for operator in operators)}."
        )

    def _stored(self, operator: OperatorMetadata) -> StoredOperator:
        return StoredOperator(root_of(self.checkpoint), operator, self.checkpoint.metadata.processing_time)

    def _read(self, tables: Sequence[StateTable], key_groups: Sequence[KeyGroupRange]) -> Any:
        kind = tables[0].type
        if self._spark is None:
            found = [part for table in tables for part in table.read(key_groups)]
            return pa.concat_tables([kind.arrow_schema.empty_table(), *found])
        from holdfast.spark.state_parts import read_parts

        parts = _cut(key_groups, _PARTS_A_CORE * self._spark.sparkContext.defaultParallelism)

        def read(part: int) -> Iterator[pa.RecordBatch]:
            for table in tables:
                for rows in table.read(parts[part]):
                    yield from rows.to_batches(max_chunksize=_ROWS_AT_ONCE)

        return read_parts(self._spark, len(parts), kind, read)


def _namespace(given: Any) -> bytes:
    if isinstance(given, TimeWindow):
        return TimeWindowSerializer().serialize(given)
    if not isinstance(given, bytes):
        raise ConfigurationError(f"A namespace is a TimeWindow, or bytes as its serializer writes it, not {given!r}.")
    return given


def _type(described: Any) -> TypeInformation | None:
    return None if described is None else to_type(described)


def _cut_to_groups(key_groups: Sequence[KeyGroupRange]) -> Iterator[KeyGroupRange]:
    """Yield a few key groups at a time, so that not all keys are in memory."""
    for part in _cut(key_groups, _PARTS_IN_TURN):
        yield from part


def _cut(key_groups: Sequence[KeyGroupRange], parts: int) -> list[list[KeyGroupRange]]:
    """Distribute key groups over tasks, neighbours to the same task."""
    groups = [group for one in key_groups for group in one]
    size = max(1, -(-len(groups) // max(1, parts)))
    cut = [groups[start : start + size] for start in range(0, len(groups), size)]
    return [[KeyGroupRange(group, group) for group in some] if _has_gaps(some) else [KeyGroupRange(some[0], some[-1])]
            for some in cut]  # fmt: skip


def _has_gaps(groups: Sequence[int]) -> bool:
    return groups[-1] - groups[0] + 1 != len(groups)
