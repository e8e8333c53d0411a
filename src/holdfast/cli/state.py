"""`holdfast state`: export and import state as tables, and query it in SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.cli.locate import checkpoint_at, where_option
from holdfast.cli.output import echo, errors_to_exit_codes, examples, json_text, print_table
from holdfast.errors import AlreadyExistError, ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.state_processor import FlinkSavepointReader, SavepointReader, SavepointWriter, SparkQueryReader
from holdfast.state_processor.differences import key_differences
from holdfast.state_processor.sql import query
from holdfast.state_processor.state_table import json_value
from holdfast.storage.file_system import absolute

# Tables of state on a terminal, in Parquet files, and what two of them differ in.

_OPERATOR_STATE: Final = ("split", "union", "broadcast")
_MANY: Final = 60


def read_table(path: str) -> pa.Table:
    """Read a Parquet file.

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
    """Write a new Parquet file, part by part, and return the number of rows. Blocks.

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
        raise AlreadyExistError(f"The file {path!r} exists already and is not replaced: name another one.") from error
    except OSError as error:
        raise StorageError(f"{path!r} could not be written: {error}") from error
    return rows


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """Open a new file, which is removed if it does not become whole, so that the next try can write it."""
    with Path(path).open("xb") as file:
        try:
            yield file
        except BaseException:
            Path(path).unlink()
            raise


def print_rows(table: pa.Table, *, as_json: bool) -> None:
    """Print a table, as JSON lines or for people."""
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
    """Print which keys of states differ, or write them to a Parquet file.

    Raises:
        NotExistError: A named state is in neither.
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
    """Print how all keyed state and the timers of one key differ.

    Args:
        before: Reader of one snapshot.
        after: Reader of a later one.
        text: The key: a text, or JSON. Both readings count where they fit the keys of an operator.

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
    """Return what a text on the command line may mean as a key of an operator."""
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
    """Yield the differences of a state, of one key or all; either side may not have it. The first table has no rows."""
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


_uid = click.option("--uid", required=True, metavar="UID", help="The operator.")
_state = click.option("--state", "name", required=True, metavar="STATE", help="The state; `timers` means all timers.")


@click.group(
    epilog=examples(
        "holdfast state sql /data/checkpoints 'select count(*) from aircraft.last'",
        "holdfast state export /data/checkpoints --uid aircraft --state last --to last.parquet",
    )
)
def state() -> None:
    """Read and change the state of snapshots.

    The states of a savepoint or checkpoint are tables.
    """


@state.command(
    "export",
    epilog=examples(
        "holdfast state export /data/savepoints/savepoint-3f2a1c-9d --uid aircraft --state last --to last.parquet"
    ),
)
@click.argument("path")
@_uid
@_state
@click.option("--to", "target", required=True, metavar="FILE", help="Parquet file to write; it must not exist.")
@click.option("--key-type", metavar="TYPE", help="Type of keys without a declared type; else they are bytes.")
@click.option("--map-key-type", metavar="TYPE", help="The same for the keys of maps.")
@where_option
def export_state(
    path: str,
    uid: str,
    name: str,
    target: str,
    key_type: str | None,
    map_key_type: str | None,
    properties: tuple[str, ...],
) -> None:
    """Write a state to a Parquet file.

    PATH is a savepoint or checkpoint. Keyed state has the columns key_group, key, value and, where it has them,
    namespace, map_key and stamp.
    """
    with errors_to_exit_codes():
        reader = SavepointReader(None, checkpoint_at(path, properties))
        kind = reader.states(uid).get(name)
        operator_state = {
            "split": reader.read_list_state,
            "union": reader.read_union_state,
            "broadcast": reader.read_broadcast_state,
        }
        if kind in operator_state:
            tables: Iterator[pa.Table] = iter([operator_state[kind](uid, name)])
        elif name == "timers" and kind is None:
            tables = iter([reader.read_timers(uid, key_type=key_type)])
        else:
            table = reader.state_table(uid, name, key_type=key_type, map_key_type=map_key_type)
            groups = table.operator.wanted_groups(None, None)
            tables = chain([table.type.arrow_schema.empty_table()], table.read(groups))
        first = next(tables)
        rows = write_table(chain([first], tables), first.schema, target)
        click.echo(f"{rows} rows: {target}")


@state.command(
    "import", epilog=examples("holdfast state import OLD --uid aircraft --state last --from last.parquet --to NEW")
)
@click.argument("path")
@_uid
@_state
@click.option("--from", "source", required=True, metavar="FILE", help="Parquet file with the state's columns.")
@click.option("--to", "target", required=True, metavar="PATH", help="Directory of the new savepoint.")
@click.option("--update", is_flag=True, help="Keep keys that are not in the file, instead of dropping them.")
@where_option
def import_state(
    path: str, uid: str, name: str, source: str, target: str, update: bool, properties: tuple[str, ...]
) -> None:
    """Make a savepoint with a state from a file.

    The new savepoint is a copy of that at PATH, with the rows of the Parquet file as the state. Its path is printed.
    The file has the columns that `export` writes; key_group and stamp are optional. The savepoint at PATH is not
    changed, and the new one does not need it.
    """
    with errors_to_exit_codes():
        checkpoint = checkpoint_at(path, properties)
        writer = SavepointWriter.from_existing_savepoint(None, checkpoint.path)
        change = writer.update_state if update else writer.replace_state
        click.echo(change(uid, name, read_table(source)).write(absolute(target)))


@state.command(
    "from-flink",
    epilog=examples(
        "holdfast state from-flink /data/flink/savepoint-1",
        "holdfast state from-flink /data/flink/savepoint-1 --to NEW --uid aircraft",
    ),
)
@click.argument("path")
@click.option("--to", "target", metavar="PATH", help="Directory of the new savepoint; else operators are listed.")
@click.option(
    "--uid", "uids", multiple=True, metavar="UID", help="Uid of an operator; savepoints before Flink 2.0 have none."
)
@click.option("--leave-out", multiple=True, metavar="UID[/STATE]", help="Leave out an operator or a state.")
def from_flink(path: str, target: str | None, uids: tuple[str, ...], leave_out: tuple[str, ...]) -> None:
    """Make a savepoint from one of Flink.

    PATH is a canonical savepoint of Flink. The path of the new savepoint is printed. Without --to, the operators and
    states in it are listed. State of PyFlink programs needs the descriptors of the program: use
    `FlinkSavepointReader` in Python.
    """
    with errors_to_exit_codes():
        reader = FlinkSavepointReader.read(path)
        if target is not None:
            click.echo(reader.writer(uids, leave_out=leave_out).write(absolute(target)))
            return
        for uid in reader.operators():
            problems = reader.problems(uid)
            click.echo(f"{uid}{': ' + problems[''] if '' in problems else ''}")
            for name, kind in ({} if "" in problems else reader.states(uid)).items():
                click.echo(f"  {name} ({kind}){': ' + problems[name] if name in problems else ''}")


@state.command(
    "from-spark", epilog=examples("holdfast state from-spark /data/query --uid counts --to NEW --input events")
)
@click.argument("checkpoint")
@click.option("--uid", required=True, metavar="UID", help="Operator that gets the state.")
@click.option("--to", "target", required=True, metavar="PATH", help="Directory of the new savepoint.")
@click.option(
    "--input", "inputs", multiple=True, metavar="UID", help="An input of the job, for each source of the query."
)
@click.option("--operator-id", type=int, metavar="N", help="Operator of the query, if several have state.")
@click.option("--batch-id", type=int, metavar="N", help="Batch after which the state is read; the last by default.")
@click.option("--time-to-live", "lives", multiple=True, metavar="STATE=TIME", help="How long values of a state live.")
@click.option("--timers", type=click.Choice(["processing", "event"]), help="Time domain of timeouts.")
@click.option("--max-parallelism", type=int, default=128, show_default=True, metavar="N", help="Number of key groups.")
def from_spark(
    checkpoint: str,
    uid: str,
    target: str,
    inputs: tuple[str, ...],
    operator_id: int | None,
    batch_id: int | None,
    lives: tuple[str, ...],
    timers: str | None,
    max_parallelism: int,
) -> None:
    """Make a savepoint from a query of Spark.

    CHECKPOINT is the checkpointLocation of a query that does not run. Give --input once for each source of the query,
    in the query's order: the job continues at the positions of the sources. Set
    execution.state-recovery.changed-inputs.keep to these inputs, to confirm that they read what the query read.
    """
    from holdfast.spark.session import get_or_create

    with errors_to_exit_codes():
        pairs = dict(life.partition("=")[::2] for life in lives)
        query = SparkQueryReader.read(get_or_create(Configuration()), checkpoint, batch_id)
        writer = SavepointWriter.new_savepoint(None, max_parallelism)
        writer.with_operator(uid, query.transformation(operator_id, time_to_live=pairs, timers=timers))
        if inputs:
            writer.with_source_positions(query.source_positions(inputs))
        click.echo(writer.write(absolute(target)))


@state.command(
    "sql",
    epilog=examples("holdfast state sql /data/savepoints/savepoint-3f2a1c-9d 'select count(*) from aircraft.last'"),
)
@click.argument("path")
@click.argument("statement")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def sql(path: str, statement: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """Query the states of a snapshot in SQL.

    PATH is a savepoint or checkpoint. Each state is a table "uid"."state", and the timers of an operator are
    "uid"."timers". The dialect is DuckDB's.
    """
    with errors_to_exit_codes():
        print_rows(query(SavepointReader(None, checkpoint_at(path, properties)), statement), as_json=as_json)
