"""What a task says travels in one short row, whatever it says and carries."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptFileError, NotExistError
from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.task_report import LONGEST_ROW, StepReport, TaskReport, decode_report, encode_report
from holdfast.storage.job_directory import FileName, JobDirectory
from holdfast.storage.scheme import file_system_for


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(file_system_for(str(tmp_path)), str(tmp_path), JobID.from_name("job"))
    made.create()
    return made


def names() -> Callable[[], FileName]:
    return lambda: FileName.new(3, 17, 0, "barrier", 1)


def report(committables: int) -> TaskReport:
    """One whose length is about a hundred bytes a committable, and that does not get shorter by compression."""
    luck = random.Random(committables)
    staged: list[Any] = [{"file": f"ä-{luck.randbytes(40).hex()}"} for _ in range(committables)]
    step = StepReport(
        "uid",
        3,
        run={"path": "shared/x.run"},
        committables=tuple(staged),
        records_in=5,
        records_out=7,
        least_timer=99,
        saving=(3, 14),
    )
    return TaskReport(1, 0, "a", steps=(step,), read="0" * 32, observed={"clock": -5}, read_attempts=((0, "z"),))


@pytest.mark.parametrize("committables", [0, 1, 100, 1_300, 1_400, 20_000])
def test_a_barrier_of_any_length_arrives_as_it_was(directory: JobDirectory, committables: int) -> None:
    sent = report(committables)
    row = encode_report(sent, directory, names())
    assert len(row) <= LONGEST_ROW
    assert decode_report(row, directory) == sent


@pytest.mark.parametrize("committables", [0, 1, 1_300, 3_000])
@pytest.mark.parametrize("carriers", [1, 2, 3])
def test_forwarded_reports_arrive_unchanged_and_in_place(
    directory: JobDirectory, committables: int, carriers: int
) -> None:
    sent = report(committables)
    row = encode_report(sent, directory, names())
    for stage in range(carriers):
        carrier = TaskReport(2 + stage, 0, "c", upstream=(sent, sent))
        row = encode_report(carrier, directory, names(), [row, row])
        sent = carrier
        assert len(row) <= LONGEST_ROW
    assert decode_report(row, directory) == sent


@pytest.mark.parametrize("cut", [1, 5, 40, -1, -40])
def test_a_carrier_that_is_cut_off_is_refused(directory: JobDirectory, cut: int) -> None:
    row = encode_report(report(0), directory, names(), [encode_report(report(1), directory, names())])
    with pytest.raises(CorruptFileError, match="cannot be read"):
        decode_report(row[:cut], directory)


def test_only_a_report_too_long_for_a_row_goes_to_a_file_that_is_swept(directory: JobDirectory) -> None:
    encode_report(report(100), directory, names())
    assert directory.fs.list_names(directory.taskowned_dir) == []
    encode_report(report(20_000), directory, names())
    [listed] = directory.fs.list_names(directory.taskowned_dir)
    name = FileName.parse(listed)
    assert name is not None
    assert (name.token, name.epoch, name.owner) == (3, 17, "barrier")


def test_a_report_with_a_damaged_or_missing_file_is_rejected_by_name(directory: JobDirectory) -> None:
    row = encode_report(report(20_000), directory, names())
    [listed] = directory.fs.list_names(directory.taskowned_dir)
    file = Path(directory.taskowned_dir, listed)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptFileError, match=listed):
        decode_report(row, directory)
    file.unlink()
    with pytest.raises(NotExistError, match=listed):
        decode_report(row, directory)
