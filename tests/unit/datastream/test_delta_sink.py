"""Jobs whose rows go into a Delta table, judged by what deltalake, Polars and DuckDB read from it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.table import TableMerger

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel import fault
from holdfast.storage.local import LocalFileSystem
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage

COUNTS = "word string, n bigint"
CHANGES = "word string, n bigint, kind string"
INCARNATION = "1" * 12


def run(sink: DeltaSink, place: Path, columns: str, *epochs: list[Any], **settings: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [{"in": rows} for rows in epochs], source_tasks=1, **settings)


def rows_of(path: Path) -> list[Mapping[str, Any]]:
    """What is in the table, as three readers agree; DuckDB reads through Arrow (`test_tables_in_duckdb.py` without)."""
    table = DeltaTable(path)
    found = table.to_pyarrow_table().to_pylist()
    by_duckdb = duckdb.from_arrow(table.to_pyarrow_dataset()).to_arrow_table().to_pylist()
    for other in (polars.read_delta(str(path)).to_dicts(), by_duckdb):
        assert sorted(map(repr, other)) == sorted(map(repr, found))
    return found  # type: ignore[no-any-return]


def words(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows_of(path))


def test_an_epoch_is_one_version_of_the_table(tmp_path: Path) -> None:
    run(DeltaSink(tmp_path / "t", create_table=True), tmp_path, COUNTS, [("kelp", 1), ("rock", 1)], [], [("kelp", 2)])
    assert words(tmp_path / "t") == [("kelp", 1), ("kelp", 2), ("rock", 1)]
    assert DeltaTable(tmp_path / "t").version() == 2
    assert sorted(file.name for file in (tmp_path / "t").iterdir()) == ["_delta_log", "_holdfast", "data"]


@pytest.mark.parametrize("name", ["sea grass", "Möwe", "50%", "a#b?c", "{k}*'\"", "~k", "c:d"])
@pytest.mark.parametrize("is_uri", [False, True])
def test_a_table_may_be_in_a_directory_of_a_strange_name(tmp_path: Path, name: str, is_uri: bool) -> None:
    place = tmp_path / name / "t"
    run(DeltaSink(place.as_uri() if is_uri else place, create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    assert DeltaTable(place).to_pyarrow_table().to_pylist() == [{"word": "kelp", "n": 1}]
    assert [found.name for found in tmp_path.iterdir() if found.name != "job"] == [name]


@pytest.mark.parametrize("name", ["sea%20grass", "a[b]", "a\\b", "a^b", "a|b", "a\nb", "a\x7fb"])
def test_a_directory_that_the_client_takes_for_another_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot open the directory"):
        DeltaSink(tmp_path / name / "t")
    with pytest.raises(ConfigurationError, match="cannot open the directory"):
        DeltaSink((tmp_path / name / "t").as_uri())


def test_partitions_of_every_type_and_of_strange_names(tmp_path: Path) -> None:
    columns = "word string, day date, flag boolean, m int, n bigint"
    day = datetime.date(2026, 11, 24)
    rows = [
        ("kelp", day, True, -1, 1), ("a/b c%=é?#", day, None, 2, 2), (None, None, False, None, 3),
        ("kelp", day, True, -1, 4), ("..", None, None, None, 5), ("__HIVE_DEFAULT_PARTITION__", None, None, None, 6),
    ]  # fmt: skip
    sink = DeltaSink(tmp_path / "t", partition_by=["word", "day", "flag", "m"], create_table=True)
    run(sink, tmp_path, columns, rows)
    assert sorted((tuple(row.values()) for row in rows_of(tmp_path / "t")), key=lambda row: row[4]) == rows
    assert DeltaTable(tmp_path / "t").to_pyarrow_table(filters=[("word", "=", "kelp")]).num_rows == 2


def test_the_last_row_of_a_key_is_merged_and_kinds_delete(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", key="word", row_kind="kind", create_table=True)
    run(
        sink, tmp_path, CHANGES,
        [("kelp", 1, "+I"), ("rock", 1, "+I"), ("kelp", 2, "+U"), ("sand", 1, "+I"), ("sand", 1, "-D")],
        [("kelp", 2, "-U"), ("kelp", 3, "+U"), ("rock", 1, "-D"), ("nobody", 1, "-D"), ("stone", None, "+I")],
    )  # fmt: skip
    assert sorted(map(repr, words(tmp_path / "t"))) == ["('kelp', 3)", "('stone', None)"]


@pytest.mark.parametrize("key", ["", "word"])
def test_a_handle_that_became_stale_commits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Two leaders look at one version and both find their epoch missing; the second must look again."""
    sink, place = DeltaSink(tmp_path / "t", key=[key] if key else (), create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    entries = stage.write(1, [("kelp", 1)])
    looked = DeltaTable.transaction_version
    answers = []

    def look_and_be_overtaken(table: DeltaTable, application: str) -> int | None:
        answer = looked(table, application)
        if not answers:
            answers.append(answer)
            stage.commit(entries, is_recovered=True)
        return answer

    monkeypatch.setattr(DeltaTable, "transaction_version", look_and_be_overtaken)
    stage.commit(entries, is_recovered=True)
    assert answers == [None] and words(tmp_path / "t") == [("kelp", 1)]
    assert DeltaTable(tmp_path / "t").version() == 1


def test_others_may_write_between_look_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, place = DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    looked = DeltaTable.transaction_version

    def look_and_be_overtaken(table: DeltaTable, application: str) -> int | None:
        answer = looked(table, application)
        write_deltalake(tmp_path / "t", pa.table({"word": ["other"], "n": [0]}), mode="append")
        return answer

    monkeypatch.setattr(DeltaTable, "transaction_version", look_and_be_overtaken)
    for epoch in (1, 2):
        stage.commit(stage.write(epoch, [("kelp", epoch)]))
    assert [row for row in words(tmp_path / "t") if row[0] == "kelp"] == [("kelp", 1), ("kelp", 2)]


def test_others_may_change_the_table_between_look_and_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge has read what the others have changed, so it is refused and done anew on what is there now."""
    stage = prepared(DeltaSink(tmp_path / "t", key="word", create_table=True), tmp_path / "staged")
    stage.commit(stage.write(1, [("kelp", 1), ("rock", 1)]))
    looked, overtaken = DeltaTable.transaction_version, []

    def look_and_be_overtaken(table: DeltaTable, application: str) -> int | None:
        answer = looked(table, application)
        if len(overtaken) < 2:
            others = (
                lambda: write_deltalake(tmp_path / "t", pa.table({"word": ["other"], "n": [0]}), mode="append"),
                lambda: DeltaTable(tmp_path / "t").delete("word = 'rock'"),
            )
            overtaken.append(others[len(overtaken)]())
        return answer

    monkeypatch.setattr(DeltaTable, "transaction_version", look_and_be_overtaken)
    stage.commit(stage.write(2, [("kelp", 2), ("sand", 2)]), is_recovered=True)
    assert len(overtaken) == 2
    assert words(tmp_path / "t") == [("kelp", 2), ("other", 0), ("sand", 2)]


@pytest.mark.parametrize("key", ["", "word"])
def test_an_answer_that_is_lost_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    stage = prepared(DeltaSink(tmp_path / "t", key=[key] if key else (), create_table=True), tmp_path / "staged")
    place: Any = TableMerger if key else DeltaTable
    name = "execute" if key else "create_write_transaction"
    write, lost = getattr(place, name), []

    def lose(*arguments: Any, **settings: Any) -> Any:
        write(*arguments, **settings)
        lost.append(True)
        raise OSError("the answer is lost")

    monkeypatch.setattr(place, name, lose)
    for epoch in (1, 2):
        entries = stage.write(epoch, [("kelp", epoch)])
        stage.commit(entries)
        stage.commit(entries, is_recovered=True)
    assert len(lost) == 2
    assert words(tmp_path / "t") == ([("kelp", 2)] if key else [("kelp", 1), ("kelp", 2)])


@pytest.mark.parametrize("key", ["", "word"])
def test_the_number_outlives_compaction_clean_up_of_the_log_and_vacuum(tmp_path: Path, key: str) -> None:
    stage = prepared(DeltaSink(tmp_path / "t", key=[key] if key else (), create_table=True), tmp_path / "staged")
    table = DeltaTable(tmp_path / "t")
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    epochs = [stage.write(epoch, [("kelp", epoch)]) for epoch in (1, 2, 3, 4)]
    for entries in epochs[:3]:
        stage.commit(entries)
    table = DeltaTable(tmp_path / "t")
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    log = sorted(file.name for file in (tmp_path / "t" / "_delta_log").glob("*.json"))
    assert f"{1:020d}.json" not in log, "the versions of the first epochs are gone, what they said is not"
    for entries in epochs[:3]:
        stage.commit(entries, is_recovered=True)
    stage.commit(epochs[3])
    assert words(tmp_path / "t") == [("kelp", epoch) for epoch in ([4] if key else [1, 2, 3, 4])]


def test_versions_of_the_log_and_their_checkpoints_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = prepared(DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged")
    DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.checkpointInterval": "2"})
    durable = []
    synced = LocalFileSystem.make_durable
    monkeypatch.setattr(
        LocalFileSystem, "make_durable", lambda fs, path: durable.append(Path(path)) or synced(fs, path)
    )
    for epoch in (1, 2, 3, 4):
        stage.commit(stage.write(epoch, [("kelp", epoch)]))
    log = tmp_path / "t" / "_delta_log"
    ours = {file for file in log.glob("0*") if int(file.name.partition(".")[0]) > 1}  # before are the test's own
    assert len([file for file in ours if file.name.endswith(".checkpoint.parquet")]) == 2
    assert ours <= set(durable)
    assert set((tmp_path / "t").glob("data/**/*.parquet")) < set(durable)


def test_a_file_that_is_gone_or_cut_is_refused_before_it_breaks_the_table(tmp_path: Path) -> None:
    sink, place = DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    stage.commit(stage.write(1, [("kelp", 1)]))
    for epoch, damage in ((2, lambda file: file.unlink()), (3, lambda file: file.write_bytes(b"PAR1"))):
        entries = stage.write(epoch, [("kelp", epoch)])
        file = tmp_path / "t" / entries[0]["value"]["staged"]
        whole = file.read_bytes()
        damage(file)
        with pytest.raises(ConfigurationError, match=r"is missing, and|has 4 bytes instead of"):
            stage.commit(entries)
        assert words(tmp_path / "t")[-1] == ("kelp", epoch - 1)
        file.write_bytes(whole)
        stage.commit(entries, is_recovered=True)
        assert words(tmp_path / "t")[-1] == ("kelp", epoch)


def test_vacuum_leaves_alone_what_is_staged_and_a_table_keeps_its_files_when_the_job_sweeps(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", create_table=True)
    fault.install("before:sink.commit:3=raise")
    with pytest.raises(JobExecutionError):
        run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)], [("kelp", 3)])
    fault.clear()
    table = DeltaTable(tmp_path / "t")
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)], [("kelp", 3)])
    stage = SinkStage(sink, tmp_path, COUNTS, incarnation=incarnation_of(tmp_path / "t"))
    assert stage.sweep(lambda name: True) == 0
    assert words(tmp_path / "t") == [("kelp", 1), ("kelp", 2), ("kelp", 3)]


def test_what_failed_attempts_have_staged_is_swept(tmp_path: Path) -> None:
    sink, place = DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    stage.write(1, [("failed", 1)], attempt=1)
    stage.commit(stage.write(1, [("kelp", 1)], attempt=2))
    assert stage.sweep(lambda name: name.attempt == 1) == 1
    assert words(tmp_path / "t") == [("kelp", 1)]


def test_columns_are_added_when_that_is_asked_for(tmp_path: Path) -> None:
    run(DeltaSink(tmp_path / "t", create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    wider = "word string, n bigint, place string"
    rows = [("kelp", 1, "x")], [("rock", 2, "sea")]
    with pytest.raises(ConfigurationError, match=r"has no columns \['place'\].*add_columns=True"):
        run(DeltaSink(tmp_path / "t"), tmp_path, wider, *rows)
    run(DeltaSink(tmp_path / "t", add_columns=True), tmp_path, wider, *rows)
    run(DeltaSink(tmp_path / "t"), tmp_path, COUNTS, [], [], [("sand", 3)])
    assert words(tmp_path / "t") == [("kelp", 1, None), ("rock", 2, "sea"), ("sand", 3, None)]


def test_columns_are_added_to_a_table_with_a_key_that_is_partitioned(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"key": "word", "partition_by": "n"}
    run(DeltaSink(tmp_path / "t", create_table=True, **settings), tmp_path, COUNTS, [("kelp", 1), ("rock", 1)])
    wider = "word string, n bigint, place string"
    rows = [("kelp", 1, "x"), ("rock", 1, "x")], [("rock", 2, "sea"), ("sand", 1, "sky")]
    run(DeltaSink(tmp_path / "t", add_columns=True, **settings), tmp_path, wider, *rows)
    assert words(tmp_path / "t") == [("kelp", 1, None), ("rock", 2, "sea"), ("sand", 1, "sky")]


@pytest.mark.parametrize(
    ("schema", "properties", "message"),
    [
        ([("word", pa.string()), ("n", pa.int32())], {}, "'n' of the Delta table .* is integer.*the stream is long"),
        ([("word", pa.string()), ("n", pa.int64()), pa.field("id", pa.int64(), False)], {}, "needs values for"),
        (None, {"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets which epochs were committed"),
        (None, {"delta.constraints.positive": "n > 0"}, "rules that DeltaSink cannot keep: delta.constraints.positive"),
        (None, {"delta.columnMapping.mode": "name"}, "delta.columnMapping.mode|column mapping|columnMapping"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, schema: Any, properties: dict[str, str], message: str
) -> None:
    schema = pa.schema(schema or [("word", pa.string()), ("n", pa.int64())])
    DeltaTable.create(tmp_path / "t", Schema.from_arrow(schema))
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.get("metaData", {}).get("configuration", {}).update(properties)
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ConfigurationError, match=message):
        run(DeltaSink(tmp_path / "t"), tmp_path, COUNTS, [("kelp", 1)])


def test_a_row_without_a_value_that_the_table_needs_is_refused_before_it_is_staged(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("word", pa.string(), False), ("n", pa.int64())])
    DeltaTable.create(tmp_path / "t", Schema.from_arrow(schema))
    with pytest.raises(JobExecutionError, match="'word' is null; the table requires it"):
        run(DeltaSink(tmp_path / "t"), tmp_path, COUNTS, [("kelp", 1)], [(None, 2)])
    assert words(tmp_path / "t") == [("kelp", 1)]


def test_another_table_in_the_place_of_the_known_one_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", create_table=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1)])
    (tmp_path / "t").rename(tmp_path / "old")
    with pytest.raises(JobExecutionError, match=r"no Delta table at .*not mounted"):
        run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    assert not (tmp_path / "t").exists()
    DeltaTable.create(tmp_path / "t", Schema.from_arrow(pa.schema([("word", pa.string()), ("n", pa.int64())])))
    with pytest.raises(JobExecutionError, match="is not the one that the job writes into"):
        run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])


def test_a_job_directory_that_was_put_back_is_refused(tmp_path: Path) -> None:
    sink, place = DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    stage.commit(stage.write(3, [("kelp", 3)]))
    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        stage.commit(stage.write(3, [("rock", 3)]))
    assert words(tmp_path / "t") == [("kelp", 3)]


@pytest.mark.parametrize(
    "changed",
    [{"staged": "../x.staged"}, {"staged": "/etc/x"}, {"path": "relative"}, {"identity": None}, {"bytes": "1"}],
)
def test_committables_that_somebody_changed_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    sink, place = DeltaSink(tmp_path / "t", create_table=True), tmp_path / "staged"
    place.mkdir()
    stage = prepared(sink, place)
    [entry] = stage.write(1, [("kelp", 1)])
    with pytest.raises(ConfigurationError, match="no DeltaSink can have written"):
        stage.commit([{**entry, "value": {**entry["value"], **changed}}])


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (COUNTS, {"partition_by": "nothing"}, "'nothing', which is no column of the stream"),
        ("word string, x double", {"partition_by": "x"}, "'x', which is double"),
        (COUNTS, {"key": "id"}, "'id', but the elements"),
        (None, {}, "was not declared"),
    ],
)
def test_a_stream_that_does_not_go_with_the_sink_is_refused(
    tmp_path: Path, columns: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EpochProgram().source("in", columns).sink_to(DeltaSink(tmp_path / "t", **settings))
    with pytest.raises(ConfigurationError, match="No file system for scheme 'gs'"):
        DeltaSink("gs://bucket/t")


def prepared(sink: DeltaSink, staging: Path) -> SinkStage:
    staging.mkdir(exist_ok=True)
    stage = SinkStage(sink, staging, COUNTS, incarnation=INCARNATION)
    sink.check_input(stage.type)
    stage.prepare()
    return stage


def incarnation_of(path: Path) -> str:
    [folder] = [place for place in (path / "_holdfast").iterdir() if place.is_dir()]
    return folder.name.rpartition("-")[0]
