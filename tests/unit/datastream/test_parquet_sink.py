"""Rows of an epoch are visible to no reader before its checkpoint is complete, and exactly once after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel import fault
from holdfast.runtime.function import sink as staging_module
from holdfast.storage.job_directory import FileName
from holdfast.testing.sink_contract import SinkStage as Stage


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def stage(out: Path, tmp_path: Path) -> Stage:
    return Stage(ParquetFileSink(out), tmp_path / "taskowned")


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def seen_by_readers(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What each kind of reader sees in the output directory."""
    files = sorted(out.glob("**/*.parquet"))
    by_glob = [tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    by_dataset = [tuple(row.values()) for row in ds.dataset(out, format="parquet").to_table().to_pylist()]
    by_duckdb: list[tuple[Any, ...]] = []
    if files:
        by_duckdb = duckdb.sql(f"select * from '{out}/**/*.parquet'").fetchall()
    return {"glob": sorted(by_glob), "dataset": sorted(by_dataset), "duckdb": sorted(by_duckdb)}


def everybody_sees(out: Path, rows: list[tuple[Any, ...]]) -> None:
    assert seen_by_readers(out) == dict.fromkeys(("glob", "dataset", "duckdb"), sorted(rows))


def test_nothing_is_visible_before_the_commit_and_everything_after_it(stage: Stage, out: Path) -> None:
    committables = stage.write(1, [("kelp", 1), ("rock", 2)]) + stage.write(1, [("sand", 3)], subtask=1)
    everybody_sees(out, [])

    stage.commit(committables)

    everybody_sees(out, [("kelp", 1), ("rock", 2), ("sand", 3)])
    assert [path.name[:21] for path in sorted(out.glob("*.parquet"))] == [
        "part-000000001-00000-",
        "part-000000001-00001-",
    ]


def test_a_subtask_without_rows_stages_nothing(stage: Stage, out: Path) -> None:
    assert stage.write(1, []) == []
    assert not out.exists()


def test_committing_again_for_ever_changes_nothing(stage: Stage, out: Path) -> None:
    first = stage.write(1, [("kelp", 1)])
    second = stage.write(2, [("rock", 2)])
    stage.commit(first)
    for _ in range(3):
        stage.commit(first + second)

    everybody_sees(out, [("kelp", 1), ("rock", 2)])
    assert list(out.glob(".holdfast/*/*")) == []


def test_a_crash_between_the_two_halves_of_the_move_is_repaired(stage: Stage, out: Path) -> None:
    (committable,) = stage.write(1, [("kelp", 1)])
    os.link(out / committable["value"]["staged"], out / committable["value"]["final"])

    stage.commit([committable])

    everybody_sees(out, [("kelp", 1)])
    assert list(out.glob(".holdfast/*/*")) == []


def test_an_epoch_that_ran_twice_shows_the_attempt_that_the_checkpoint_names(stage: Stage, out: Path) -> None:
    stage.write(1, [("lost", 1)], attempt=1)
    stage.commit(stage.write(1, [("kelp", 1)], attempt=2))

    everybody_sees(out, [("kelp", 1)])


def test_a_file_that_is_missing_in_the_first_commit_of_its_epoch_is_an_error_that_names_it(
    stage: Stage, out: Path
) -> None:
    """Nobody can have committed it yet: the driver sees another disk than the task, or somebody has deleted it."""
    (committable,) = stage.write(1, [("kelp", 1)])
    (out / committable["value"]["staged"]).unlink()

    with pytest.raises(ConfigurationError, match=r"has staged 1 rows in .* the directory is not shared") as caught:
        stage.commit([committable])

    assert committable["value"]["staged"] in str(caught.value)


def test_what_a_consumer_has_taken_since_it_was_committed_does_not_stop_a_recovery(
    stage: Stage, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stage.write(1, [("kelp", 1)]), stage.write(2, [("rock", 2)])
    stage.commit(first)
    (out / first[0]["value"]["final"]).unlink()

    report = stage.commit(first + second, is_recovered=True)

    assert report.committed == 2
    everybody_sees(out, [("rock", 2)])
    assert first[0]["value"]["final"] in caplog.text


def test_what_was_staged_for_another_directory_is_committed_there(tmp_path: Path) -> None:
    before = Stage(ParquetFileSink(tmp_path / "before"), tmp_path / "taskowned")
    committables = before.write(1, [("kelp", 1)])

    Stage(ParquetFileSink(tmp_path / "after"), tmp_path / "taskowned").commit(committables)

    everybody_sees(tmp_path / "before", [("kelp", 1)])


def test_only_staged_files_of_dead_attempts_are_swept(stage: Stage, out: Path) -> None:
    stage.write(1, [("dead", 1)], attempt=1)
    alive = stage.write(1, [("kelp", 1)], attempt=2)
    (out / ".holdfast" / "notes.txt").write_text("of somebody else")

    assert stage.sweep(lambda name: name.attempt == 1) == 1
    assert stage.sweep(lambda name: name.attempt == 1) == 0
    stage.commit(alive)

    everybody_sees(out, [("kelp", 1)])


def test_the_staged_name_tells_token_epoch_attempt_and_subtask(stage: Stage) -> None:
    (committable,) = stage.write(3, [("kelp", 1)], subtask=1, attempt=2)
    name = FileName.parse(Path(committable["value"]["staged"]).name)
    assert name is not None
    assert (name.token, name.epoch, name.attempt, name.subtask) == (1, 3, 2, 1)
    assert committable["value"]["final"].endswith(f"-{name.nonce}.parquet")


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_writer_that_fails_while_it_stages_leaves_nothing_that_could_be_committed(
    stage: Stage, out: Path, moment: str
) -> None:
    fault.install(f"{moment}:sink.stage=raise")
    with pytest.raises(fault.FaultInjectedError):
        stage.write(1, [("kelp", 1)])
    fault.clear()

    stage.commit(stage.write(1, [("kelp", 1)], attempt=2))

    everybody_sees(out, [("kelp", 1)])


def test_a_full_disk_while_staging_says_so_and_leaves_no_file(stage: Stage, out: Path) -> None:
    fault.install("before:sink.stage=enospc")
    with pytest.raises(StorageError, match="disk is full"):
        stage.write(1, [("kelp", 1)])
    assert [path for path in out.glob("**/*") if path.is_file()] == []


def test_an_aborted_writer_removes_what_it_has_written(stage: Stage, out: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(staging_module, "ROW_GROUP_ROWS", 1)
    writer: Any = stage.sink.create_writer(stage.context(1))
    writer.write_batch(_batch(stage, [("kelp", 1)]))
    assert [path for path in out.glob("**/*") if path.is_file()] != []
    writer.abort()
    writer.abort()

    assert [path for path in out.glob("**/*") if path.is_file()] == []


def test_rows_are_written_in_row_groups_as_they_fill(stage: Stage, out: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(staging_module, "ROW_GROUP_ROWS", 4)
    rows = [(f"word{n}", n) for n in range(10)]
    stage.commit(stage.write(1, rows))

    (file,) = out.glob("*.parquet")
    assert [pq.ParquetFile(file).metadata.row_group(i).num_rows for i in range(3)] == [4, 4, 2]
    everybody_sees(out, rows)


def test_a_driver_that_is_killed_while_it_commits_leaves_work_that_the_next_one_finishes(
    stage: Stage, out: Path, tmp_path: Path
) -> None:
    committables = [c for epoch in (1, 2, 3) for c in stage.write(epoch, [("kelp", epoch)])]
    program = (
        "import sys, json; from pathlib import Path; from holdfast.datastream import ParquetFileSink\n"
        "from holdfast.testing.sink_contract import SinkStage as Stage\n"
        "out, staging, committables = sys.argv[1:]\n"
        "Stage(ParquetFileSink(out), Path(staging)).commit(json.loads(committables))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(out), str(stage.staging), json.dumps(committables)],
        env={**os.environ, "HOLDFAST_FAULT": "before:sink.commit:2=kill", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    everybody_sees(out, [("kelp", 1)])

    stage.commit(committables)

    everybody_sees(out, [("kelp", 1), ("kelp", 2), ("kelp", 3)])


def test_settings_that_cannot_work_are_refused_where_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No file system for scheme 'gopher'"):
        ParquetFileSink("gopher://host/out")
    with pytest.raises(ConfigurationError, match="snappy, zstd, lz4, gzip or none, not 'brotli'"):
        ParquetFileSink(tmp_path, compression="brotli")


def test_a_relative_path_is_that_of_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert ParquetFileSink("out").path == str(tmp_path / "out")


@pytest.mark.parametrize("compression", ["snappy", "zstd", "lz4", "gzip", "none"])
def test_every_compression_is_readable(tmp_path: Path, compression: str) -> None:
    stage = Stage(ParquetFileSink(tmp_path / "out", compression=compression, use_dictionary=["word"]), tmp_path)
    stage.commit(stage.write(1, [("kelp", 1)]))
    everybody_sees(tmp_path / "out", [("kelp", 1)])


def _batch(stage: Stage, rows: list[tuple[Any, ...]]) -> Any:
    from holdfast.types.arrow import elements_to_batch

    return elements_to_batch(rows, stage.type, "out")
