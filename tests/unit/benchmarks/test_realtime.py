"""The pieces of the real-time benchmark that need no engine: what is sent, what is seen, and when an engine kept up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import realtime
from benchmarks.harness.realtime_outcome import Outcome, judge, newest_created, read_pairs
from benchmarks.harness.realtime_reader import created_in, created_in_line
from benchmarks.harness.realtime_run import PAIR_BYTES, Latencies, LatencyFile, RealTimeRun
from benchmarks.harness.realtime_traffic import FEW
from benchmarks.harness.warm_process import end_session, processor_seconds
from tests.documentation import ROOT

SECOND = 1_000_000
BEGIN = 1_796_025_600 * SECOND
RUN = RealTimeRun("holdfast-real-time", "files", 2_000, 50, "", "", "", "")


def pairs(created: np.ndarray, latency: np.ndarray | int) -> np.ndarray:
    return np.stack([created, created + latency], axis=1)


def events(seconds: float, before: float = 2.0) -> np.ndarray:
    """Creation times of 1,000 events a second, from some seconds before the measured time until its end."""
    return BEGIN + np.arange(-int(before * 1000), int(seconds * 1000)) * 1000


def test_a_run_reaches_the_processes_of_its_engine_unchanged() -> None:
    assert RealTimeRun.from_json(replace(RUN, servers="127.0.0.1:1").to_json()) == replace(RUN, servers="127.0.0.1:1")


def test_latencies_are_those_of_the_events_of_the_measured_time() -> None:
    created = events(6)
    latency = np.where(created < BEGIN, 900_000, 20_000)
    latency[-1] = 250_000
    found = judge(pairs(created, latency), BEGIN, BEGIN + 6 * SECOND)
    assert found.events == 6_000
    assert found.quantiles == (20.0, 20.0, 20.0, 250.0)
    assert found.kept_up


def test_batches_that_are_long_but_equally_long_keep_up() -> None:
    created = events(12)
    seen = (created // (2 * SECOND) + 1) * 2 * SECOND + 300_000
    found = judge(np.stack([created, seen], axis=1), BEGIN, BEGIN + 12 * SECOND)
    assert found.growth == pytest.approx(0, abs=0.05)
    assert found.kept_up
    assert found.quantiles[0] == pytest.approx(1300, abs=10)


def test_an_engine_that_is_too_slow_has_not_kept_up() -> None:
    created = events(12)
    latency = np.maximum(0, (created - BEGIN) // 5)  # it does 5 events in the time of 6
    found = judge(pairs(created, latency), BEGIN, BEGIN + 12 * SECOND)
    assert found.behind == pytest.approx(2, abs=0.05)
    assert found.growth == pytest.approx(4 / 3, abs=0.05)
    assert not found.kept_up


def test_an_engine_that_never_caught_up_with_its_start_has_not_kept_up() -> None:
    found = judge(pairs(events(6, before=30), 12 * SECOND), BEGIN, BEGIN + 6 * SECOND)
    assert (found.growth, round(found.behind)) == (0, 12)
    assert not found.kept_up


def test_an_engine_of_which_nothing_is_seen_has_not_kept_up() -> None:
    found = judge(np.empty((0, 2), np.int64), BEGIN, BEGIN + 6 * SECOND)
    assert (found.events, found.quantiles, found.kept_up) == (0, (), False)


def test_an_engine_that_lost_events_has_no_latencies_in_its_row_unless_it_writes_a_row_a_key() -> None:
    outcome = Outcome(59_000, (3.0, 20.0, 40.0, 60.0), 0.0, 0.0)
    found = realtime.Measurement(RUN, outcome, 60_000, 0.5, 0.9, 1.0)
    assert found.to_row() == (
        "| holdfast-real-time | 2,000 | 59,000 | did not keep up: 0.0 s behind at the end, 1,000 events not seen "
        "| | | | 50% | 90% |"
    )
    assert "p50_ms" not in json.loads(found.to_json())
    by_key = replace(found, run=replace(RUN, engine="spark-group-by"))
    assert by_key.to_row() == "| spark-group-by | 2,000 | 59,000 | 3.0 | 20.0 | 40.0 | 60.0 | 50% | 90% |"
    assert json.loads(by_key.to_json())["p999_ms"] == 40.0


def test_a_producer_that_was_late_is_named() -> None:
    outcome = Outcome(60_000, (3.0, 20.0, 40.0, 60.0), 0.0, 0.0)
    assert realtime.Measurement(RUN, outcome, 60_000, 0.5, 0.9, 99.0).remark() is None
    late = realtime.Measurement(RUN, outcome, 60_000, 0.5, 0.9, 250.0).remark()
    assert late == "holdfast-real-time, 2,000: the producer was late by up to 250 ms"


def test_each_process_has_a_file_of_latencies_and_half_a_pair_does_not_count(tmp_path: Path) -> None:
    class Row:
        created = BEGIN

    sink = Latencies(str(tmp_path))
    assert newest_created(tmp_path) == 0
    sink.open(0, 0)
    sink.process(Row)
    sink.close(None)
    other = LatencyFile(str(tmp_path), "reader")
    other.record_all([BEGIN + 1, BEGIN + 2], BEGIN + 5)
    other.close()
    [path] = tmp_path.glob("reader-*")
    with path.open("ab") as file:
        file.write(bytes(PAIR_BYTES - 1))
    found = read_pairs(tmp_path)
    assert sorted(found[:, 0]) == [BEGIN, BEGIN + 1, BEGIN + 2]
    assert sum(found[:, 1] == BEGIN + 5) == 2
    assert newest_created(tmp_path) == BEGIN + 2


def test_the_creation_time_is_found_in_what_engines_write() -> None:
    assert created_in(b'{"key":7,"count":12,"created":1796025600000000}') == BEGIN
    assert created_in_line(b"2> +U[7, 12, 1796025600000000]") == BEGIN
    assert created_in_line(b"+I[7, 1, 1796025600000000]") == BEGIN
    assert created_in_line(b"2> -U[7, 11, 1796025600000000]") is None
    assert created_in_line(b"WARNING: [something]") is None


def test_files_have_events_at_the_rate_from_the_line_go(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    traffic = realtime.Process(
        ["benchmarks.harness.realtime_traffic", replace(RUN, source=str(source)).to_json()], tmp_path, has_output=True
    )
    try:
        while len(list(source.iterdir())) < 3:
            traffic.require_alive()
            time.sleep(0.01)
        few = [len(path.read_bytes().splitlines()) for path in sorted(source.iterdir())[:3]]
        assert min(few) >= FEW // 20 and max(few) < RUN.rate // 10
        traffic.tell("go")
        begun = time.time()
        time.sleep(1)
        traffic.tell("measure")
    finally:
        said = json.loads(traffic.close())
    took = time.time() - begun
    assert 0.5 * RUN.rate <= said["sent"] <= RUN.rate * took
    lines = [json.loads(line) for path in sorted(source.iterdir()) for line in path.read_bytes().splitlines()]
    assert {line["key"] for line in lines} == set(range(RUN.keys))
    created = [line["created"] for line in lines]
    assert created == sorted(created)


def test_an_engine_that_ends_is_reported_by_its_error(tmp_path: Path) -> None:
    latencies = tmp_path / "latencies"
    latencies.mkdir()
    engine = realtime.Process(["benchmarks.harness.realtime_reader", "no JSON"], tmp_path)
    try:
        with pytest.raises(realtime.EngineError, match="JSONDecodeError"):
            realtime.wait_for_events(engine, None, latencies)
    finally:
        engine.close()


def test_all_processes_of_a_session_are_counted_and_ended() -> None:
    spin = "while True: pass"
    program = f"import os, subprocess, sys\nos.setpgid(0, 0) if len(sys.argv) > 1 else None\n{spin}"
    starter = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {program!r}, 'group'])\n{spin}"
    process = subprocess.Popen([sys.executable, "-c", starter], start_new_session=True)
    try:
        while processor_seconds(process.pid) < 0.5:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        end_session(process.pid)
    process.wait()
    time.sleep(0.1)
    used = processor_seconds(process.pid)
    time.sleep(0.2)
    assert processor_seconds(process.pid) == used


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input files --engines spark-real-time", "there is no engine 'spark-real-time' for files"),
        ("--input generator --engines flink-sql", "there is no engine 'flink-sql' for generator"),
    ],
)
def test_an_engine_that_cannot_read_the_input_is_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        realtime.parse(arguments.split())
    assert message in capsys.readouterr().err


def test_every_engine_has_a_module_and_those_that_need_jars_have_a_lock() -> None:
    for module in set(realtime.MODULES.values()):
        assert (ROOT / "benchmarks" / "realtime_engines" / f"{module}.py").exists()
    for lock in realtime.LOCKS.values():
        assert all(line.startswith("#") or " sha256:" in line for line in lock.read_text().splitlines())
