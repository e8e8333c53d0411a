"""SQL over the states of a savepoint, in this process, by DuckDB."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.state_processor.savepoint_reader import SavepointReader


def query(reader: SavepointReader, statement: str) -> pa.Table:
    """Run a statement in which each state is the table `"uid"."state"`; timers are `"uid"."timers"`. Blocks.

    Only states whose uid and name both stand in the statement are read.

    Args:
        reader: Of a savepoint, without Spark.
        statement: In DuckDB's dialect. The columns of a table are those that the reader's methods return.

    Returns:
        The rows of the answer.

    Raises:
        ConfigurationError: DuckDB is not installed, or refuses the statement.
        CorruptFileError: A run is damaged.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError("SQL needs DuckDB: pip install 'holdfast[sql]'.") from error
    with duckdb.connect(":memory:") as connection:
        # A name in the statement is a state, and never a variable of this program.
        connection.execute("set python_enable_replacements = false")
        for uid in reader.operators():
            if _stands_in(uid, statement):
                connection.execute(f"create schema if not exists {_quoted(uid)}")
                _add_states(connection, reader, uid, statement)
        try:
            answer = connection.sql(statement)
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            states = [f"{_quoted(uid)}.{_quoted(state)}" for uid in reader.operators() for state in reader.states(uid)]
            raise ConfigurationError(f"{error}\nThe states are: {', '.join(states)}.") from error


def _add_states(connection: Any, reader: SavepointReader, uid: str, statement: str) -> None:
    kinds = reader.states(uid)
    tables = {name: kind for name, kind in kinds.items() if kind != "timers" and _stands_in(name, statement)}
    if "timers" in kinds.values() and "timers" not in tables and _stands_in("timers", statement):
        tables["timers"] = "timers"
    for number, (name, kind) in enumerate(tables.items()):
        view = f"__hf_{number}_{uid}"
        connection.register(view, _read(reader, uid, name, kind))
        connection.execute(f"create view {_quoted(uid)}.{_quoted(name)} as select * from {_quoted(view)}")


def _read(reader: SavepointReader, uid: str, name: str, kind: str) -> pa.Table:
    if kind == "timers":
        return reader.read_timers(uid)
    reads = {
        "split": reader.read_list_state,
        "union": reader.read_union_state,
        "broadcast": reader.read_broadcast_state,
    }
    return reads[kind](uid, name) if kind in reads else reader.read_keyed_state(uid, name)


def _stands_in(name: str, statement: str) -> bool:
    return name.replace('"', '""').lower() in statement.lower()


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
