"""A savepoint that is claimed goes when a checkpoint has taken its place, whenever somebody dies, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.recovery import disposal
from holdfast.checkpoint.recovery.retained import load
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.state import ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointWriter
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PATH = "execution.state-recovery.path"
CLAIM = {"execution.state-recovery.claim-mode": "CLAIM"}
WORDS = [["kelp", "rock"], ["kelp"], ["ü", "rock"]]
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


def rows(place: Path, name: str = "job") -> list[Any]:
    return sorted(journal.as_tuples(journal.read(place / f"out-{name}")))


def test_it_goes_after_the_first_checkpoint_and_nobody_owes_anything_then(place: Path) -> None:
    path = savepoint(place)
    start(place, path)
    assert not path.exists()
    assert rows(place) == EXPECTED
    assert "claimed" not in tidiness.retained(tidiness.job_directory(place / "job"))[-1].metadata.extra
    tidiness.inspect(place / "job")


def test_without_a_claim_it_stays(place: Path) -> None:
    path = savepoint(place)
    start(place, path, {})
    assert load(str(path)).metadata.is_savepoint
    assert rows(place) == EXPECTED


@pytest.mark.parametrize("where", ["run.write", "metadata.write", "pointer.write", "notify", "subsume.delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_whoever_dies_is_followed_by_one_who_goes_on(place: Path, when: str, where: str) -> None:
    path = savepoint(place)
    fault.install(f"{when}:{where}=raise")
    if where == "subsume.delete":
        start(place, path)  # no reason to fail: it is tried again
        fault.clear()
        start(place, None)
    else:
        with pytest.raises(HoldfastError):
            start(place, path)
        assert load(str(path)).metadata.is_savepoint
        fault.clear()
        start(place, path)  # the same command line, as a service manager repeats it
    assert not path.exists()
    assert rows(place) == EXPECTED


def test_who_dies_while_deleting_is_followed_by_one_who_ends_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = savepoint(place)

    def dies(*_: Any) -> None:
        raise StorageError("the power is off")

    with monkeypatch.context() as patched:
        patched.setattr(disposal, "_delete_state", dies)
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
        patched.setattr("holdfast.checkpoint.recovery.claim.dispose_savepoint", dies)
        start(place, path, words=WORDS[:1])
    shutil.rmtree(path)
    savepoint(place, 100)
    start(place, None)
    assert load(str(path)).metadata.is_savepoint
    assert rows(place) == EXPECTED


def test_a_savepoint_of_the_job_says_nothing_of_what_the_job_owes(place: Path) -> None:
    path = savepoint(place)
    start(place, path)
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1]
    copy = SavepointWriter.from_existing_savepoint(None, newest.path).write(str(place / "copy"))
    assert "claimed" not in load(copy).metadata.extra


def test_a_checkpoint_of_another_job_and_a_link_cannot_be_claimed(place: Path) -> None:
    path = savepoint(place)
    (place / "link").symlink_to(path)
    with pytest.raises((ConfigurationError, HoldfastError), match="link"):
        start(place, place / "link")
    start(place, path, {})
    other = tidiness.retained(tidiness.job_directory(place / "job"))[-1].path
    with pytest.raises(HoldfastError, match="share its files"):
        start(place, other, name="other")
    # Its own it owns anyway, and deletes it when later ones have subsumed it.
    start(place, other, words=[*WORDS, ["kelp"]])
    assert rows(place)[2] == ("kelp", 8)
