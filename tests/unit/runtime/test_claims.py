"""A snapshot that is claimed goes when a checkpoint has taken its place, whenever somebody dies, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint import claim
from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.errors import ConfigurationError, FencedError, HoldfastError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.runtime import restore
from holdfast.state import ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointWriter
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PATH = "execution.state-recovery.path"
CLAIM = {"execution.state-recovery.claim-mode": "CLAIM"}
WORDS = [["kelp", "rock"], ["kelp"], ["ü", "rock"]]
MORE = [*WORDS, ["kelp"]]
EXPECTED = [("kelp", 6), ("kelp", 7), ("rock", 8), ("rock", 9), ("ü", 1)]


def savepoint(place: Path, n: int = 5) -> Path:
    table = pa.table({"word": ["kelp", "rock"], "n": [n, n + 2]})
    count = ValueStateDescriptor("count", "bigint")
    made = OperatorTransformation.bootstrap_with(table).key_by("word").to_state(count, "n")
    writer = SavepointWriter.new_savepoint(None, 16).set_clock(ManualClock(0)).with_operator("count", made)
    return Path(writer.write(str(place / "savepoint")))


def start(place: Path, path: Path | str | None, options: Any = CLAIM, *, words: Any = WORDS, name: str = "job") -> None:
    program = Program()
    stream = program.source("in", "word string").key_by("word")
    told = stream.process(Numbering(lambda row, n: (row[0], n)), "word string, n bigint").uid("count")
    told.sink_to(Journal(place / f"out-{name}")).uid("out")
    inputs = epochs("in", [[(word,) for word in batch] for batch in words])
    recovery = {} if path is None else {PATH: str(path), **options}
    run(program, place / name, inputs, recovery, clock=ManualClock(0))


def is_no_reason_to_fail(when: str, where: str) -> bool:
    """A deletion is tried again; and of a write whose answer is lost the job finds that it happened."""
    return where == "subsume.delete" or (when == "lost" and where in ("metadata.write", "pointer.write"))


def rows(place: Path, name: str = "job") -> list[Any]:
    return sorted(journal.as_tuples(journal.read(place / f"out-{name}")))


def test_a_claimed_snapshot_is_deleted_after_the_first_checkpoint(place: Path) -> None:
    path = savepoint(place)
    start(place, path)
    assert not path.exists()
    assert rows(place) == EXPECTED
    assert "claimed" not in tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata.extra
    tidiness.inspect(place / "job")


def test_without_a_claim_it_stays(place: Path) -> None:
    path = savepoint(place)
    start(place, path, {})
    assert read_by_path(str(path)).metadata.is_savepoint
    assert rows(place) == EXPECTED


@pytest.mark.parametrize("where", ["run.write", "metadata.write", "pointer.write", "notify", "subsume.delete"])
@pytest.mark.parametrize("when", ["before", "after", "lost"])
def test_a_process_killed_with_a_claimed_savepoint_is_succeeded(place: Path, when: str, where: str) -> None:
    path = savepoint(place)
    fault.install(f"{when}:{where}=raise")
    if is_no_reason_to_fail(when, where):
        start(place, path)
        fault.clear()
        start(place, None)
    else:
        with pytest.raises(HoldfastError):
            start(place, path)
        assert read_by_path(str(path)).metadata.is_savepoint
        fault.clear()
        start(place, path)  # the same command line, as a service manager repeats it
    assert not path.exists()
    assert rows(place) == EXPECTED


def test_a_deletion_of_a_killed_process_is_completed_by_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = savepoint(place)

    def dies(*_: Any) -> None:
        raise StorageError("the power is off")

    with monkeypatch.context() as patched:
        patched.setattr(claim, "_delete_state", dies)
        start(place, path, words=WORDS[:2])
    assert path.exists() and not (path / "_metadata").exists()
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1]
    assert newest.metadata.extra["claimed"]["path"] == str(path)
    start(place, None)
    assert not path.exists()
    assert rows(place) == EXPECTED


def test_another_savepoint_at_the_same_place_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = savepoint(place)

    def dies(*_: Any) -> None:
        raise StorageError("the power is off")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.checkpoint.claim.dispose_savepoint", dies)
        start(place, path, words=WORDS[:1])
    shutil.rmtree(path)
    savepoint(place, 100)
    start(place, None)
    assert read_by_path(str(path)).metadata.is_savepoint
    assert rows(place) == EXPECTED


def test_a_savepoint_of_the_job_has_no_pending_deletions(place: Path) -> None:
    path = savepoint(place)
    start(place, path)
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1]
    copy = SavepointWriter.from_existing_savepoint(None, newest.path).write(str(place / "copy"))
    assert "claimed" not in read_by_path(copy).metadata.extra


def test_a_link_cannot_be_claimed(place: Path) -> None:
    path = savepoint(place)
    (place / "link").symlink_to(path)
    with pytest.raises((ConfigurationError, HoldfastError), match="link"):
        start(place, place / "link")
    assert read_by_path(str(path)).metadata.is_savepoint


def other(place: Path) -> list[Any]:
    """What another job retains, oldest first."""
    start(place, savepoint(place), {}, name="other")
    return list(tidiness.retained(tidiness.job_directory(place / "other")))


def runs_of(*checkpoints: Any) -> set[str]:
    return {Path(run.path).name for one in checkpoints for each in one.metadata.operators for run in each.runs}


def test_a_claimed_checkpoint_is_deleted_except_for_shared_files(place: Path) -> None:
    *others, newest = other(place)
    needed = runs_of(*others)
    start(place, newest.path, words=[*MORE, ["rock"]])
    assert ("kelp", 8) in rows(place)
    assert not Path(newest.path).exists()
    shared = {path.name for path in (Path(newest.path).parent / "shared").iterdir()}
    assert needed and needed <= shared
    only_its_own = runs_of(newest) - needed
    assert only_its_own and not only_its_own & shared
    left = tidiness.retained(tidiness.job_directory(place / "other"))
    assert [one.checkpoint_id for one in left] == [one.checkpoint_id for one in others]
    assert "claimed" not in tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata.extra
    start(place, left[-1].path, {}, name="third", words=MORE)  # it is whole
    assert ("kelp", 8) in rows(place, "third")
    tidiness.inspect(place / "job")


@pytest.mark.parametrize("where", ["run.write", "metadata.write", "pointer.write", "notify", "subsume.delete"])
@pytest.mark.parametrize("when", ["before", "after", "lost"])
def test_a_process_killed_with_a_claimed_checkpoint_is_succeeded(place: Path, when: str, where: str) -> None:
    newest = other(place)[-1]
    fault.install(f"{when}:{where}=raise")
    if is_no_reason_to_fail(when, where):
        start(place, newest.path, words=MORE)
        fault.clear()
        start(place, None, words=[*MORE, ["rock"]])
    else:
        with pytest.raises(HoldfastError):
            start(place, newest.path, words=MORE)
        assert read_by_path(newest.path).checkpoint_id == newest.checkpoint_id
        fault.clear()
        start(place, newest.path, words=MORE)
    assert not Path(newest.path).exists()
    assert ("kelp", 8) in rows(place)
    tidiness.retained(tidiness.job_directory(place / "other"))


def test_a_deletion_of_a_checkpoint_by_a_killed_process_is_completed_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = other(place)[-1]

    def dies(*_: Any) -> None:
        raise StorageError("the power is off")

    with monkeypatch.context() as patched:
        patched.setattr(claim, "_delete", dies)
        start(place, newest.path, words=MORE)
    assert Path(newest.path).exists()
    start(place, None, words=[*MORE, ["rock"]])
    assert not Path(newest.path).exists()


def test_a_job_that_was_led_meanwhile_has_taken_its_checkpoint_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = other(place)[-1]

    def dies(*_: Any) -> None:
        raise StorageError("the power is off")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.checkpoint.claim.delete_claimed", dies)
        start(place, newest.path, words=MORE)
    start(place, None, {}, name="other", words=[*MORE, ["kelp"]])
    start(place, None, words=[*MORE, ["rock"]])
    again = tidiness.retained(tidiness.job_directory(place / "other"))[-1]
    assert again.checkpoint_id > newest.checkpoint_id
    tidiness.inspect(place / "other")


def test_a_claim_is_repeated_after_a_lost_answer_to_the_fencing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = other(place)[-1]
    raised = FileRegister.raise_token

    def unheard(register: FileRegister, owner: str) -> Any:
        writer = raised(register, owner)
        if "has claimed checkpoint" in owner:
            raise StorageError("the answer is lost")
        return writer

    with monkeypatch.context() as patched:
        patched.setattr(FileRegister, "raise_token", unheard)
        with pytest.raises(HoldfastError, match="the answer is lost"):
            start(place, newest.path, words=MORE)
    assert read_by_path(newest.path).checkpoint_id == newest.checkpoint_id
    start(place, newest.path, words=MORE)
    assert not Path(newest.path).exists()
    assert ("kelp", 8) in rows(place)


def test_a_driver_of_the_job_whose_checkpoint_is_claimed_is_fenced(place: Path) -> None:
    newest = other(place)[-1]
    writer = FileRegister(LocalFileSystem(), str(Path(newest.path).parent / "register")).raise_token(
        "a driver that runs"
    )
    start(place, newest.path, words=MORE)
    with pytest.raises(FencedError):
        writer.check()


def test_a_checkpoint_that_its_job_does_not_retain_cannot_be_claimed(place: Path) -> None:
    newest = other(place)[-1]
    copy = place / "copied" / Path(newest.path).name
    shutil.copytree(newest.path, copy)
    with pytest.raises(HoldfastError, match="does not retain it"):
        start(place, copy)


@pytest.mark.parametrize("named", ["{job}", "file://{job}", "{place}/link/{id}", "{job}/../{id}"])
def test_its_own_checkpoint_a_job_owns_anyway_however_it_is_named(place: Path, named: str) -> None:
    start(place, savepoint(place), {})
    (place / "link").symlink_to(place / "job")
    own = Path(tidiness.retained(tidiness.job_directory(place / "job"))[-1].path)
    path = named.format(place=place, job=own.parent, id=own.parent.name)
    start(place, f"{path}/{own.name}", words=MORE)
    assert rows(place)[2] == ("kelp", 8)


def test_where_the_register_is_matters_for_a_checkpoint_of_another_job_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = other(place)[-1].path
    start(place, None)
    monkeypatch.setattr(restore, "has_external_register", lambda directory: True)
    start(place, tidiness.retained(tidiness.job_directory(place / "job"))[-1].path, words=MORE)
    assert rows(place)[2] == ("kelp", 3)
    with pytest.raises(ConfigurationError, match="is in a coordination store"):
        start(place, another, name="third")
