"""The ledger on real Spark, struck by what strikes real jobs; the auditor reads the output and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stories import ledger
from tests.stories.process import java_below, kill_group, run, start

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Payments = list[list[tuple[int, str, int]]]
CLUSTER = "local-cluster[2,1,1024]"


class Story:
    """Directories of one job and its payments, one Parquet file an epoch."""

    def __init__(self, root: Path, epochs: int = 5, rows: int = 400, accounts: int = 11, seed: int = 5) -> None:
        self.input, self.output, self.checkpoints = root / "in", root / "out", root / "checkpoints"
        self.root = root
        self.payments: Payments = []
        self.input.mkdir()
        for epoch in ledger.payments(epochs, rows, accounts, seed):
            self.add(epoch)

    def add(self, epoch: list[tuple[int, str, int]]) -> None:
        """Another file of input."""
        number = len(self.payments)
        table = pa.table(dict(zip(("payment", "account", "amount"), map(list, zip(*epoch, strict=True)), strict=True)))
        path = self.input / f"{number:04d}.parquet"
        pq.write_table(table, self.root / "new.parquet")
        os.utime(self.root / "new.parquet", (1_000_000 + number, 1_000_000 + number))
        (self.root / "new.parquet").rename(path)
        self.payments.append(epoch)

    def arguments(self, *more: object) -> tuple[object, ...]:
        return ("--input", self.input, "--output", self.output, "--checkpoints", self.checkpoints, *more)

    def audit(self, *, stages: int = 1) -> None:
        ledger.audit(self.output, self.payments, two_stages=stages == 2, three_stages=stages == 3)

    def completed(self) -> int:
        """How many checkpoint documents there are."""
        return len(list(self.checkpoints.glob("*/chk-*/_metadata")))

    def wait_for(self, checkpoints: int, process: object, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while self.completed() < checkpoints:
            assert time.monotonic() < deadline, "no checkpoint in time"
            assert process.poll() is None, "the job ended before it was killed"  # type: ignore[attr-defined]
            time.sleep(0.02)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_two_chained_stages_run_without_a_fault_and_a_second_run_resumes(story: Story) -> None:
    assert run("ledger_job.py", *story.arguments("--stages", 2)).code == 0
    story.audit(stages=2)
    for epoch in ledger.payments(2, 100, 11, 77):
        story.add([(payment + 100_000, account, amount) for payment, account, amount in epoch])
    ended = run("ledger_job.py", *story.arguments("--stages", 2))
    assert ended.code == 0, ended.output
    story.audit(stages=2)


def test_a_killed_python_worker_is_retried_by_spark(story: Story) -> None:
    ended = run(
        "ledger_job.py",
        *story.arguments(
            "--hazard", "kill-worker", "--at", 150, "--marker", story.root / "m", "--master", "local[2,4]"
        ),
    )
    assert ended.code == 0, ended.output
    assert (story.root / "m").exists()
    story.audit()


@pytest.mark.parametrize(
    ("stages", "where", "hazard"),
    [
        (2, "ledger", "kill-executor"),
        (2, "parity", "kill-executor"),
        (2, "parity", "kill-executor-late"),
        (3, "thirds", "kill-executor"),
        (3, "thirds", "kill-executor-late"),
    ],
)
def test_a_killed_executor_of_two(story: Story, stages: int, where: str, hazard: str) -> None:
    """Before any and after some of the last tasks have ended; the epoch may run again, its rows are used once."""
    strike = ("--hazard", hazard, "--where", where, "--at", 60, "--marker", story.root / "m")
    ended = run("ledger_job.py", *story.arguments("--stages", stages, "--master", CLUSTER, *strike))
    assert ended.code == 0, ended.output
    assert (story.root / "m").exists()
    story.audit(stages=stages)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["ledger", "parity"])
def test_a_killed_executor_of_four_with_64_subtasks_on_each_level(tmp_path: Path, where: str) -> None:
    """Each task of the second level has read a marker of all 64 above, whichever of them Spark has run again."""
    story = Story(tmp_path, epochs=3, rows=2_000, accounts=300)
    cluster = ("--master", os.environ.get("WIDE_CLUSTER", "local-cluster[4,2,2048]"))
    strike = ("--hazard", "kill-executor", "--where", where, "--at", 12, "--marker", story.root / "m")
    arguments = story.arguments("--stages", 2, "--parallelism", 64, *cluster, *strike)
    ended = run("ledger_job.py", *arguments, timeout=1500)
    assert ended.code == 0, ended.output
    assert (story.root / "m").exists()
    story.audit(stages=2)


def test_an_executor_is_killed_in_the_second_epoch_job_of_an_epoch(story: Story) -> None:
    """The first job is over, and its rows are staged: the second one reads those again, or the epoch runs again."""
    strike = ("--hazard", "kill-executor", "--where", "parity", "--at", 60, "--marker", story.root / "m")
    ended = run("ledger_job.py", *story.arguments("--stages", 2, "--transform", "--master", CLUSTER, *strike))
    assert ended.code == 0, ended.output
    assert (story.root / "m").exists()
    story.audit(stages=2)


def test_the_process_group_is_killed_between_the_epoch_jobs_of_an_epoch(story: Story) -> None:
    """A transform is called when it is defined and then once an epoch, after the first epoch job."""
    arguments = story.arguments("--stages", 2, "--transform")
    strike = ("--hazard", "kill-group", "--where", "transform", "--at", 4, "--marker", story.root / "m")
    first = run("ledger_job.py", *arguments, *strike)
    assert first.was_killed, first.output
    assert story.completed() == 2
    second = run("ledger_job.py", *arguments)
    assert second.code == 0, second.output
    story.audit(stages=2)
    left = [path.name for path in story.checkpoints.glob("*/taskowned/*") if path.suffix == ".parquet"]
    assert all(name.startswith("000001-") for name in left), f"the second process left {left}:\n{second.output}"


def test_the_whole_process_group_is_killed_in_the_middle(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=8)
    process = start("ledger_job.py", *story.arguments("--hazard", "slow"), log=story.root / "log")
    story.wait_for(3, process)
    kill_group(process)
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_the_drivers_jvm_alone_is_killed(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=8)
    process = start("ledger_job.py", *story.arguments("--hazard", "slow"), log=story.root / "log")
    story.wait_for(2, process)
    java = java_below(process.pid)
    assert java is not None
    os.kill(java, signal.SIGKILL)
    assert process.wait(timeout=180) not in (0, -signal.SIGKILL), "the program must notice that its JVM is gone"
    assert "JVM is gone" in (log := (story.root / "log").read_text()) and "in a new process" in log
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_the_drivers_python_process_alone_is_killed(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=8)
    process = start("ledger_job.py", *story.arguments("--hazard", "slow"), log=story.root / "log")
    story.wait_for(2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


@pytest.mark.parametrize(
    "fault",
    [
        "before:source.copy:4=kill",
        "after:source.copy:4=kill",
        "before:spark.commit:2=kill",
        "after:spark.commit:2=kill",
        "after:pointer.write:3=kill",
    ],
)
def test_killed_at_a_fault_point_of_the_driver(story: Story, fault: str) -> None:
    first = run("ledger_job.py", *story.arguments(), fault=fault)
    assert first.was_killed, first.output
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


@pytest.mark.parametrize("point", ["source.copy:4", "spark.commit:2"])
def test_a_lost_answer_restarts_the_job_in_the_same_process(story: Story, point: str) -> None:
    ended = run("ledger_job.py", *story.arguments(), fault=f"lost:{point}=raise")
    assert ended.code == 0, ended.output
    assert "restarts in" in ended.output
    story.audit()


def test_an_error_of_a_function_names_operator_key_and_epoch_and_the_job_resumes_after_the_repair(
    story: Story,
) -> None:
    hazard = ("--hazard", "raise", "--at", 150, "--marker", story.root / "m", "-D", "restart-strategy.type=none")
    first = run("ledger_job.py", *story.arguments(*hazard))
    assert first.code == 1
    for text in ("JobExecutionError", "'ledger'", "account-", "in epoch", "ValueError: a hazard"):
        assert text in first.output
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_sigterm_ends_after_the_current_epoch_with_exit_code_0(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=8)
    process = start("ledger_job.py", *story.arguments("--hazard", "slow"), log=story.root / "log")
    story.wait_for(2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 0, (story.root / "log").read_text()
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_sigterm_while_tasks_run_lets_their_epoch_complete(story: Story) -> None:
    """Not only between two epochs: Spark would cancel the jobs of a query that is stopped."""
    hazard = ("--hazard", "linger", "--at", 60, "--marker", story.root / "m")
    process = start("ledger_job.py", *story.arguments(*hazard), log=story.root / "log")
    deadline = time.monotonic() + 180
    while not (story.root / "m").exists():
        assert time.monotonic() < deadline and process.poll() is None, (story.root / "log").read_text()
        time.sleep(0.02)
    assert story.completed() == 0, "the first epoch is to run now"
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 0, (story.root / "log").read_text()
    assert story.completed() == 1, "the epoch that ran, and no other"
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


@pytest.mark.parametrize("when", ["while tasks run", "between epochs"])
def test_sigterm_to_all_processes_of_the_job_ends_it_with_exit_code_0(story: Story, when: str) -> None:
    """As a service manager, `timeout` or a terminal sends it: the JVM and the workers end as well, and maybe before."""
    linger = ("--hazard", "linger", "--at", 60, "--marker", story.root / "m")
    more = linger if when == "while tasks run" else ("--trigger", "continuous")
    process = start("ledger_job.py", *story.arguments(*more), log=story.root / "log")
    if when == "between epochs":
        story.wait_for(5, process)
    deadline = time.monotonic() + 180
    while when == "while tasks run" and not (story.root / "m").exists():
        assert time.monotonic() < deadline and process.poll() is None, (story.root / "log").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 0, (story.root / "log").read_text()
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_two_drivers_on_one_job_directory_the_first_is_fenced(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=4)
    first = start("ledger_job.py", *story.arguments("--trigger", "continuous"), log=story.root / "log")
    story.wait_for(2, first)
    for epoch in ledger.payments(3, 100, 11, 78):
        story.add([(payment + 100_000, account, amount) for payment, account, amount in epoch])
    second = run("ledger_job.py", *story.arguments("--hazard", "slow"))
    assert second.code == 0, second.output
    for epoch in ledger.payments(1, 100, 11, 79):
        story.add([(payment + 200_000, account, amount) for payment, account, amount in epoch])
    assert first.wait(timeout=180) != 0
    assert "FencedError" in (story.root / "log").read_text()
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()


def test_no_input_for_a_minute(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=2)
    process = start("ledger_job.py", *story.arguments("--trigger", "continuous"), log=story.root / "log")
    story.wait_for(2, process)
    time.sleep(61)
    assert process.poll() is None, (story.root / "log").read_text()
    before = story.completed()
    story.add([(100_000 + i, f"account-{i % 11}", 1) for i in range(50)])
    deadline = time.monotonic() + 120
    while story.completed() == before and len(ledger.read(story.output)) < 850:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 0
    story.audit()


def test_the_disk_of_the_checkpoints_fails_and_recovers(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=3)
    log = story.root / "log"
    process = start("ledger_job.py", *story.arguments("--trigger", "continuous"), log=log)
    story.wait_for(2, process)
    disk = story.root / "disk"
    story.checkpoints.rename(disk)
    story.checkpoints.mkdir()
    for epoch in ledger.payments(2, 100, 11, 77):
        story.add([(payment + 100_000, account, amount) for payment, account, amount in epoch])
    deadline = time.monotonic() + 120
    while "is not mounted any more" not in log.read_text():
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()
        time.sleep(0.1)
    assert not list(story.checkpoints.glob("*/register/v-*")), "nothing is begun in the empty directory"
    while disk.exists():
        shutil.rmtree(story.checkpoints, ignore_errors=True)
        with suppress(OSError):  # somebody has written into it meanwhile
            disk.rename(story.checkpoints)
    rows = sum(map(len, story.payments))
    while len(ledger.read(story.output)) < rows:
        assert time.monotonic() < deadline + 120 and process.poll() is None, log.read_text()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 0, log.read_text()
    story.audit()


def test_a_missing_input_directory_is_one_clear_error(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=1)
    ended = run(
        "ledger_job.py", "--input", tmp_path / "nowhere", "--output", story.output, "--checkpoints", story.checkpoints
    )
    assert ended.code != 0
    assert "nowhere" in ended.output


def test_a_damaged_input_file_fails_the_job_by_name_and_the_job_resumes_without_it(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=2)
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.add([(100_000 + i, f"account-{i % 11}", 1) for i in range(50)])
    damaged = story.input / "zz-damaged.parquet"
    damaged.write_bytes(b"PAR1 this is none")
    ended = run("ledger_job.py", *story.arguments())
    assert ended.code != 0
    assert "InputError" in ended.output and damaged.name in ended.output
    damaged.unlink()
    assert run("ledger_job.py", *story.arguments()).code == 0
    story.audit()
