"""What a job holds while it runs: mappings, descriptors, memory and disk, over thousands of epochs of one state.

The state has the same size all the time, so nothing else may grow for ever. Looked at from outside, in /proc.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

import pytest

from holdfast.runtime.job.control import JobStatus
from tests.programs.steady_job import Steady
from tests.stories.local import Program, run
from tests.stories.process import children, command_of, kill_group, start

pytestmark = pytest.mark.soak

EPOCHS = int(os.environ.get("RESOURCE_EPOCHS", "5000"))
KEYS = 2000
ROWS = 200
LOOKS = 40


@dataclass(frozen=True)
class Held:
    """What processes and a directory hold.

    Attributes:
        deleted: Bytes of deleted files that are mapped.
        descriptors: How many are open.
        memory: Bytes of anonymous memory of the process that has most; JVMs left out, whose heap grows as it may.
        disk: Bytes of files.
        files: How many.
    """

    deleted: int
    descriptors: int
    memory: int
    disk: int
    files: int


def look(processes: Iterable[int], directory: Path) -> Held:
    """What they hold now."""
    deleted = descriptors = memory = 0
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if line.endswith("(deleted)") and str(directory) in line:
                    first, last = (int(end, 16) for end in line.split()[0].split("-"))
                    deleted += last - first
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if command_of(pid) != "java":
                memory = max(memory, int(status.get("RssAnon", "0 kB").split()[0]) << 10)  # a zombie has none
    sizes = []
    for folder, _, names in os.walk(directory):  # which, unlike rglob, goes on when a directory has gone
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append((Path(folder) / name).stat().st_size)
    return Held(deleted, descriptors, memory, sum(sizes), len(sizes))


def judge(seen: list[Held]) -> None:
    """What is held most of the time is no more in the last quarter than in the second, but for a little.

    A single look may fall into a minute in which the machine was busy and compaction or the sweep came late; what is
    held for ever is seen by every look after it.
    """
    count = len(seen)
    early, late = seen[count // 4 : count // 2], seen[-(count // 4) :]
    bounds: dict[str, tuple[Callable[[Held], int], int]] = {
        "bytes of deleted files that are mapped": (lambda held: held.deleted, 8 << 20),
        "open descriptors": (lambda held: held.descriptors, 20),
        "memory": (lambda held: held.memory, 24 << 20),
        "bytes on disk": (lambda held: held.disk, 8 << 20),
        "files": (lambda held: held.files, 100),
    }
    for name, (of, slack) in bounds.items():
        before, after = median_high(map(of, early)), median_high(map(of, late))
        most = f"at most {max(map(of, early)):,} and {max(map(of, late)):,}"
        print(f"soak: {name}: {before:,} in the second quarter, {after:,} in the last one, {most}")
        assert after <= before * 1.25 + slack, f"{name} grow"


def test_what_a_process_holds_does_not_grow(tmp_path: Path) -> None:
    seen: list[Held] = []

    def intercept(stage: int, partition: int) -> None:
        intercept.tasks += 1  # type: ignore[attr-defined]
        if intercept.tasks % (EPOCHS * 2 // LOOKS) == 0:  # type: ignore[attr-defined]
            seen.append(look([os.getpid()], tmp_path / "job"))

    intercept.tasks = 0  # type: ignore[attr-defined]
    program = Program()
    source = program.source("in", "key bigint, n bigint").key_by("key")
    source.process(Steady(), "key bigint, n bigint").uid("steady").print().uid("out")
    inputs = [{"in": [((at * ROWS + row) * 7 % KEYS, at) for row in range(ROWS)]} for at in range(EPOCHS)]
    options = {"execution.checkpointing.num-retained": "1"}
    assert run(program, tmp_path / "job", inputs, options, interceptor=intercept) is JobStatus.SUSPENDED
    judge(seen)


@pytest.mark.spark
def test_what_a_job_on_spark_holds_does_not_grow(tmp_path: Path) -> None:
    epochs, log = EPOCHS // 5, tmp_path / "log"
    process = start("steady_job.py", tmp_path, "--rows", ROWS, "--keys", KEYS, log=log)
    try:
        seen, done = [], 0
        for at in range(1, LOOKS + 1):
            while done < epochs * at // LOOKS:
                assert process.poll() is None, log.read_text()[-4000:]
                time.sleep(0.2)
                numbers = [int(path.name[4:]) for path in (tmp_path / "job").glob("*/chk-*")]
                done = max(numbers, default=0)
            seen.append(look(tree(process.pid), tmp_path / "job"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0, log.read_text()[-4000:]
    finally:
        if process.poll() is None:
            kill_group(process)
    judge(seen)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(found for child in children(pid) for found in tree(child))]
