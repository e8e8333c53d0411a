"""A year of flights through a stateful Spark job that is killed in the middle and loses nothing.

What ``make demo`` runs: it prepares the input, starts ``job.py``, kills its whole process group with SIGKILL at about
half of the flights, starts it again, and compares every value of the whole output with a batch computation that shares
no code with the job. All the while ``holdfast query --watch`` asks the job what it knows of one aircraft.

    python examples/flights/demo.py [--work DIR] [--files-per-epoch N]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the pieces of the demo lie beside it, and it is started by its path

import oracle  # noqa: E402
import prepare  # noqa: E402
import watch as watching  # noqa: E402

from holdfast.cli.demo_job import CommittedRows, DemoJob  # noqa: E402

QUERY_PORT = "9069"


def start(arguments: list[str], log: Path) -> DemoJob:
    """Start `job.py`."""
    return DemoJob([sys.executable, str(HERE / "job.py"), *arguments], log)


def run_until_half(arguments: list[str], log: Path, committed: CommittedRows, total: int) -> tuple[int, float]:
    """Runs the job and kills it at half; returns the rows committed then and rows per second after the first epoch."""
    speed = Speed()
    with start(arguments, log) as job:
        for rows in job.follow(committed, total):
            speed.note(rows)
            if rows >= total // 2:
                break
        if job.exit_code is not None:
            raise job.error(f"The job ended (exit code {job.exit_code}) before it could be killed at half.")
        job.kill()
        print(f"  killed its process group with SIGKILL after {job.seconds:.1f} s")
    return committed.count(), speed.rows_per_second()


def run_to_the_end(arguments: list[str], log: Path, committed: CommittedRows, total: int) -> float:
    """Runs the job until it ends; returns rows per second after the first epoch."""
    speed = Speed()
    with start(arguments, log) as job:
        for rows in job.follow(committed, total):
            speed.note(rows)
        job.require_success()
        print(f"  ended with exit code 0 after {job.seconds:.1f} s")
    return speed.rows_per_second()


class Speed:
    """Rows per second between the first commit that was seen and the last: start-up and warm-up are left out."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def note(self, rows: int) -> None:
        """Takes the rows that are committed now."""
        if not self._seen or rows != self._seen[-1][1]:
            self._seen.append((time.monotonic(), rows))

    def rows_per_second(self) -> float:
        """0 if fewer than two commits were seen."""
        commits = self._seen[1:]  # the first entry is what was there before this run
        if len(commits) < 2:
            return 0.0
        (first, before), (last, after) = commits[0], commits[-1]
        return (after - before) / (last - first)


