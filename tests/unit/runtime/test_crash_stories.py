"""A whole job without a JVM, killed at every fault point: the output is as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories import ledger, tidiness
from tests.stories.process import run

EPOCHS, ROWS, ACCOUNTS, SEED = 4, 40, 7, 1
POINTS = ("run.write", "metadata.write", "pointer.write", "sink.stage", "sink.commit", "notify")


def payments() -> list[list[tuple[int, str, int]]]:
    return ledger.payments(EPOCHS, ROWS, ACCOUNTS, SEED)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_fault_point_and_run_again(tmp_path: Path, point: str, moment: str) -> None:
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    first = run("epoch_job.py", checkpoints, output, fault=f"{moment}:{point}:3=kill")
    assert first.was_killed, first.output
    second = run("epoch_job.py", checkpoints, output)
    assert second.code == 0, second.output
    ledger.audit(output, payments(), two_stages=True)


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_killed_while_it_deletes_subsumed_checkpoints_and_run_again(tmp_path: Path, moment: str) -> None:
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    one = ("-D", "execution.checkpointing.num-retained=1")
    first = run("epoch_job.py", checkpoints, output, *one, fault=f"{moment}:subsume.delete:2=kill")
    assert first.was_killed, first.output
    second = run("epoch_job.py", checkpoints, output, *one)
    assert second.code == 0, second.output
    ledger.audit(output, payments(), two_stages=True)
    tidiness.inspect(checkpoints, "ledger", outputs=(output,))


@pytest.mark.parametrize("point", POINTS)
def test_an_answer_that_is_lost_leads_to_a_restart_in_the_same_process(tmp_path: Path, point: str) -> None:
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    strategy = (
        "-D",
        "restart-strategy.type=fixed-delay",
        "-D",
        "restart-strategy.fixed-delay.attempts=3",
        "-D",
        "restart-strategy.fixed-delay.delay=1 ms",
    )
    ended = run("epoch_job.py", checkpoints, output, *strategy, fault=f"lost:{point}:2=raise")
    assert ended.code == 0, ended.output
    ledger.audit(output, payments(), two_stages=True)


@pytest.mark.parametrize("point", ["run.write", "metadata.write", "pointer.write", "sink.stage"])
def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path, point: str) -> None:
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    first = run("epoch_job.py", checkpoints, output, fault=f"before:{point}:3=enospc")
    assert first.code == 1
    assert "StorageError" in first.output and "No space left" in first.output
    second = run("epoch_job.py", checkpoints, output)
    assert second.code == 0, second.output
    ledger.audit(output, payments(), two_stages=True)


def test_killed_again_and_again_the_job_has_the_right_result(tmp_path: Path) -> None:
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "out"
    faults = [
        "after:pointer.write:1=kill",
        "before:sink.commit:1=kill",
        "after:metadata.write:1=kill",
        "before:pointer.write:1=kill",
        "after:run.write:5=kill",
    ]
    for fault in faults:
        assert run("epoch_job.py", checkpoints, output, fault=fault).was_killed
    assert run("epoch_job.py", checkpoints, output).code == 0
    ledger.audit(output, payments(), two_stages=True)
