"""`holdfast demo`: kill a job in the middle, run it again, and compare its totals with an uninterrupted computation."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click
import pyarrow as pa
import pyarrow.dataset as ds

from holdfast.checkpoint.completed_checkpoint import read_newest
from holdfast.cli.demo_job import CommittedRows, DemoJob
from holdfast.cli.doctor import PROBLEM, check_java, check_spark, spark_version
from holdfast.cli.locate import Registers, job_directories
from holdfast.cli.new import make_project
from holdfast.cli.output import FAILED, errors_to_exit_codes, examples, moment, print_table
from holdfast.errors import ConfigurationError, JobExecutionError

_PROJECT: Final = "word_count"
_WORDS: Final = ("kelp", "rock", "tide", "sand", "silt", "crab", "gull", "salt", "wave", "foam", "reef", "buoy")
_FILES: Final = 120
_WORDS_IN_FILE: Final = 400
_WORDS_IN_LINE: Final = 10
_TOP: Final = 5
_RUN: Final = "from holdfast.cli import main; main()"


@click.command(epilog=examples("holdfast demo"))
def demo() -> None:
    """Kill a job in the middle, and lose nothing.

    The demo takes one to two minutes. It counts words on a local Spark with the program of `holdfast new`, kills the
    job with SIGKILL when half of the words are counted, and runs it again. Then it compares the totals, and each
    emitted row, with an uninterrupted computation.

    It needs pyspark and Java, and no network. It writes to a temporary directory, which it removes at the end.
    """
    with errors_to_exit_codes():
        _require_spark()
        started = time.monotonic()
        with _ended_by_sigterm(), _temporary_directory() as directory:
            is_right = _demonstrate(Path(directory))
        if not is_right:
            click.echo("The output is wrong. Please report this as a bug of Holdfast.", err=True)
            sys.exit(FAILED)
        click.echo(f"Done in {time.monotonic() - started:.0f} s. The temporary directory is removed.")
        click.echo("`holdfast new my_project` makes a project with this program and its test.")


def _require_spark() -> None:
    """Check for pyspark and Java.

    Raises:
        ConfigurationError: One is missing. The message says what to install.
    """
    for finding in (check_spark(), check_java(spark_version())):
        if finding.status == PROBLEM:
            raise ConfigurationError(f"The demo runs on Spark. {finding.check}: {finding.detail} {finding.remedy}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the job ends and the directory is removed."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory that is removed, although a process that was killed may still write to it."""
    return tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True)


def _demonstrate(directory: Path) -> bool:
    """Run the demo in a directory; return whether the output is that of an uninterrupted computation."""
    project = directory / _PROJECT
    make_project(_PROJECT, project)
    expected = _write_input(project / "input")
    total = expected.total()
    click.echo(f"1. Input: {total:,} words in {_FILES} files.")
    click.echo(f"2. holdfast run {_PROJECT}.py, until half of the words are counted")
    committed, rows = CommittedRows(project / "output"), 0
    with _start(project, "first.log") as job:
        for rows in job.follow(committed, total):
            if rows >= total // 2:
                break
        if job.exit_code is not None:
            raise job.error(f"The job ended (exit code {job.exit_code}) before it could be killed.")
        job.kill()
    click.echo(f"   Killed the job and its Spark with SIGKILL after {job.seconds:.0f} s: {rows:,} rows are committed.")
    click.echo(f"   {_newest_checkpoint(project)}")
    click.echo("3. The same command again: it continues from this checkpoint")
    with _start(project, "second.log") as job:
        *_, rows = job.follow(committed, total)
        job.require_success()
    click.echo(f"   Ended after {job.seconds:.0f} s: {rows:,} rows are committed.")
    click.echo("4. Totals, and those of an uninterrupted computation in plain Python")
    output = ds.dataset(project / "output", format="parquet").to_table()
    found = _totals(output)
    print_table(
        ("word", "total", "expected"),
        [(word, str(found.get(word, 0)), str(count)) for word, count in expected.most_common(_TOP)],
    )
    click.echo(f"... and {len(expected) - _TOP} more words.")
    wrong = problems(output, expected)
    for line in wrong or [f"All {len(expected)} totals are equal, and each of {total:,} rows exists once."]:
        click.echo(f"   {line}")
    return not wrong


def _write_input(directory: Path) -> Counter[str]:
    """Write text files, and return how often each word occurs in them."""
    numbers = random.Random(42)  # noqa: S311 - the same words in each demo
    weights = [1 / (rank + 1) for rank in range(len(_WORDS))]
    counts: Counter[str] = Counter()
    for path in directory.iterdir():
        path.unlink()  # the sample of the template
    for number in range(_FILES):
        words = numbers.choices(_WORDS, weights, k=_WORDS_IN_FILE)
        counts.update(words)
        lines = [" ".join(words[at : at + _WORDS_IN_LINE]) for at in range(0, len(words), _WORDS_IN_LINE)]
        (directory / f"{number:03}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return counts


def _start(project: Path, log: str) -> DemoJob:
    """Start the project's program.

    Args:
        project: The directory of the project.
        log: The name of the file that gets its output.
    """
    scratch = project / "tmp"  # what a JVM that is killed leaves goes with the project
    scratch.mkdir(exist_ok=True)
    options = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
    }
    given = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
    return DemoJob(
        [sys.executable, "-c", _RUN, "run", f"{_PROJECT}.py", *given],
        project / log,
        project,
        {
            "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
            "SPARK_LOCAL_DIRS": str(scratch),
            "TMPDIR": str(scratch),
        },
    )


def _newest_checkpoint(project: Path) -> str:
    [found] = job_directories(str(project / "checkpoints"), Registers())
    newest = read_newest(*found)
    if newest is None:
        raise JobExecutionError("The job committed rows without a checkpoint. Please report this as a bug of Holdfast.")
    metadata = newest.metadata
    return f"Newest checkpoint: {metadata.checkpoint_id}, of epoch {metadata.epoch}, {moment(metadata.completed_at)}."


def _totals(output: pa.Table) -> dict[str, int]:
    totals = output.group_by("word").aggregate([("n", "max")]).to_pydict()
    return dict(zip(totals["word"], totals["n_max"], strict=True))


def problems(output: pa.Table, expected: Mapping[str, int]) -> list[str]:
    """Return how rows of `word` and `n` differ from each word counted once from 1 to its total; empty if they do not.

    Args:
        output: The rows.
        expected: The total of each word.
    """
    found: dict[str, list[int]] = {}
    for row in output.to_pylist():
        found.setdefault(row["word"], []).append(row["n"])
    return [
        f"{word}: {len(found.get(word, []))} rows with a total of {max(found.get(word, [0]))}, instead of "
        f"{expected.get(word, 0)} rows"
        for word in sorted(found.keys() | expected.keys())
        if sorted(found.get(word, [])) != list(range(1, expected.get(word, 0) + 1))
    ]
