"""Programs that end otherwise than one would wish, in the process of a submitted job: what its job manager is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.dispatcher import process as job_process
from holdfast.dispatcher.dispatcher_machine import ProcessOutcome
from holdfast.dispatcher.process import PROGRAM, JobProcess, LocalProcesses, ProcessStart, SpareProcesses
from holdfast.dispatcher.store import SubmittedProgram
from holdfast.errors import ConfigurationError
from holdfast.ha.blob_store import BlobKey
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from tests.stories.process import ROOT

pytestmark = pytest.mark.timeout(120)


def ended(directory: Path, program: str) -> ProcessOutcome:
    (directory / PROGRAM).mkdir()
    (directory / PROGRAM / "job.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-m", "holdfast.cli.job_process"]
    process = JobProcess(command, directory, environment, lambda job: None)
    return process.run(ProcessStart("job.py", (), {}, {}))


@pytest.mark.parametrize(
    ("program", "kind", "message"),
    [
        ("import sys; sys.exit(0)", "ConfigurationError", "ended without executing a job"),
        ("import os; os.close(2); raise ValueError('no standard error')", "ValueError", "no standard error"),
        (
            "class Mute(Exception):\n    def __str__(self): raise KeyError('words')\nraise Mute",
            "Mute",
            "cannot be had: KeyError('words')",
        ),
        ("import os; os._exit(0)", "ProcessDied", "died with exit code 0 before it had executed a job"),
        ("import os; os._exit(7)", "ProcessDied", "died with exit code 7 before it had executed a job"),
    ],
)
def test_a_program_that_cannot_run_says_so_before_it_ends(
    tmp_path: Path, program: str, kind: str, message: str
) -> None:
    outcome = ended(tmp_path, program)
    assert (outcome.status, outcome.has_run, outcome.was_interrupted) == ("FAILED", False, False)
    assert outcome.failure is not None
    assert outcome.failure.type_name == kind
    assert message in outcome.failure.message


def test_what_a_signal_ends_may_be_well_the_next_time(tmp_path: Path) -> None:
    outcome = ended(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.status is None
    assert outcome.failure is not None
    assert outcome.failure.message == "The process of the job died with signal SIGKILL."


def test_of_a_failure_with_a_message_without_end_only_a_part_is_kept(tmp_path: Path) -> None:
    failure = ended(tmp_path, "raise ValueError('begin' + 'x' * 3_000_000 + 'end')").failure
    assert failure is not None
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert len(failure.message) + len(failure.stack_trace) < 200_000


def test_a_process_whose_threads_do_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_process, "_END_SECONDS", 0.2)
    program = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nraise ValueError('it failed')"
    outcome = ended(tmp_path, program)
    assert (outcome.status, outcome.was_interrupted) == ("FAILED", False)
    assert outcome.failure is not None
    assert outcome.failure.message == "it failed"


def test_the_log_of_a_process_that_runs_for_ever_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_process, "_LONGEST_LOG", 100_000)
    monkeypatch.setattr(job_process, "_LOG_SECONDS", 0.05)
    program = (
        "import sys, time\n"
        "for number in range(60):\n"
        "    print(f'line {number}', 'x' * 10_000, flush=True)\n"
        "    time.sleep(0.02)\n"
        "raise ValueError('it failed')"
    )
    ended(tmp_path, program)
    log, before = (tmp_path / "log").read_text(), (tmp_path / "log.1").read_text()
    assert len(log) < 500_000 and len(before) < 500_000
    assert "it failed" in log and "\0" not in log
    assert (before + log).count("line 59 x") == 1, "it may be cut right behind the last line"


def test_a_plan_with_an_option_that_does_not_fit_any_more_harms_no_other_job(tmp_path: Path) -> None:
    job_id = JobID.from_name("words")
    key = BlobKey.of(Path(__file__))
    program = SubmittedProgram("0" * 32, "job.py", {"job.py": key}, (), {"parallelism.default": "many"})
    stores = SimpleNamespace(fetch=lambda plan, directory: directory.mkdir(parents=True))
    spares = SpareProcesses(0, [], tmp_path)
    processes = LocalProcesses(Configuration(), stores, tmp_path, "session", ["false"], spares)  # type: ignore[arg-type]
    plan = program.to_plan(job_id, "words")
    processes.prepare(plan, 1)  # by the driver of all jobs
    with pytest.raises(ConfigurationError, match=r"parallelism\.default"):
        processes.run(plan, 1, lambda name: None)
