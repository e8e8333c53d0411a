"""Who may write the register of a job, in ZooKeeper or a ConfigMap, and not its storage.

The register here is one of files, which has the same records. What such a person writes has a right checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.storage.register import RegisterRecord, RegisterState
from tests.stories.functions import Numbering
from tests.stories.local import Program, master

Change = Callable[[RegisterState], RegisterState]
EPOCHS = 3


Go = Callable[[int], list[int]]


@pytest.fixture
def go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Go:
    """Runs the job until it has had so many epochs of one row; returns what it has counted since it was started."""

    def run(epochs: int) -> list[int]:
        program = Program()
        keys = program.source("in", "key string").key_by("key")
        counts = keys.process(Numbering(lambda row, number: number), "bigint").uid("count")
        counts.print().uid("out")
        options = {"execution.checkpointing.num-retained": "2"}
        master(program, tmp_path, [{"in": [("k",)]} for _ in range(epochs)], options, parallelism=1).run()
        return list(map(int, capsys.readouterr().out.split()))

    return run


def directory(root: Path) -> Path:
    [found] = root.iterdir()
    return found


def rewrite(job: Path, change: Change) -> RegisterState:
    """Put another newest version into a register, as somebody may who reads and writes it; returns what it was."""
    newest = max((job / "register").iterdir())
    record = RegisterRecord.decode(newest.read_bytes(), str(newest))
    newest.write_bytes(replace(record, state=change(record.state)).encode())
    return record.state


def of_newest(**fields: Any) -> Change:
    """Says something else of the newest checkpoint."""
    return lambda state: replace(state, checkpoints=(*state.checkpoints[:-1], replace(state.checkpoints[-1], **fields)))


def files(job: Path) -> dict[Path, bytes]:
    """All that is kept of checkpoints."""
    return {path: path.read_bytes() for path in job.rglob("*") if path.is_file() and path.parent.name != "register"}


@pytest.mark.parametrize(
    "change",
    [
        of_newest(digest="0" * 64),
        of_newest(length=7),
        of_newest(path="/etc/passwd"),
        of_newest(path="shared/../chk-2/_metadata"),
        lambda state: replace(state, checkpoints=state.checkpoints[:1], next_checkpoint_id=3),
    ],
    ids=["digest", "length", "a file elsewhere", "another document", "an id again"],
)
def test_a_checkpoint_that_differs_from_its_register_entry_stops_the_job(
    tmp_path: Path, go: Go, change: Change
) -> None:
    go(EPOCHS)
    job = directory(tmp_path)
    before = files(job)
    was = rewrite(job, change)
    with pytest.raises(HoldfastError):
        go(EPOCHS + 3)
    after = files(job)
    assert {path: after[path] for path in before} == before
    rewrite(job, lambda state: replace(state, checkpoints=was.checkpoints, next_checkpoint_id=was.next_checkpoint_id))
    assert go(EPOCHS + 3) == [4, 5, 6], "where the register says again what it said, it goes on"


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda state: replace(state, checkpoints=state.checkpoints[:1]), [3, 4, 5, 6]),
        (lambda state: replace(state, checkpoints=state.checkpoints[::-1]), [3, 4, 5, 6]),
        (lambda state: replace(state, checkpoints=()), [1, 2, 3, 4, 5, 6]),
        (of_newest(is_savepoint=True), [4, 5, 6]),
        (lambda state: replace(state, token=0, newest_committed=10**9, incarnations=("another",)), [4, 5, 6]),
        (lambda state: replace(state, terminal="FINISHED"), []),
    ],
    ids=["the one before", "in another order", "forgotten", "a savepoint", "another history", "the end"],
)
def test_a_writer_of_the_register_can_choose_but_not_change_a_checkpoint(
    tmp_path: Path, go: Go, change: Change, counted: list[int]
) -> None:
    go(EPOCHS)
    job = directory(tmp_path)
    before = files(job)
    rewrite(job, change)
    assert go(EPOCHS + 3) == counted
    after = files(job)
    assert {path: content for path, content in before.items() if after.get(path, content) != content} == {}
