"""A leader that sleeps at some step of an epoch, and wakes up when another one is ten epochs further."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import FencedError
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.epoch_runner import run_job
from tests.stories import ledger, tidiness
from tests.stories.gate import Gate, GatedEngine, GatedParquetSink, Leader
from tests.stories.gated_file_system import GatedFileSystem
from tests.stories.local import OPTIONS, run

EPOCHS, ROWS, ACCOUNTS, SEED = 18, 12, 5, 11
BEFORE, AFTER = 6, 16
DOCUMENT, POINTER = "after create_exclusive _metadata", "create_exclusive v-"

STEPS = {
    "before planning": ("epoch",),
    "before the first task": ("epoch", "before tasks"),
    "between the tasks of a stage": ("epoch", "task 1 1"),
    "between two stages": ("epoch", "task 2 0"),
    "before the last task": ("epoch", "task 2 1"),
    "after the last task": ("epoch", "after tasks"),
    "while positions are taken": ("epoch", "before positions"),
    "after positions were taken": ("epoch", "after positions"),
    "before ids are reserved": ("epoch", "before create_exclusive v-"),
    "after ids were reserved": ("epoch", "after create_exclusive v-"),
    "before the document is written": ("epoch", "before create_exclusive _metadata"),
    "after the document was written": ("epoch", DOCUMENT),
    "before the pointer is written": ("epoch", DOCUMENT, f"before {POINTER}"),
    "after the pointer was written": ("epoch", DOCUMENT, f"after {POINTER}"),
    "before the sink commits": ("epoch", "before commit"),
    "while the sink commits": ("epoch", "in commit"),
    "after the sink committed": ("epoch", "after commit"),
    "before the sweep reads the documents": ("epoch", "before read _metadata"),
    "before the sweep lists": ("epoch", "before list_names shared"),
    "before the sweep deletes": ("epoch", "after commit", "before delete _metadata"),
    "while the sweep deletes": ("epoch", "after commit", "after delete _metadata"),
    "before planning the next epoch": ("epoch", "epoch"),
    "in the next epoch's tasks": ("epoch", "epoch", "task 2 0"),
    "before the next document is written": ("epoch", "epoch", "before create_exclusive _metadata"),
    "before the next pointer is written": ("epoch", "epoch", DOCUMENT, f"before {POINTER}"),
}


def inputs(epochs: int) -> list[list[tuple[int, str, int]]]:
    return ledger.payments(EPOCHS, ROWS, ACCOUNTS, SEED)[:epochs]


def gated_job(place: Path, gate: Gate, **options: str) -> JobMaster:
    """The ledger, with everything that its leader does behind a gate; its inputs end where the other leader's do."""
    graph: StreamGraph = ledger.graph(place / "out", two_stages=True)
    for sink in graph.sinks:
        sink.sink = GatedParquetSink(place / "out", gate)
    engine = GatedEngine(ledger.inputs(inputs(AFTER)), gate)
    files = GatedFileSystem(LocalFileSystem(), gate)
    return run_job(graph, place / "job", engine, OPTIONS | options, file_system=files)


def ledger_run(place: Path, epochs: int, **options: str) -> JobStatus:
    graph = ledger.graph(place / "out", two_stages=True)
    return run(graph, place / "job", ledger.inputs(inputs(epochs)), options)


@pytest.mark.parametrize("step", STEPS)
def test_a_deposed_leader_that_wakes_up_is_fenced_and_changes_nothing(place: Path, step: str) -> None:
    # What an earlier process left behind gives the sweep of the next one something to delete.
    ledger_run(place, BEFORE, **{"execution.checkpointing.cleaner.grace-period": "1 h"})
    gate = Gate(*STEPS[step])
    # Commits beside the next epoch may be through when only the last sweep is left, after which nobody asks who leads.
    at_once = {"sink.committer.max-pending-checkpoints": "0"} if "sweep" in step else {}
    sleeper = Leader(gated_job(place, gate, **at_once))
    gate.await_arrival()
    assert ledger_run(place, AFTER) is JobStatus.SUSPENDED
    directory = tidiness.job_directory(place / "job")
    before = tidiness.register_of(directory)

    gate.open()
    sleeper.await_end()
    assert isinstance(sleeper.error, FencedError), repr(sleeper.error)
    assert sleeper.master.status is JobStatus.SUSPENDED
    after = tidiness.register_of(directory)
    assert after == before, "the register is as the new leader left it"
    assert after.terminal is None
    ledger.audit(place / "out", inputs(AFTER), two_stages=True)

    # Whoever comes next finds everything whole, and tidies up behind both.
    assert ledger_run(place, EPOCHS) is JobStatus.SUSPENDED
    ledger.audit(place / "out", inputs(EPOCHS), two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))
