"""A leader that can be stopped at any step of an epoch, and woken when nobody expects it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.datastream.sinks import ParquetFileSink
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.exchange.task_report import TaskReport
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import EpochDriver, EpochInput, Outcome, StagedInput
from holdfast.runtime.master.job_master import JobMaster
from holdfast.testing.epoch_runner import LocalEngine

PATIENCE = 60.0


class Gate:
    """Closes in front of whoever has passed the given steps in their order; the last one is where he stops.

    Args:
        steps: Beginnings of the names of steps.
    """

    def __init__(self, *steps: str) -> None:
        self._steps = list(steps)
        self._arrived = threading.Event()
        self._opened = threading.Event()

    def __call__(self, step: str) -> None:
        if self._steps and step.startswith(self._steps[0]):
            self._steps.pop(0)
            if not self._steps:
                self._arrived.set()
                assert self._opened.wait(PATIENCE), "nobody opened the gate"

    def await_arrival(self) -> None:
        """Blocks until somebody stands at the gate."""
        assert self._arrived.wait(PATIENCE), f"nobody came to {self._steps}"

    def open(self) -> None:
        """Lets him go on."""
        self._opened.set()


class GatedEngine(LocalEngine):
    """An epoch runner that tells a gate where it is."""

    def __init__(
        self, inputs: Sequence[Mapping[str, Sequence[Any]]], gate: Callable[[str], None], **settings: Any
    ) -> None:
        super().__init__(inputs, interceptor=lambda stage, task: gate(f"task {stage} {task}"), **settings)
        self.gate = gate

    def drive(self, driver: EpochDriver) -> Outcome:
        process = driver.process

        def gated(epoch_input: EpochInput) -> None:
            self.gate("epoch")
            positions = epoch_input.positions

            def take_positions() -> dict[str, Any]:
                self.gate("before positions")
                taken = positions()
                self.gate("after positions")
                return taken

            epoch_input.positions = take_positions  # type: ignore[method-assign]
            process(epoch_input)

        driver.process = gated  # type: ignore[method-assign]
        return super().drive(driver)

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[TaskReport]:
        self.gate("before tasks")
        barriers = super().execute(epoch, epoch_input)
        self.gate("after tasks")
        return barriers


class GatedParquetSink(ParquetFileSink):
    """A Parquet sink whose committer tells a gate where it is."""

    def __init__(self, path: Any, gate: Callable[[str], None]) -> None:
        super().__init__(path)
        self._gate: Callable[[str], None] | None = gate

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_gate": None}

    def create_committer(self, context: CommitterInitContext) -> Committer:
        assert self._gate is not None
        return _GatedCommitter(super().create_committer(context), self._gate)


class _GatedCommitter(Committer):
    def __init__(self, inner: Committer, gate: Callable[[str], None]) -> None:
        self._inner, self._gate = inner, gate

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._gate("before commit")
        for request in requests:
            self._inner.commit([request])
            self._gate("in commit")
        self._gate("after commit")


class Leader:
    """A job master in a thread of its own."""

    def __init__(self, master: JobMaster) -> None:
        self.master = master
        self.status: JobStatus | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.status = self.master.run()
        except BaseException as error:
            self.error = error

    def await_end(self) -> None:
        """Blocks until it has ended, however it did."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the leader hangs"
