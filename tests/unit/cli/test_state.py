"""`holdfast state` and `holdfast diff --keys`: the state of a savepoint as files, in SQL, and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.run_file import forget_runs
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter

HISTORY = pa.table(
    {
        "word": ["kelp", "rock", "ü"],
        "n": [5, 7, 9],
        "at": [10, 20, 30],
        "seen": [[1.5], [2.5, 3.5], [4.5]],
        "by": pa.array([[("x", 1)], [("y", 2)], [("x", 3), ("z", 4)]], pa.map_(pa.string(), pa.int64())),
    }
)


def holdfast(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def path(tmp_path: Path) -> str:
    keyed = OperatorTransformation.bootstrap_with(HISTORY).key_by("word")
    made = (
        keyed.to_state(ValueStateDescriptor("n", "bigint"), "n")
        .to_state(ListStateDescriptor("seen", "double"), "seen")
        .to_state(MapStateDescriptor("by", "string", "bigint"), "by")
        .to_timers("at")
    )
    words = OperatorTransformation.bootstrap_with(HISTORY).to_list_state(ListStateDescriptor("words", "string"), "word")
    writer = SavepointWriter.new_savepoint(None, 8).with_operator("count.it", made.and_also(words))
    return writer.write(str(tmp_path / "first"))


def exported(path: str, state: str, file: Path) -> pa.Table:
    result = holdfast("state", "export", path, "--uid", "count.it", "--state", state, "--to", str(file))
    assert result.exit_code == 0, result.output
    return pq.read_table(file)


@pytest.mark.parametrize("state", ["n", "seen", "by"])
def test_what_is_exported_is_imported_again(path: str, tmp_path: Path, state: str) -> None:
    table = exported(path, state, tmp_path / "state.parquet")
    assert table.num_rows == (4 if state == "by" else 3)
    named = ("--uid", "count.it", "--state", state, "--from", str(tmp_path / "state.parquet"))
    again = str(tmp_path / "again")
    assert holdfast("state", "import", path, *named, "--to", again).output.strip() == again
    assert SavepointReader.read(None, again).read_keyed_state("count.it", state).equals(table)
    assert holdfast("diff", path, again, "--keys").output == "no difference\n"
    assert holdfast("state", "import", path, *named, "--to", again).exit_code == 1


def test_operator_state_and_timers_are_exported_too(path: str, tmp_path: Path) -> None:
    assert exported(path, "words", tmp_path / "words.parquet").column("value").to_pylist() == ["kelp", "rock", "ü"]
    timers = exported(path, "timers", tmp_path / "timers.parquet")
    assert sorted(timers.column("timestamp").to_pylist()) == [10, 20, 30]
    result = holdfast(
        "state", "export", path, "--uid", "count.it", "--state", "n", "--to", str(tmp_path / "words.parquet")
    )
    assert result.exit_code == 1 and "not replaced" in result.output


def test_sql_joins_states_and_timers(path: str) -> None:
    statement = """
        select key, n.value, len(seen.value) as seen, timestamp
        from "count.it".n as n join "count.it"."seen" using (key) join "count.it".timers using (key)
        where n.value > 5 order by key
    """
    rows = [json.loads(line) for line in holdfast("state", "sql", path, statement, "--json").output.splitlines()]
    assert rows == [
        {"key": "rock", "value": 7, "seen": 2, "timestamp": 20},
        {"key": "ü", "value": 9, "seen": 1, "timestamp": 30},
    ]
    assert "kelp" in holdfast("state", "sql", path, 'select * from "count.it".n').output


def test_sql_that_is_wrong_says_what_there_is(path: str) -> None:
    result = holdfast("state", "sql", path, "select * from nothing")
    assert result.exit_code == 2
    assert '"count.it"."seen"' in result.output


def test_sql_prints_columns_of_one_name_and_numbers_that_json_has_not(path: str) -> None:
    statement = """select a.key, b.key, 'nan'::double as x, ['-inf'::float] as y from "count.it".n a join "count.it".n b
        on a.value = b.value where a.value = 5"""
    [line] = holdfast("state", "sql", path, statement, "--json").output.splitlines()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row == {"key": "kelp", "key_1": "kelp", "x": "NaN", "y": ["-Infinity"]}
    assert holdfast("state", "sql", path, statement).output.splitlines()[1].split() == [
        "kelp",
        "kelp",
        "NaN",
        "[-Infinity]",
    ]


def test_names_that_sql_cannot_tell_apart_are_told_apart_or_refused(tmp_path: Path) -> None:
    writer = SavepointWriter.new_savepoint(None, 8)
    for number, uid in enumerate(("Count", "count", "pg_catalog")):
        keyed = OperatorTransformation.bootstrap_with(pa.table({"k": ["a"], "n": [number]})).key_by("k")
        state = keyed.to_state(ValueStateDescriptor("n", "bigint"), "n")
        writer.with_operator(uid, state.to_state(ValueStateDescriptor("N", "bigint"), "n"))
    path = writer.write(str(tmp_path / "names"))

    def asked(statement: str) -> Any:
        return holdfast("state", "sql", path, statement, "--json")

    assert json.loads(asked('select value from "count"."n"').output) == {"value": 1}
    assert json.loads(asked('select value from "Count"."N"').output) == {"value": 0}
    both = asked('select * from "Count"."n" union all select * from "count"."n"')
    assert both.exit_code == 2 and "'Count' and 'count' are one name" in both.output
    assert json.loads(asked('select value from "pg_catalog"."n"').output) == {"value": 2}


def test_an_export_that_fails_leaves_no_file_in_the_way(path: str, tmp_path: Path) -> None:
    runs = {run: run.read_bytes() for run in (Path(path) / "shared").iterdir()}
    target = tmp_path / "n.parquet"
    for run, content in runs.items():
        run.write_bytes(content.replace(b"kelp", b"help"))
    forget_runs()
    result = holdfast("state", "export", path, "--uid", "count.it", "--state", "n", "--to", str(target))
    assert result.exit_code == 1 and "is damaged" in result.output
    for run, content in runs.items():
        run.write_bytes(content)
    forget_runs()
    assert exported(path, "n", target).num_rows == 3


def test_a_wrong_value_is_put_right_and_the_difference_told(path: str, tmp_path: Path) -> None:
    table = exported(path, "n", tmp_path / "n.parquet")
    right = pa.array([70 if key == "rock" else 0 for key in table.column("key").to_pylist()])
    table = table.set_column(table.column_names.index("value"), "value", right)
    pq.write_table(table.filter(pc.equal(table.column("value"), 70)), tmp_path / "right.parquet")
    named = ("--uid", "count.it", "--state", "n", "--from", str(tmp_path / "right.parquet"))
    better = str(tmp_path / "better")
    assert holdfast("state", "import", path, *named, "--to", better, "--update").exit_code == 0
    lines = holdfast("diff", path, better, "--keys", "--json").output.splitlines()
    [row] = map(json.loads, lines)
    group = row.pop("key_group")
    expected = {"uid": "count.it", "state": "n", "change": "changed", "key": "rock", "before": 7, "after": 70}
    assert row == expected and 0 <= group < 8


@pytest.mark.parametrize("state", ["n", "seen", "by"])
def test_keys_that_were_added_removed_and_changed_go_to_a_file(path: str, tmp_path: Path, state: str) -> None:
    reader = SavepointReader.read(None, path)
    table = reader.read_keyed_state("count.it", state).drop_columns(["key_group"])
    kept = table.filter(pc.not_equal(table.column("key"), "kelp"))
    changed = pc.if_else(pc.equal(kept.column("key"), "rock"), table.column("value")[0], kept.column("value"))
    kept = kept.set_column(kept.column_names.index("value"), "value", changed)
    new = table.slice(0, 1).set_column(0, "key", pa.array(["new"]))
    edit = SavepointWriter.from_existing_savepoint(None, path).replace_state(
        "count.it", state, pa.concat_tables([kept, new])
    )
    other = edit.write(str(tmp_path / "other"))
    file = tmp_path / "difference.parquet"
    named = ("--keys", "--uid", "count.it", "--state", state, "--to", str(file))
    assert holdfast("diff", path, other, *named).exit_code == 0
    found = pq.read_table(file).to_pylist()
    assert {(row["key"], row["change"]) for row in found} >= {("kelp", "removed"), ("new", "added")}
    assert {row["key"] for row in found} <= {"kelp", "new", "rock"}
    for row in found:
        assert (row["before"] is None) == (row["change"] == "added")
        assert (row["after"] is None) == (row["change"] == "removed")


def test_usage_and_what_is_not_there(path: str, tmp_path: Path) -> None:
    assert holdfast("diff", path, path, "--uid", "count.it").exit_code == 2
    assert holdfast("diff", path, path, "--keys", "--to", "x").exit_code == 2
    assert (
        "no keyed state of operator 'other'; there are count.it/"
        in holdfast("diff", path, path, "--keys", "--uid", "other").output
    )
    assert "no keyed state 'm'" in holdfast("diff", path, path, "--keys", "--uid", "count.it", "--state", "m").output
    for wrong in ("nothing.parquet", "first/_metadata"):
        named = ("--uid", "count.it", "--state", "n", "--from", str(tmp_path / wrong), "--to", str(tmp_path / "x"))
        result = holdfast("state", "import", path, *named)
        assert result.exit_code in (1, 2) and "parquet" in result.output.lower()
    result = holdfast("state", "export", path, "--uid", "nobody", "--state", "n", "--to", str(tmp_path / "x.parquet"))
    assert result.exit_code == 1 and "nobody" in result.output
