"""Files of an input that vanish between an epoch and its repetition: nobody goes on without their rows unasked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InputGoneError
from tests.spark.test_inputs import Files, once

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RETRIED = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 5,
    "restart-strategy.fixed-delay.delay": "0 ms",
}


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Files:
    found = Files(spark, tmp_path)
    found.put("a", "a1", "a 3", "a2")
    return found


def counted(files: Files, frame: Any, fails_at: str, vanishing: list[str]) -> Any:
    """A job that dies once, at one line, when these files have gone."""
    root = str(files.root)

    def die_once(row: Any) -> Any:
        died = Path(root, "died")
        if row.value == fails_at and not died.exists():
            died.touch()
            for name in vanishing:
                Path(root, "a", name).unlink()
            raise RuntimeError("the epoch dies")
        return row

    return files.run(("a", frame), options=RETRIED, change=lambda stream: stream.map(die_once, "value string"))


def text(files: Files, **options: str) -> Any:
    return files.spark.readStream.options(maxFilesPerTrigger="2", **options).text(str(files.root / "a"))


def test_a_file_deleted_before_its_epoch_is_repeated_fails_the_job_by_name(files: Files) -> None:
    with pytest.raises(InputGoneError) as caught:
        counted(files, text(files), "a1", ["a1", "a 3"])
    for part in ("'a'", "2 file(s)", f"{files.root}/a/a1", "a%203", "ignoreMissingFiles=true"):
        assert part in str(caught.value)
    assert not list((files.root / "out").glob("*.parquet"))


def test_a_restored_file_is_read(files: Files) -> None:
    with pytest.raises(InputGoneError):
        counted(files, text(files), "a1", ["a1"])
    files.put("a", "a1")
    assert files.run(("a", text(files))) == once("a1", "a2", "a 3")


def test_ignored_missing_files_are_logged_by_name(files: Files, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert counted(files, text(files, ignoreMissingFiles="true"), "a1", ["a1"]) == once("a2", "a 3")
    [told] = [record.message for record in caplog.records if "Missing files are skipped" in record.message]
    assert told.endswith(f"{files.root}/a/a1")


def test_files_of_completed_checkpoints_may_be_deleted(files: Files) -> None:
    files.run(("a", text(files)))
    files.put("a", "a4")
    for name in ("a1", "a2"):
        Path(files.root, "a", name).unlink()
    assert counted(files, text(files), "a4", ["a 3"]) == once("a1", "a2", "a 3", "a4")


def test_files_of_epochs_completed_by_the_failed_attempt_may_be_deleted(files: Files) -> None:
    files.put("a", "a4", "a5")
    assert counted(files, text(files), "a5", ["a1", "a2"]) == once("a1", "a2", "a 3", "a4", "a5")
