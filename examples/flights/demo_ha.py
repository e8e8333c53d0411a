"""The flights job with two job managers, of which the leader is killed in the middle.

What ``make demo-ha`` runs: it starts three ZooKeeper servers and two job managers, submits ``job.py``, kills the job
manager that leads with SIGKILL at about half of the flights, waits while the other one takes the job over, and compares
every value of the whole output with a batch computation that shares no code with the job.

    python examples/flights/demo_ha.py [--work DIR] [--files-per-epoch N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the pieces of the demo lie beside it, and it is started by its path

import oracle  # noqa: E402
import prepare  # noqa: E402

from holdfast.cli.demo_job import CommittedRows  # noqa: E402
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble  # noqa: E402

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SESSION_SECONDS = 4
PATIENCE = 600.0
SECONDS_BETWEEN_LOOKS = 0.2


class Manager:
    """One job manager in a process of its own; what it logs goes to a file."""

    def __init__(self, number: int, cluster: list[str], work: Path) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        self.name = f"job manager {number}"
        self.log = work / f"job-manager-{number}.log"
        directory = f"-Dprocess.jobmanager.working-dir={work / f'job-manager-{number}'}"
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [HOLDFAST, "jobmanager", *cluster, directory],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def says(self, text: str) -> bool:
        """Whether it has logged something."""
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} has ended; its log is {self.log}")
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """In good order."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class User:
    """Somebody who submits a job and looks at it, with the commands of everybody."""

    def __init__(self, cluster: list[str]) -> None:
        self._cluster = cluster

    def run(self, verb: str, *arguments: str) -> str:
        """Runs a command and returns what it prints."""
        command = [HOLDFAST, verb, *self._cluster, *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise SystemExit(f"`holdfast {verb}` failed with exit code {answer.returncode}:\n{answer.stderr}")
        return answer.stdout.strip()

    def job(self, job_id: str) -> dict[str, Any]:
        """What the list says of a job."""
        rows = [json.loads(line) for line in self.run("list", "-a", "--json").splitlines()]
        return next((row for row in rows if row["job_id"] == job_id), {"status": "not known", "last_failure": None})


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"after {PATIENCE:.0f} s still not: {what}")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def newest_checkpoint(checkpoints: Path) -> int:
    """The highest id of a checkpoint whose document is there, 0 if there is none."""
    documents = checkpoints.glob("*/chk-*/_metadata")
    return max((int(document.parent.name.removeprefix("chk-")) for document in documents), default=0)


class TakeOver(NamedTuple):
    """How long a take-over took, in seconds from the kill.

    Attributes:
        leads: Until the other job manager leads.
        checkpoint: Until the first checkpoint that it has completed.
    """

    leads: float
    checkpoint: float


def take_over(managers: list[Manager], checkpoints: Path) -> TakeOver:
    """Kills the leader, and waits until the other one has completed a checkpoint."""
    (leader,) = [manager for manager in managers if manager.says("leads, in session")]
    leader.process.kill()
    leader.process.wait()
    killed = time.monotonic()
    managers.remove(leader)
    print(f"  {leader.name} is killed with SIGKILL, and the process of the job ends with it")
    time.sleep(0.5)  # for what the job was about to write
    before = newest_checkpoint(checkpoints)
    until(lambda: managers[0].says("leads, in session"), "the other job manager leads")
    leads = time.monotonic() - killed
    print(f"  {managers[0].name} leads after {leads:.1f} s")
    until(lambda: newest_checkpoint(checkpoints) > before, f"a checkpoint after {before}")
    return TakeOver(leads, time.monotonic() - killed)


def clean(work: Path) -> None:
    """Removes what an earlier demo left, except the prepared input."""
    for name in ("output", "checkpoints", "ha", "job-manager-1", "job-manager-2"):
        if (work / name).exists():
            shutil.rmtree(work / name)
    work.mkdir(parents=True, exist_ok=True)


