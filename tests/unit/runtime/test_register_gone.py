"""The disk of the checkpoints goes away while the job runs: its path is an empty directory, and then it is back."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.errors import FencedError, JobExecutionError, StorageError
from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.register import FileRegister
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, epochs, master

EPOCHS = epochs("numbers", [[number] for number in range(1, 9)])
EXPECTED = [1, 2, 4, 6, 9, 12, 16, 20]
AWAY = 3
"""So many attempts find nothing."""


def program(place: Path) -> Program:
    """The sums of odd and of even numbers."""
    program = Program()
    sums = program.source("numbers", "int").key_by(lambda n: n % 2).reduce(lambda one, other: one + other).uid("sums")
    sums.map(lambda n: (n,), "n int").sink_to(ParquetFileSink(place / "out")).uid("out")
    return program


def shown(place: Path) -> list[int]:
    return sorted(n for (n,) in ledger.read(place / "out"))


class Mount:
    """A directory whose disk can go away, and leave an empty one.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = path.with_name(f"{path.name}-disk")

    def goes(self) -> None:
        self.path.rename(self._disk)
        self.path.mkdir()

    def comes_back(self) -> None:
        shutil.rmtree(self.path)
        self._disk.rename(self.path)

    @property
    def is_away(self) -> bool:
        return self._disk.exists()

    @contextmanager
    def going_at(self, patch: pytest.MonkeyPatch, moment: str, name: str, arrival: int) -> Iterator[None]:
        """It goes before or after a certain step of the job."""
        arrivals, real = 0, fault.point

        @contextmanager
        def point(at: str) -> Iterator[None]:
            nonlocal arrivals
            is_here = False
            if at == name:
                arrivals += 1
                is_here = arrivals == arrival
            if is_here and moment == "before":
                self.goes()
            with real(at):
                yield
            if is_here and moment == "after":
                self.goes()

        with patch.context() as patched:
            patched.setattr(fault, "point", point)
            yield


@pytest.mark.parametrize("arrival", [2, 5])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "name", ["run.write", "sink.stage", "metadata.write", "pointer.write", "notify", "sink.commit", "subsume.delete"]
)
def test_a_job_waits_for_its_checkpoints_and_goes_on_from_them(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: str, arrival: int
) -> None:
    mount, reasons = Mount(place / "job"), []
    wait = JobMaster._wait_for_restart

    def waits(self: JobMaster, error: StorageError, attempt: int) -> None:
        reasons.append(error)
        wait(self, error, attempt)
        if len(reasons) == AWAY and mount.is_away:
            mount.comes_back()

    monkeypatch.setattr(JobMaster, "_wait_for_restart", waits)
    job = master(program(place), mount.path, EPOCHS, RESTARTING)
    with mount.going_at(monkeypatch, moment, name, arrival):
        assert job.run() is JobStatus.SUSPENDED
    assert reasons and all("is not mounted any more" in str(reason) for reason in reasons), reasons
    assert shown(place) == EXPECTED
    assert job.fencing_token == 2, "nothing was written into the empty directory that counts"


def test_a_strategy_without_restarts_ends_the_job_and_the_next_process_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = Mount(place / "job")
    with (
        mount.going_at(monkeypatch, "before", "run.write", 3),
        pytest.raises(JobExecutionError, match="has read the register of job 'job' there before"),
    ):
        master(program(place), mount.path, EPOCHS).run()
    mount.comes_back()
    assert master(program(place), mount.path, EPOCHS).run() is JobStatus.SUSPENDED
    assert shown(place) == EXPECTED


def test_a_register_begun_anew_by_another_leader_does_not_count_as_unavailable(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody deleted the directory, and started the job once more: two must not run."""
    job = master(program(place), place / "job", EPOCHS, RESTARTING)
    mount = Mount(place / "job")
    goes = mount.goes

    def goes_and_another_begins() -> None:
        goes()
        FileRegister.of(job.job.directory).raise_token("another")

    monkeypatch.setattr(mount, "goes", goes_and_another_begins)
    with (
        mount.going_at(monkeypatch, "before", "metadata.write", 3),
        caplog.at_level(logging.WARNING),
        pytest.raises(FencedError),
    ):
        job.run()
