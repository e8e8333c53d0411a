"""`holdfast state`: the state of a savepoint as tables, out of it, into another one, and in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click
import pyarrow as pa

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.job_directories import checkpoint_at
from holdfast.cli.registers import where_option
from holdfast.cli.state_tables import print_rows, read_table, write_table
from holdfast.kernel.configuration import Configuration
from holdfast.state_processor import FlinkSavepointReader, SavepointReader, SavepointWriter, SparkQueryReader
from holdfast.state_processor.sql import query
from holdfast.storage.file_system.path import absolute

_uid = click.option("--uid", required=True, metavar="UID", help="The operator.")
_state = click.option("--state", "name", required=True, metavar="STATE", help="The state; `timers` means all timers.")


@click.group()
def state() -> None:
    """Reads and changes the state of savepoints and checkpoints, as tables."""


@state.command("export")
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
    """Writes a state of the savepoint or checkpoint at PATH to a Parquet file.

    Keyed state has the columns key_group, key, value and, where it has them, namespace, map_key and stamp.
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


@state.command("import")
@click.argument("path")
@_uid
@_state
@click.option("--from", "source", required=True, metavar="FILE", help="Parquet file with the state's columns.")
@click.option("--to", "target", required=True, metavar="PATH", help="Directory of the new savepoint.")
@click.option("--update", is_flag=True, help="Keys that are not in the file keep what they have, instead of losing it.")
@where_option
def import_state(
    path: str, uid: str, name: str, source: str, target: str, update: bool, properties: tuple[str, ...]
) -> None:
    """Makes a savepoint of the one at PATH with a state as a Parquet file has it, and prints its path.

    The file has the columns that `export` writes; key_group and stamp may be missing. The savepoint at PATH stays as it
    is, and the new one does not need it.
    """
    with errors_to_exit_codes():
        checkpoint = checkpoint_at(path, properties)
        writer = SavepointWriter.from_existing_savepoint(None, checkpoint.path)
        change = writer.update_state if update else writer.replace_state
        click.echo(change(uid, name, read_table(source)).write(absolute(target)))


@state.command("from-flink")
@click.argument("path")
@click.option("--to", "target", metavar="PATH", help="Directory of the new savepoint; without it, tells what there is.")
@click.option(
    "--uid", "uids", multiple=True, metavar="UID", help="Uid of an operator, which Flink before 2.0 keeps out."
)
@click.option("--leave-out", multiple=True, metavar="UID[/STATE]", help="An operator or a state that stays behind.")
def from_flink(path: str, target: str | None, uids: tuple[str, ...], leave_out: tuple[str, ...]) -> None:
    """Makes a savepoint of a canonical savepoint of Flink at PATH, and prints its path.

    State of PyFlink programs needs the descriptors of the program: use `FlinkSavepointReader` in Python.
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


@state.command("from-spark")
@click.argument("checkpoint")
@click.option("--uid", required=True, metavar="UID", help="The operator that is to have the state.")
@click.option("--to", "target", required=True, metavar="PATH", help="Directory of the new savepoint.")
@click.option(
    "--input", "inputs", multiple=True, metavar="UID", help="An input of the job, for each source of the query."
)
@click.option("--operator-id", type=int, metavar="N", help="Which operator of the query, if it has several with state.")
@click.option("--batch-id", type=int, metavar="N", help="After which batch, instead of the last one.")
@click.option("--time-to-live", "lives", multiple=True, metavar="STATE=TIME", help="How long values of a state live.")
@click.option("--timers", type=click.Choice(["processing", "event"]), help="Of which time timeouts are.")
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
    """Makes a savepoint of the state of a stopped query of Spark, whose checkpointLocation is CHECKPOINT.

    With --input, in the order in which the query reads its sources, the job goes on where they stand; it names these
    inputs in execution.state-recovery.changed-inputs.keep, by which it says that they read what the query read.
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


@state.command("sql")
@click.argument("path")
@click.argument("statement")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@where_option
def sql(path: str, statement: str, as_json: bool, properties: tuple[str, ...]) -> None:
    """Runs STATEMENT over the states of the savepoint or checkpoint at PATH.

    Each state is a table "uid"."state", and the timers of an operator are "uid"."timers". The dialect is DuckDB's.
    """
    with errors_to_exit_codes():
        print_rows(query(SavepointReader(None, checkpoint_at(path, properties)), statement), as_json=as_json)
