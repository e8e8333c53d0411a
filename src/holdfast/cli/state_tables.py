"""Tables of state on a terminal, in Parquet files, and what two of them differ in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.cli.table import echo, json_text, print_table
from holdfast.errors import AlreadyExistError, ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.state_processor import SavepointReader
from holdfast.state_processor.read.json_value import json_value
from holdfast.state_processor.read.key_difference import key_differences

_OPERATOR_STATE: Final = ("split", "union", "broadcast")
_MANY: Final = 60


def read_table(path: str) -> pa.Table:
    """A Parquet file.

    Raises:
        NotExistError: There is none.
        ConfigurationError: It is something else.
    """
    if not Path(path).is_file():
        raise NotExistError(f"There is no file {path!r}.")
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path!r} is no Parquet file: {error}") from error


def write_table(tables: Iterable[pa.Table], schema: pa.Schema, path: str) -> int:
    """Writes a new Parquet file, part by part, and returns the number of rows. Blocks.

    Raises:
        AlreadyExistError: There is a file already.
        StorageError: It could not be written.
    """
    rows = 0
    try:
        with _new_file(path) as file, pq.ParquetWriter(file, schema) as writer:
            for table in tables:
                writer.write_table(table.cast(schema))
                rows += table.num_rows
    except FileExistsError as error:
        raise AlreadyExistError(f"There is a file {path!r} already, which is not replaced.") from error
    except OSError as error:
        raise StorageError(f"{path!r} could not be written: {error}") from error
    return rows


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """A file that is gone again if it did not become whole, so that nothing is in the way of the next try."""
    with Path(path).open("xb") as file:
        try:
            yield file
        except BaseException:
            Path(path).unlink()
            raise


def print_rows(table: pa.Table, *, as_json: bool) -> None:
    """Prints a table, as JSON lines or for people."""
    if as_json:
        for row in table.to_pylist():
            echo(json_text(row, json_value))
        return
    print_table(table.column_names, [[_cell(value) for value in row.values()] for row in table.to_pylist()])


def show_key_differences(
    before: SavepointReader,
    after: SavepointReader,
    uid: str | None,
    state: str | None,
    target: str | None,
    *,
    as_json: bool,
) -> None:
    """Prints which keys of states differ, or writes them to a Parquet file.

    Raises:
        NotExistError: A state that is named is in neither.
        StateMigrationError: The keys of a state cannot be compared.
    """
    found = False
    for own, name in _states(before, after, uid, state):
        tables = _differences(before, after, own, name)
        if target is not None:
            first = next(tables)  # the columns, without rows
            rows = write_table(tables, first.schema, target)
            click.echo(f"{rows} keys differ: {target}")
            return
        for table in tables:
            if table.num_rows:
                found = True
                places = {"uid": pa.array([own] * table.num_rows), "state": pa.array([name] * table.num_rows)}
                columns = dict(zip(table.column_names, table.columns, strict=True))
                print_rows(pa.table({**places, **columns}), as_json=as_json)
    if not found and not as_json:
        click.echo("no difference")


def show_state_of_key(before: SavepointReader, after: SavepointReader, text: str) -> None:
    """Prints how all keyed state and the timers of one key differ.

    Args:
        before: Of one snapshot.
        after: Of a later one.
        text: The key: a text, or as JSON. What fits the keys of an operator counts; where both do, both.

    Raises:
        StateMigrationError: The keys of a state cannot be compared.
    """
    rows: list[dict[str, Any]] = []
    for uid, name in _states(before, after, None, None):
        for table in _differences(before, after, uid, name, text):
            rows += [{"uid": uid, "state": name, **row} for row in table.to_pylist()]
    rows += [row for uid in after.operators() for row in _timers_changed(before, after, uid, text)]
    if not rows:
        click.echo(f"nothing has changed for key {text!r}")
        return
    columns = ("uid", "state", "change", "map_key", "before", "after")
    print_table(columns, [[_cell(row[name]) if row.get(name) is not None else "" for name in columns] for row in rows])


def _timers_changed(before: SavepointReader, after: SavepointReader, uid: str, text: str) -> Iterator[dict[str, Any]]:
    found = []
    for reader in (before, after):
        has_timers = uid in reader.operators() and "timers" in reader.states(uid).values()
        keys = _keys(reader, uid, text) if has_timers else []
        rows = reader.read_timers(uid, keys=keys).to_pylist() if keys else []
        found.append({(row["domain"], row["timestamp"]) for row in rows})
    for (domain, timestamp), change in sorted(
        [(timer, "removed") for timer in found[0] - found[1]] + [(timer, "added") for timer in found[1] - found[0]]
    ):
        side = "before" if change == "removed" else "after"
        yield {"uid": uid, "state": f"timer of {domain} time", "change": change, side: timestamp}


def _keys(reader: SavepointReader, uid: str, text: str) -> list[Any]:
    """What a text on the command line may mean as a key of an operator."""
    candidates: list[Any] = [text]
    with suppress(ValueError):
        candidates.append(json.loads(text))
    fitting = []
    for candidate in candidates:
        with suppress(HoldfastError):
            reader.require_key(uid, candidate)
            fitting.append(candidate)
    return fitting


def _states(
    before: SavepointReader, after: SavepointReader, uid: str | None, state: str | None
) -> Iterator[tuple[str, str]]:
    names = {(own, name) for reader in (before, after) for own in reader.operators() for name in _keyed(reader, own)}
    wanted = sorted(pair for pair in names if uid in (None, pair[0]) and state in (None, pair[1]))
    if not wanted and (uid, state) != (None, None):
        of = ("" if state is None else f" {state!r}") + ("" if uid is None else f" of operator {uid!r}")
        there = ", ".join(f"{own}/{name}" for own, name in sorted(names))
        raise NotExistError(f"There is no keyed state{of}; there are {there or 'none'}.")
    yield from wanted


def _keyed(reader: SavepointReader, uid: str) -> list[str]:
    return [name for name, kind in reader.states(uid).items() if kind not in (*_OPERATOR_STATE, "timers")]


def _differences(
    before: SavepointReader, after: SavepointReader, uid: str, state: str, key: str | None = None
) -> Iterator[pa.Table]:
    """What differs, of one key or all, of a state that one of both may not have; the first table has no rows."""
    has = [uid in reader.operators() and state in _keyed(reader, uid) for reader in (before, after)]
    reader, change = (before, "removed") if has[0] else (after, "added")
    keys = None if key is None else _keys(reader, uid, key)
    if all(has):
        one, other = (side.state_table(uid, state, keys=keys) for side in (before, after))
        yield from key_differences(one, other)
        return
    table = reader.read_keyed_state(uid, state, keys=keys)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns.pop("stamp", None)
    value = columns.pop("value")
    missing = pa.nulls(table.num_rows, value.type)
    sides = {"before": value if has[0] else missing, "after": missing if has[0] else value}
    whole = pa.table({"change": pa.array([change] * table.num_rows, pa.string()), **columns, **sides})
    yield whole.slice(0, 0)
    yield whole


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=json_value)
    return text if len(text) <= _MANY else text[: _MANY - 3] + "..."