def run_job(work: Path, files_per_epoch: int, total: int, ensemble: ZooKeeperEnsemble) -> TakeOver:
    """Runs the job to its end, through a take-over; returns how long that took."""
    flights, output, checkpoints = work / "flights", work / "output", work / "checkpoints"
    zookeeper = "high-availability.zookeeper"
    cluster = [
        "-Dhigh-availability.type=zookeeper",
        f"-Dhigh-availability.storageDir={work / 'ha'}",
        "-Dhigh-availability.cluster-id=flights-demo",
        f"-D{zookeeper}.quorum={ensemble.connect_string}",
        f"-D{zookeeper}.client.session-timeout={SESSION_SECONDS} s",
        "-Djobmanager.spare-processes=1",
    ]
    user, committed = User(cluster), CommittedRows(output)
    managers = [Manager(number, cluster, work) for number in (1, 2)]
    try:
        until(lambda: any(manager.says("leads, in session") for manager in managers), "a job manager leads")
        # The other one keeps a process ready, with a JVM that is warm.
        until(lambda: all(manager.says("a spare process is ready") for manager in managers), "both are ready")
        program = ["--input", str(flights), "--output", str(output), "--checkpoints", str(checkpoints)]
        program += ["--files-per-epoch", str(files_per_epoch), "--query-port", "0"]
        job_id = user.run("submit", "-Dpipeline.name=flights", str(HERE / "job.py"), "--", *program)
        print(f"  job {job_id} is submitted")

        print("3. The job runs, until its job manager is killed at about half")
        until(lambda: committed.count() >= total // 2, "half of the flights are committed")
        print(f"  {committed.count():,} of {total:,} rows are committed")
        seconds = take_over(managers, checkpoints)
        print(f"  the list says: {user.job(job_id)['status']}")
        until(lambda: user.job(job_id)["status"] in ("SUSPENDED", "FAILED", "FINISHED"), "the job has ended")
        ended = user.job(job_id)
        if ended["status"] == "FAILED":
            raise SystemExit(f"the job has failed: {ended['last_failure']}")
        print(f"  {committed.count():,} of {total:,} rows are committed; all input there is has been read")
        return seconds
    finally:
        for manager in managers:
            manager.end()


def demonstrate(work: Path, files_per_epoch: int) -> tuple[int, TakeOver]:
    """Runs the whole demo in a working directory; returns the exit code, and how long the take-over took."""
    clean(work)
    print("1. The flights of 2013, one Parquet file a day")
    files = prepare.prepare(work / "flights")
    expected = oracle.expected_output(oracle.read_input(work / "flights"))
    print(f"  {len(files)} files; the batch computation expects {expected.num_rows:,} rows")
    print("2. Three ZooKeeper servers, two job managers")
    with ZooKeeperEnsemble() as ensemble:
        seconds = run_job(work, files_per_epoch, expected.num_rows, ensemble)
    print("4. The whole output, every value, against the batch computation")
    found = oracle.compare(work / "output", expected)
    print("  " + oracle.report(found, expected.num_rows).replace("\n", "\n  "))
    if found:
        return 1, seconds
    print(
        f"{seconds.checkpoint:.1f} s from the kill to the first new completed checkpoint; "
        f"ZooKeeper gives a silent process {SESSION_SECONDS} s of them."
    )
    return 0, seconds


def main() -> int:
    """Runs the demo as the command line says."""
    parser = argparse.ArgumentParser(description="Two job managers, a SIGKILL in the middle, nothing lost.")
    parser.add_argument(
        "--work", type=Path, default=HERE.parent.parent / ".demo-ha", help="where everything is written"
    )
    parser.add_argument("--files-per-epoch", type=int, default=10)
    arguments = parser.parse_args()
    started = time.monotonic()
    code, _ = demonstrate(arguments.work.resolve(), arguments.files_per_epoch)
    print(f"{'Done' if code == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s.")
    return code


if __name__ == "__main__":
    sys.exit(main())
