"""How long a checkpoint takes once all tasks have acknowledged, and what it costs when little of much has changed.

Usage: python benchmarks/checkpoint.py [--subtasks 8,10000] [--rounds N] [--keys 50000,500000,5000000] [--json]

``complete``: from the last acknowledgement until the pointer is written, on a local disk, document and syncs included;
``all_ms`` has the acknowledgements and the trigger as well. Each subtask has one run.

``changed``: states of different sizes, of which the same number of keys changes (1% of the largest). Workers are cold:
they read what they touch from the mapped runs. Bytes are those of the new runs and of the document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant, PendingCheckpoint  # noqa: E402
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint  # noqa: E402
from holdfast.checkpoint.coordinator import CheckpointCoordinator  # noqa: E402
from holdfast.checkpoint.instruction_executor import (  # noqa: E402
    CheckpointFailureManager,
    CoordinatorServices,
    FailJobCallback,
)
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata  # noqa: E402
from holdfast.errors import HoldfastError  # noqa: E402
from holdfast.kernel.configuration import Configuration  # noqa: E402
from holdfast.kernel.ids import JobID  # noqa: E402
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from holdfast.state.run_file import RunHandle, forget_runs  # noqa: E402
from holdfast.storage.job_directory import JobDirectory  # noqa: E402
from holdfast.storage.local import LocalFileSystem  # noqa: E402
from holdfast.storage.register import FileRegister, RegisterWriter  # noqa: E402
from tests.programs.written_job import WrittenJob  # noqa: E402

SUBTASKS = 8
CHUNK = 500_000


class Fail(FailJobCallback):
    def fail_job(self, cause: HoldfastError) -> None:
        raise cause

    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        raise cause


def coordinator_of(directory: JobDirectory, writer: RegisterWriter) -> CheckpointCoordinator:
    failures = CheckpointFailureManager(0, Fail())
    return CheckpointCoordinator.for_epochs(
        CoordinatorServices.for_job_attempt(writer, directory, Configuration(), failures)
    )


def complete(subtasks: int, rounds: int, root: str) -> dict[str, Any]:
    job_id = JobID.from_name("benchmark")
    directory = JobDirectory(LocalFileSystem(), root, job_id)
    directory.create()
    writer = FileRegister(directory.fs, directory.register_dir).raise_token("benchmark")
    coordinator = coordinator_of(directory, writer)
    tasks = [CheckpointParticipant(f"attempt-{index}", "operator", index) for index in range(subtasks)]
    after, whole = [], []
    for epoch in range(1, rounds + 1):
        started = time.perf_counter()
        pending = coordinator.begin(epoch, tasks, force=True)
        assert pending is not None
        for task in tasks:
            coordinator.acknowledge(pending, task.execution_id)
        acknowledged = time.perf_counter()
        coordinator.complete(pending, document(job_id, pending, epoch, subtasks))
        ended = time.perf_counter()
        after.append(1000 * (ended - acknowledged))
        whole.append(1000 * (ended - started))
    coordinator.shutdown()
    return {
        "case": "complete",
        "subtasks": subtasks,
        "ms_median": round(statistics.median(after), 2),
        "ms_max": round(max(after), 2),
        "all_ms_median": round(statistics.median(whole), 2),
        "rounds": rounds,
    }


def document(job_id: JobID, pending: PendingCheckpoint, epoch: int, subtasks: int) -> CheckpointMetadata:
    maximum = max(128, subtasks)
    runs = tuple(
        RunHandle(
            f"shared/000001-{epoch:09d}-0-0123abcd-{index}-{index:012x}.run", 40_000, 38_000, "a" * 64,
            (index * maximum // subtasks, (index + 1) * maximum // subtasks - 1), {"count": 1000}, 1, epoch,
        )
        for index in range(subtasks)
    )  # fmt: skip
    operator = OperatorMetadata("operator", "0" * 32, "operator", subtasks, maximum, None, runs)
    return CheckpointMetadata(
        str(job_id), "benchmark", pending.checkpoint_id, epoch, 1, "lineage", 1, 1, operators=(operator,)
    )


def changed(keys: int, change: int, rounds: int, root: str) -> dict[str, Any]:
    job = WrittenJob(root, [ValueStateDescriptor("count", "bigint")], "bigint", parallelism=SUBTASKS)
    for first in range(0, keys, CHUNK):
        job.epoch_of((key, add) for key in range(first, min(first + CHUNK, keys)))
    coordinator = coordinator_of(job.directory, job.writer)
    step = max(1, keys // change)
    write, completion, size = [], [], []
    for number in range(rounds):
        forget_runs()
        names = len(job.runs)
        touched = [((key * step) + number) % keys for key in range(change)]
        started = time.perf_counter()
        job.epoch_of((key, add) for key in touched)
        write.append(time.perf_counter() - started)
        checkpoint, seconds = completed(coordinator, job)
        completion.append(1000 * seconds)
        size.append(sum(run.size for run in job.runs[names:]) + checkpoint.get_metadata_size())
    coordinator.shutdown()
    return {
        "case": "changed",
        "keys": keys,
        "changed": change,
        "state_bytes": sum(run.size for run in job.runs),
        "new_bytes": round(statistics.median(size)),
        "write_s_median": round(statistics.median(write), 3),
        "complete_ms_median": round(statistics.median(completion), 2),
        "rounds": rounds,
    }


def add(states: Any) -> None:
    states.count.update((states.count.value() or 0) + 1)


def completed(coordinator: CheckpointCoordinator, job: WrittenJob) -> tuple[CompletedCheckpoint, float]:
    tasks = [CheckpointParticipant(f"attempt-{index}", "operator", index) for index in range(SUBTASKS)]
    pending = coordinator.begin(job.epoch, tasks, force=True)
    assert pending is not None
    for task in tasks:
        coordinator.acknowledge(pending, task.execution_id)
    started = time.perf_counter()
    checkpoint = coordinator.complete(pending, job.metadata(pending.checkpoint_id))
    return checkpoint, time.perf_counter() - started


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for subtasks in map(int, arguments.subtasks.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
            yield complete(subtasks, arguments.rounds, root)
    sizes = list(map(int, arguments.keys.split(",")))
    for keys in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
            yield changed(keys, max(1, max(sizes) // 100), max(1, arguments.rounds // 6), root)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure checkpoints.")
    parser.add_argument("--subtasks", default="8,10000")
    parser.add_argument("--keys", default="50000,500000,5000000", help="sizes of the state; 1%% of the largest changes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="where the checkpoints go; the default is the temporary one")
    parser.add_argument("--json", action="store_true", help="print one object a line and nothing else")
    arguments = parser.parse_args()
    for line in measure(arguments):
        if arguments.json:
            print(json.dumps(line))
        else:
            print("  ".join(f"{name}={value}" for name, value in line.items()))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
