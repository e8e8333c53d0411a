"""`holdfast replay` of checkpoints that it cannot continue."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import main
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import Rows, counted, numbers, until


def test_a_checkpoint_that_only_a_real_time_job_can_continue_is_refused(tmp_path: Path) -> None:
    found = Rows()
    program = RealTimeProgram()
    counted(numbers(program, 500), found)
    client = JobClient(program.master(tmp_path / "job"))
    until(lambda: len(found) > 100)
    client.trigger_checkpoint().result(60)
    client.cancel()
    checkpoints = sorted((tmp_path / "job").rglob("chk-*"), key=lambda path: int(path.name[4:]))
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit('the program runs')")
    result = CliRunner().invoke(main, ["replay", str(checkpoints[-1]), str(script)])
    assert result.exit_code == 2
    assert "only a real-time job can continue 'numbers' from" in result.output
    assert "the program runs" not in result.output
