"""The pieces of the latency benchmark that need no engine: what is paced, and what counts as readable."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.harness import stopwatch
from benchmarks.harness.latency_run import FilePacer, LatencyRun
from benchmarks.latency import Observer, chosen_engines
from tests.documentation import ROOT


def test_files_come_with_events_of_the_time_between_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pacer = FilePacer(source, 1000)
    pacer.start()
    while len(list(source.iterdir())) < 3:
        time.sleep(0.01)
    pacer.stop()
    created = [at for path in sorted(source.iterdir()) for at in pq.read_table(path)["created"].to_pylist()]
    assert created == sorted(created)
    assert len(created) == round(1000 * FilePacer.EVERY) * len(list(source.iterdir()))
    steps = {later - earlier for earlier, later in pairwise(created)}
    assert all(abs(step - 1000) <= 1 for step in steps), "one event a millisecond, across files too"


def test_rows_of_an_epoch_count_when_all_of_it_is_there_and_once(tmp_path: Path) -> None:
    now = int(time.time() * 1e6)
    observer = Observer(tmp_path)
    pq.write_table(pa.table({"created": [now - 50_000]}), tmp_path / "part-1.parquet")
    pq.write_table(pa.table({"created": [now]}), tmp_path / ".unfinished.parquet")
    epoch = tmp_path / "epoch=0"
    epoch.mkdir()
    pq.write_table(pa.table({"created": [now - 70_000]}), epoch / "part-1.parquet")
    observer.look()
    assert len(observer.since(0)) == 1
    (epoch / "_SUCCESS").touch()
    observer.look()
    observer.look()
    ages = observer.since((now - 80_000) / 1e6)
    assert len(ages) == 2
    assert 50 <= min(ages) <= max(ages) < 60_000
    assert len(observer.since((now - 60_000) / 1e6)) == 1


def test_spark_reads_a_topic_only_where_there_is_a_jar() -> None:
    assert chosen_engines("", "kafka", "") == ["holdfast"]
    assert "bare" in chosen_engines("", "kafka", "4.2.0")
    with pytest.raises(SystemExit, match="no engine 'bare' for kafka"):
        chosen_engines("bare", "kafka", "")


def test_a_run_reaches_the_process_of_its_engine_unchanged() -> None:
    run = LatencyRun("bare", "in", "out", "work", servers="127.0.0.1:1")
    assert LatencyRun.from_json(run.to_json()) == run


def test_parts_of_an_epoch_are_medians_after_the_warm_up() -> None:
    durations = {"latestOffset": 3, "getBatch": 1, "walCommit": 4, "queryPlanning": 6, "triggerExecution": 90}
    told = [
        {"at": 5.0, "spark": dict.fromkeys(durations, 1000)},  # while it warmed up
        {"at": 11.0, "spark": durations},
        {"at": 12.0, "spark": {**durations, "latestOffset": 5}},
        {"at": 13.0, "began": 10.0, "holdfast": {"function_ms": 7.0, "commit_ms": 0.5}},
        {"at": 13.0, "job": {"submitted": 9.0, "launched": 9.1, "ended": 9.2}},
        {"at": 13.0, "job": {"submitted": 10.02, "launched": 10.03, "ended": 10.08}},
    ]
    parts = [
        {"part": "accept", "at": 9.3, "ms": 1.0},
        {"part": "accept", "at": 10.09, "ms": 1.0},
        {"part": "run.write", "at": 10.05, "ms": 3.0},
        {"part": "run.write sync", "at": 10.05, "ms": 2.0},
        {"part": "pointer.write", "at": 9.5, "ms": 50.0},
        {"part": "pointer.write", "at": 10.1, "ms": 4.0},
    ]
    assert stopwatch.table(told, parts, begun=9.8) == {
        "input: finding new files or offsets": 5.0,
        "Spark's logs": 4.0,
        "Spark's planning": 6.0,
        "planning the job, including calls into the JVM": 20.0,
        "starting the job, until its first task starts": 10.0,
        "tasks": 50.0,
        "of it: functions and state": 7.0,
        "of it: writing a run": 3.0,
        "of it: the sync of the run": 2.0,
        "barrier: reading and comparing the reports of tasks": 10.0,
        "pointer": 4.0,
        "waiting for commits": 0.5,
        "the whole batch": 90.0,
    }


def test_a_process_that_is_watched_notes_its_writes_and_syncs(tmp_path: Path) -> None:
    program = """
import sys
from benchmarks.harness import stopwatch
from holdfast.kernel import fault
from holdfast.storage.scheme import LocalFileSystem
place, times = sys.argv[1:]
stopwatch.watch(times)
stopwatch.watch(times)
LocalFileSystem().create_exclusive(f"{place}/outside", b"")
with fault.point("run.write"):
    LocalFileSystem().create_exclusive(f"{place}/run", b"content")
"""
    times = tmp_path / "times"
    times.mkdir()
    subprocess.run([sys.executable, "-c", program, tmp_path, times], check=True, cwd=ROOT)
    noted = stopwatch.noted(times)
    assert [note["part"] for note in noted] == ["run.write", "run.write sync"]
    assert 0 < noted[1]["ms"] < noted[0]["ms"]
