"""A submitted job that has ended is not run again by a process that does not know it, and one submitted anew is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_master import JobMaster
from tests.stories.local import Program, master

FIRST, SECOND = "1" * 32, "2" * 32


class Stop:
    """Ends a job in its second epoch."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.job: JobMaster | None = None

    def __call__(self, stage: int, partition: int) -> None:
        assert self.job is not None
        if self.job.attempt is not None and self.job.attempt.epoch == 2:
            if self.how == "cancel":
                self.job.control.cancel()
            else:
                self.job.control.is_interrupted = self.how == "signal"
                self.job.control.stop()


def run(tmp_path: Path, submission: str, how: str | None = None, epochs: int = 3) -> tuple[JobStatus, list[int]]:
    """Runs a process of the job; returns how it ended and what it has put out."""
    program, seen = Program(), []
    rows = program.source("numbers", "n bigint").map(lambda row: (row.n,), output_type="n bigint").uid("narrow")
    rows.for_each_epoch(lambda table, epoch: seen.extend(table["n"].to_pylist())).uid("sink")
    stop = Stop(how or "")
    settings: dict[str, Any] = {} if how is None else {"interceptor": stop}
    inputs = [{"numbers": [(n,)]} for n in range(epochs)]
    stop.job = job = master(program, tmp_path, inputs, {"high-availability.submission": submission}, **settings)
    return job.run(), seen


@pytest.mark.parametrize(("how", "status"), [("cancel", JobStatus.CANCELED), ("stop", JobStatus.SUSPENDED)])
def test_a_job_that_has_ended_since_its_submission_is_not_run_again(
    tmp_path: Path, how: str, status: JobStatus
) -> None:
    assert run(tmp_path, FIRST, how) == (status, [0, 1])
    # The job manager has died before it heard of it; the process of the next one is told so by the job's directory.
    assert run(tmp_path, FIRST) == (status, [])


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_a_job_submitted_again_resumes(tmp_path: Path, how: str) -> None:
    run(tmp_path, FIRST, how)
    assert run(tmp_path, SECOND) == (JobStatus.SUSPENDED, [2])
    (directory,) = tmp_path.iterdir()
    names = {path.name for path in directory.glob("submission-*")}
    assert names == {f"submission-{SECOND}", f"submission-{SECOND}.stopped"}, "nothing is left of the first one"


def test_a_process_that_was_asked_to_end_is_succeeded(tmp_path: Path) -> None:
    assert run(tmp_path, FIRST, "signal") == (JobStatus.SUSPENDED, [0, 1])
    assert run(tmp_path, FIRST) == (JobStatus.SUSPENDED, [2])


def test_a_name_that_no_job_manager_gives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set by job managers only"):
        run(tmp_path, "../../elsewhere")
