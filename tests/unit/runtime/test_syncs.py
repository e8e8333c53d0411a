"""Syncs of a disk that an epoch takes: those that docs/decisions/0047 gives a reason for, and no more."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.job.control import JobStatus
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import ledger
from tests.stories.local import master

EPOCHS, MEASURED = 10, slice(4, 9)
OF_EACH_SUBTASK = {
    "job/shared/FILE": 1,
    "job/shared": 1,
    "out/.holdfast/SINK/FILE": 1,
    "out/.holdfast/SINK": 1,
}
OF_THE_DRIVER = {
    "job": 1,
    "job/chk-N/FILE": 1,
    "job/chk-N": 1,
    "job/register/FILE": 1,
    "job/register": 1,
    "out/.holdfast/SINK/ledger/FILE": 1,
    "out/.holdfast/SINK/ledger": 1,
    "out": 1,
    "out/.holdfast/SINK": 1,
}


@pytest.mark.parametrize("subtasks", [1, 3])
def test_an_epoch_syncs_what_a_power_failure_must_not_take(
    place: Path, monkeypatch: pytest.MonkeyPatch, subtasks: int
) -> None:
    epochs: list[Counter[str]] = []
    sync = os.fsync

    def counting(descriptor: int) -> None:
        if epochs:
            path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(place).as_posix()
            path = re.sub(r"^job/[0-9a-f]{32}", "job", path)
            path = re.sub(r"/\.[^/]*\.tmp$", "/FILE", path)
            epochs[-1][re.sub(r"holdfast/[^/]+", "holdfast/SINK", re.sub(r"chk-\d+", "chk-N", path))] += 1
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counting)

    class CountingEngine(LocalEngine):
        def execute(self, *arguments: Any) -> Any:
            epochs.append(Counter())
            return super().execute(*arguments)

    payments = ledger.payments(EPOCHS, 30 * subtasks, 100, seed=1)
    job = master(
        ledger.graph(place / "out"),
        place / "job",
        ledger.inputs(payments),
        {"state.compaction.enabled": "false", "sink.committer.max-pending-checkpoints": "0"},
        parallelism=subtasks,
        engine=CountingEngine,
    )
    assert job.run() is JobStatus.SUSPENDED
    ledger.audit(place / "out", payments)
    expected = Counter(OF_THE_DRIVER) + Counter({path: subtasks * count for path, count in OF_EACH_SUBTASK.items()})
    assert epochs[MEASURED] == [expected] * 5
