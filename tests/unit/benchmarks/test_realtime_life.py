"""The pieces of the benchmark of the life of real-time jobs that need no job."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import realtime_life
from benchmarks.harness.realtime_run import LatencyFile
from benchmarks.harness.warm_process import end_session


def test_the_longest_pause_is_found_also_at_the_begin_and_the_end() -> None:
    assert realtime_life.longest_pause([3.0, 1.0, 1.5], 0.0, 3.5) == (1.5, 3.0)
    assert realtime_life.longest_pause([4.0], 0.0, 5.0) == (0.0, 4.0)
    assert realtime_life.longest_pause([], 2.0, 5.0) == (2.0, 5.0)


def test_rows_count_from_the_kill_on(tmp_path: Path) -> None:
    file = LatencyFile(str(tmp_path), "task-0")
    file.record_all([1, 2], 3_000_000)
    file.record_all([3], 7_500_000)
    file.close()
    assert realtime_life.seen_since(tmp_path, 5.0) == [7.5]


def test_executors_are_the_jvms_of_the_session_and_not_what_starts_them(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
    program = "import subprocess, sys, time\nif sys.argv[2:]: subprocess.Popen(sys.argv[2:])\ntime.sleep(60)"
    executor = [str(java), "-c", program, backend]
    process = subprocess.Popen([sys.executable, "-c", program, "x", *executor], start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not (found := realtime_life.executors(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.pid not in found and len(found) == 1
    finally:
        end_session(process.pid)
        process.wait()


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        realtime_life.main(["executor"])
    assert "choose from idle, kills, executors, rescales, memory" in capsys.readouterr().err


def test_memory_is_a_table_with_slopes() -> None:
    samples = [{"measured": "memory", "minute": at, "rows": 10, "jvm": 100 + at} for at in range(13)]
    table = realtime_life.memory_table(samples)
    assert table.splitlines()[0] == "| MB | 0 min | 10 min | end: 12 min | slope, MB an hour |"
    assert "| jvm | 100 | 110 | 112 | +60.0 |" in table
