"""The jobs of demos: followed until they end, and killed with all their processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli import demo_job
from holdfast.cli.demo_job import CommittedRows, DemoJob
from holdfast.errors import JobExecutionError
from tests.stories.cluster import is_gone


def python(tmp_path: Path, program: str) -> DemoJob:
    return DemoJob([sys.executable, "-c", program], tmp_path / "log", tmp_path)


def test_committed_rows_are_counted_once_a_file(tmp_path: Path) -> None:
    committed = CommittedRows(tmp_path)
    assert committed.count() == 0
    (tmp_path / "day=1").mkdir()
    for number in (1, 2):
        pq.write_table(pa.table({"n": [number, number]}), tmp_path / "day=1" / f"{number}.parquet")
        assert committed.count() == 2 * number


def test_a_job_is_followed_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "1.parquet")
    with python(tmp_path, "print('kelp')") as job:
        assert set(job.follow(CommittedRows(tmp_path), 4)) == {3}
        job.require_success()
    assert capsys.readouterr().out.startswith("           3 of 4 rows are committed, ")


def test_a_job_is_killed_with_its_children_when_the_block_ends(tmp_path: Path) -> None:
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.close()"
    with python(tmp_path, f"{child}\nimport time; time.sleep(60)") as job:
        job.wait_until(lambda: (tmp_path / "log").read_text().strip(), "its child was there")
        process = int((tmp_path / "log").read_text())
        assert not is_gone(process)
    assert job.exit_code == -9
    deadline = time.monotonic() + 10
    while not is_gone(process):
        assert time.monotonic() < deadline


def test_errors_have_the_end_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with python(tmp_path, "print('first'); print('last'); raise SystemExit(4)") as job:
        with pytest.raises(JobExecutionError, match=r"(?s)failed with exit code 4\..*\nfirst\nlast$"):
            job.require_success()
        with pytest.raises(
            JobExecutionError, match=r"ended \(exit code 4\) before half was there\. The end of its log"
        ):
            job.wait_until(lambda: False, "half was there")
        job.wait_until(lambda: True, "what is true although it has ended")
    monkeypatch.setattr(demo_job, "_LONGEST_RUN", 0.2)
    with python(tmp_path, "import time; time.sleep(60)") as job:
        with pytest.raises(JobExecutionError, match=r"runs for 0 s, and still not: half was there\."):
            job.wait_until(lambda: False, "half was there")
        with pytest.raises(JobExecutionError, match=r"has not ended after 0 s"):
            list(job.follow(CommittedRows(tmp_path), 1))
        with pytest.raises(JobExecutionError, match=r"has not ended after 0 s"):
            job.require_success()
