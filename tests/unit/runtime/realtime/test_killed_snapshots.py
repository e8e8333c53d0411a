"""A real-time process dies while a snapshot becomes durable beside its records: the next one has each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.programs.real_time_job import ROWS, rows_in
from tests.stories.process import run
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS


def each_row_once(place: Path) -> None:
    wanted = Counter(n % KEYS for n in range(ROWS))
    assert rows_in(place / "out") == [(key, n) for key in range(KEYS) for n in range(1, wanted[key] + 1)]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_at_a_file_of_state(tmp_path: Path, moment: str, number: int) -> None:
    first = run("real_time_job.py", tmp_path, fault=f"{moment}:run.write:{number}=kill")
    assert first.was_killed, first.output
    second = run("real_time_job.py", tmp_path)
    assert second.code == 0, second.output
    each_row_once(tmp_path)


@pytest.mark.parametrize("fault", ["lost:run.write:2=raise", "lost:run.write:1=raise,lost:run.write:6=raise"])
def test_a_task_that_never_hears_that_a_file_was_written(tmp_path: Path, fault: str) -> None:
    ended = run("real_time_job.py", tmp_path, fault=fault)
    assert ended.code == 0, ended.output
    each_row_once(tmp_path)