def checkpoints_of(directory: Path) -> list[dict[str, object]]:
    """What ``holdfast checkpoints DIR --json`` says, one dictionary a checkpoint."""
    command = [str(Path(sys.executable).with_name("holdfast")), "checkpoints", str(directory), "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SystemExit(f"`{' '.join(command)}` failed with exit code {answer.returncode}:\n{answer.stderr}")
    return [json.loads(line) for line in answer.stdout.splitlines() if line.strip()]


def print_checkpoints(checkpoints: list[dict[str, object]]) -> None:
    """A small table; times of completion are shown as they are stored if they are not milliseconds."""
    print(f"  {'id':>4}  {'epoch':>5}  {'completed at':<23}  {'bytes':>12}  {'new bytes':>12}  status")
    for entry in checkpoints:
        if entry["status"] != "COMPLETED":
            print(f"  {entry['id']:>4}  {entry['status']}")
            continue
        completed = entry["completed_at"]
        if isinstance(completed, (int, float)):
            completed = dt.datetime.fromtimestamp(completed / 1000).isoformat(sep=" ", timespec="milliseconds")
        print(
            f"  {entry['id']:>4}  {entry['epoch']:>5}  {completed!s:<23}  {entry['bytes']:>12,}  "
            f"{entry['new_bytes']:>12,}  {entry['status']}"
        )


def print_heirs(output: pa.Table, count: int = 10) -> None:
    """The aircraft that carried a late arrival into a late departure most often."""
    flights = output.group_by("tailnum").aggregate([("seq", "max"), ("total_arr_delay", "count")])
    inherited = output.filter(output["inherited"]).group_by("tailnum").aggregate([([], "count_all")])
    ranked = inherited.join(flights, "tailnum").sort_by([("count_all", "descending"), ("tailnum", "ascending")])
    print(f"  {'aircraft':<8}  {'inherited':>9}  {'flights':>7}")
    for row in ranked.slice(0, count).to_pylist():
        print(f"  {row['tailnum']:<8}  {row['count_all']:>9,}  {row['seq_max']:>7,}")


def clean(work: Path) -> None:
    """Removes what an earlier demo left, except the prepared input."""
    for name in ("output", "checkpoints"):
        if (work / name).exists():
            shutil.rmtree(work / name)
    work.mkdir(parents=True, exist_ok=True)


def demonstrate(work: Path, files_per_epoch: int) -> int:
    """Runs the whole demo in a working directory; returns the exit code."""
    clean(work)
    flights, output, checkpoints = work / "flights", work / "output", work / "checkpoints"
    arguments = ["--input", str(flights), "--output", str(output), "--checkpoints", str(checkpoints)]
    arguments += ["--files-per-epoch", str(files_per_epoch), "--query-port", QUERY_PORT]

    print("1. The flights of 2013, one Parquet file a day")
    files = prepare.prepare(flights)
    expected = oracle.expected_output(oracle.read_input(flights))
    print(f"  {len(files)} files in {flights}; the batch computation expects {expected.num_rows:,} rows")

    watch = watching.Watch(work / "watch.jsonl", QUERY_PORT)
    try:
        speeds = run_both(arguments, work, CommittedRows(output), expected.num_rows)
    finally:
        watch.end()

    print("4. The whole output, every value, against the batch computation")
    found = oracle.compare(output, expected)
    print("  " + oracle.report(found, expected.num_rows).replace("\n", "\n  "))

    answers = watch.answers()
    print(f"5. What `holdfast {' '.join(watching.COMMAND)}` has shown, some of {len(answers)} checkpoints")
    print("  " + watching.table(answers).replace("\n", "\n  "))
    silence = [f"nothing at all: does another program listen at port {QUERY_PORT}?"]
    wrong = watching.wrong_answers(answers, expected) if answers else silence
    print("  " + "\n  ".join(wrong or ["all of them are histories of the aircraft that the batch computation knows"]))
    if found or wrong:
        return 1

    print("6. The ten aircraft that carried their delay along most often")
    print_heirs(pa.concat_tables(table for _, table in oracle.read_files(output)))
    print("7. The checkpoints")
    print_checkpoints(checkpoints_of(checkpoints))
    late = pc.sum(expected["inherited"]).as_py()
    print(f"{expected.num_rows:,} rows, {late:,} of them inherited; {speeds[0]:,.0f} rows/s before the kill")
    print(f"and {speeds[1]:,.0f} rows/s after it ({files_per_epoch} days an epoch, without start-up).")
    return 0


def run_both(arguments: list[str], work: Path, committed: CommittedRows, total: int) -> tuple[float, float]:
    """Runs the job until it is killed, and again to its end; returns the rows per second of both."""
    checkpoints = work / "checkpoints"
    print("2. The job runs, until it is killed at about half")
    at_kill, first_speed = run_until_half(arguments, work / "job-1.log", committed, total)
    left = checkpoints_of(checkpoints)
    newest = max(left, key=lambda entry: int(str(entry["id"])))
    print(f"  newest completed checkpoint: {newest['id']} (epoch {newest['epoch']}); {at_kill:,} rows are committed")

    print("3. The same command again: it resumes from there")
    return first_speed, run_to_the_end(arguments, work / "job-2.log", committed, total)


def main() -> int:
    """Runs the demo as the command line says."""
    parser = argparse.ArgumentParser(description="A year of flights, a SIGKILL in the middle, nothing lost.")
    parser.add_argument("--work", type=Path, default=HERE.parent.parent / ".demo", help="where everything is written")
    parser.add_argument("--files-per-epoch", type=int, default=10)
    arguments = parser.parse_args()
    started = time.monotonic()
    code = demonstrate(arguments.work.resolve(), arguments.files_per_epoch)
    print(f"{'Done' if code == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s.")
    return code


if __name__ == "__main__":
    sys.exit(main())
