"""Run SQL over the states of a savepoint, in this process, by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from itertools import chain, count, pairwise, zip_longest
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.state_processor.savepoint_reader import SavepointReader

_CATALOGS: Final = frozenset({"temp", "system", "memory", "information_schema", "pg_catalog"})
"""Catalogs and schemas of DuckDB's own: no other schema can have such a name."""


def query(reader: SavepointReader, statement: str) -> pa.Table:
    """Run a statement in which each state is the table `"uid"."state"`; timers are `"uid"."timers"`. Blocks.

    Only states whose uid and name both occur in the statement are read.

    Args:
        reader: A reader of the savepoint, without Spark.
        statement: In DuckDB's dialect. The columns of a table are those that the reader's methods return.

    Returns:
        The result rows.

    Raises:
        ConfigurationError: DuckDB is not installed, or rejects the statement.
        CorruptFileError: A run is damaged.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError("SQL needs DuckDB: pip install 'holdfast[sql]'.") from error
    with duckdb.connect(":memory:") as connection:
        # A name in the statement is a state, and never a variable of this program.
        connection.execute("set python_enable_replacements = false")
        try:
            for uid in _named(reader.operators(), statement):
                connection.execute(f"create schema if not exists {_quoted(_schema_of(uid))}")
                _add_states(connection, reader, uid, statement)
            answer = connection.sql(_with_own_schemas(statement, set(reader.operators()), duckdb.tokenize))
            if answer is None:
                return pa.table({})
            table = answer.to_arrow_table()
            return table.rename_columns(_distinct(table.column_names))
        except duckdb.Error as error:
            states = [f"{_quoted(uid)}.{_quoted(state)}" for uid in reader.operators() for state in reader.states(uid)]
            raise ConfigurationError(f"{error}\nThe states are: {', '.join(states)}.") from error


def _add_states(connection: Any, reader: SavepointReader, uid: str, statement: str) -> None:
    kinds = reader.states(uid)
    names = [name for name, kind in kinds.items() if kind != "timers"]
    tables = {name: kinds[name] for name in _named(names, statement)}
    if "timers" in kinds.values() and "timers" not in tables and _stands_in("timers", statement):
        tables["timers"] = "timers"
    for number, (name, kind) in enumerate(tables.items()):
        view = f"__hf_{number}_{uid}"
        connection.register(view, _read(reader, uid, name, kind))
        connection.execute(f"create view {_quoted(_schema_of(uid))}.{_quoted(name)} as select * from {_quoted(view)}")


def _schema_of(uid: str) -> str:
    """Return the schema of an operator's states."""
    return f"__hf_{uid}" if uid.lower() in _CATALOGS else uid


def _with_own_schemas(statement: str, uids: Set[str], tokenize: Callable[[str], list[tuple[int, Any]]]) -> str:
    """Replace uids that are names of DuckDB's own catalogs by the names of our schemas."""
    reserved = {name for name in uids if name.lower() in _CATALOGS}
    if not reserved:
        return statement
    starts = [start for start, _ in tokenize(statement)]
    written = statement.encode()  # tokens are counted in bytes
    tokens = [written[start:end].decode() for start, end in pairwise([*starts, len(written)])]
    pieces = [written[: starts[0]].decode() if starts else ""]
    for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        name = token.strip()
        uid = name[1:-1] if name.startswith('"') else name.lower()
        is_schema = uid in reserved and following.startswith(".")
        pieces.append(token.replace(name, _quoted(_schema_of(uid)), 1) if is_schema else token)
    return "".join(pieces)


def _read(reader: SavepointReader, uid: str, name: str, kind: str) -> pa.Table:
    if kind == "timers":
        return reader.read_timers(uid)
    reads = {
        "split": reader.read_list_state,
        "union": reader.read_union_state,
        "broadcast": reader.read_broadcast_state,
    }
    return reads[kind](uid, name) if kind in reads else reader.read_keyed_state(uid, name)


def _named(names: Iterable[str], statement: str) -> list[str]:
    """Return the names that occur in a statement; of names that differ only in case, the one that occurs exactly."""
    found: dict[str, str] = {}
    for name in (name for name in names if _stands_in(name, statement)):
        other = found.setdefault(name.lower(), name)
        is_written, other_is = (_is_written(one, statement) for one in (name, other))
        if name != other and is_written and other_is:
            raise ConfigurationError(f"In SQL {other!r} and {name!r} are one name: ask for one of them at a time.")
        if is_written:
            found[name.lower()] = name
    return list(found.values())


def _distinct(names: Iterable[str]) -> list[str]:
    """Make names of columns distinct, as DuckDB does in a subquery: a second `key` becomes `key_1`."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in count(1))
        found.append(next(one for one in chain([name], others) if one not in found))
    return found


def _stands_in(name: str, statement: str) -> bool:
    return _escaped(name).lower() in statement.lower()


def _is_written(name: str, statement: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(_escaped(name))}(?!\w)", statement) is not None


def _quoted(name: str) -> str:
    return f'"{_escaped(name)}"'


def _escaped(name: str) -> str:
    return name.replace('"', '""')
