"""A table that skips what is at most the last epoch of an incarnation equals its model, however the job is started."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink
from holdfast.errors import ConfigurationError, HoldfastError, JobExecutionError, RestoreError
from holdfast.kernel import fault
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, run

PATH = "execution.state-recovery.path"
FRESH = "execution.state-recovery.fresh"
NAME = "execution.state-recovery.request"
WORDS = [["a", "b"], ["a"], ["c"], ["d", "e"], ["f"]]
AT_ONCE = {"sink.committer.max-pending-checkpoints": "0"}
"""Each epoch is committed before the next one begins, so that it is known what a failure leaves."""


class Ledger:
    """A database: rows, and the last epoch of each incarnation, in one transaction."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.rows: list[str] = []
        self.calls: list[tuple[str, int]] = []

    def write(self, table: pa.Table, epoch: int, incarnation: str) -> None:
        self.calls.append((incarnation, epoch))
        if epoch <= self.last.get(incarnation, 0):
            return
        self.last[incarnation] = epoch
        self.rows += [row["value"] for row in table.to_pylist()]

    def last_epoch(self, incarnation: str) -> int | None:
        return self.last.get(incarnation)

    def new(self) -> list[str]:
        """What was written since it was asked last."""
        rows, self.rows = sorted(self.rows), []
        return rows


def go(place: Path, ledger: Any, count: int, options: Mapping[str, Any] | None = None, **settings: Any) -> None:
    program = Program()
    words = program.source("in", "string").map(lambda word: word, "string").uid("same")
    words.sink_to(ForEachEpochSink(ledger.write, settings.pop("last_epoch", None))).uid("db")
    directory = place / settings.pop("directory", "job")
    run(program, directory, epochs("in", WORDS[:count]), {**AT_ONCE, **(options or {})}, **settings)


def words(first: int, last: int) -> list[str]:
    return sorted(word for epoch in WORDS[first:last] for word in epoch)


def newest(place: Path) -> str:
    return tidiness.retained(tidiness.job_directory(place / "job"))[-1].path


def test_no_start_loses_a_row_because_another_counted_the_same_epoch(place: Path) -> None:
    """As it was found: with `skip if the epoch is there` all of these but the second wrote nothing."""
    ledger = Ledger()
    go(place, ledger, 3)
    assert ledger.new() == words(0, 3)
    go(place, ledger, 4)
    assert ledger.new() == words(3, 4), "goes on"
    go(place, ledger, 3, {FRESH: "true"})
    assert ledger.new() == words(0, 3), "--fresh is a new incarnation"
    go(place, ledger, 3, directory="moved")
    assert ledger.new() == words(0, 3), "so is a new directory"
    assert len(ledger.last) == 3
    go(place, ledger, 5, directory="copy", name="copy")
    assert ledger.new() == words(0, 5)


def test_a_start_from_a_checkpoint_commits_its_output_in_its_incarnation(place: Path) -> None:
    ledger = Ledger()
    go(place, ledger, 2)
    ((incarnation, _), *_) = ledger.calls
    options = {PATH: newest(place)}
    ledger.new()
    ledger.calls.clear()
    go(place, ledger, 5, options, directory="copy", name="copy", parallelism=3, source_tasks=1)
    # The checkpoint may name the epoch before as well, whose commit had not ended.
    again = [epoch for name, epoch in ledger.calls if name == incarnation]
    assert again in ([2], [1, 2]), "of the writer, not of who commits it again"
    assert ledger.calls[: len(again)] == [(incarnation, epoch) for epoch in again]
    assert len({name for name, _ in ledger.calls[len(again) :]}) == 1
    assert ledger.new() == words(2, 5)


def test_rows_that_the_first_job_never_committed_are_committed_by_the_one_started_from_its_checkpoint(
    place: Path,
) -> None:
    ledger = Ledger()
    fault.install("before:sink.commit:2=raise")
    with pytest.raises(JobExecutionError):
        go(place, ledger, 2)
    fault.clear()
    assert ledger.new() == words(0, 1)
    go(place, ledger, 5, {PATH: newest(place)}, directory="copy", name="copy")
    assert ledger.new() == words(1, 5)


@pytest.mark.parametrize("start", ["fresh", "path"])
@pytest.mark.parametrize(
    "moment",
    [
        "before:metadata.write:1",
        "before:pointer.write:1",
        "after:pointer.write:1",
        "before:notify:1",
        "before:sink.commit:1",
        "after:sink.commit:2",
        "before:metadata.write:2",
    ],
)
def test_a_start_on_request_happens_once_although_its_process_dies_and_is_started_in_the_same_way(
    place: Path, start: str, moment: str
) -> None:
    ledger = Ledger()
    go(place, ledger, 2)
    options = {FRESH: "true"} if start == "fresh" else {PATH: newest(place)}
    go(place, ledger, 1, directory="there")
    ledger.new()
    before = set(ledger.last)
    expected = words(0 if start == "fresh" else 2, 5)
    fault.install(f"{moment}=raise")
    with pytest.raises(HoldfastError):
        go(place, ledger, 4, options, directory="there")
    with suppress(HoldfastError):
        go(place, ledger, 4, options, directory="there")
    fault.clear()
    request = tidiness.register_of(tidiness.job_directory(place / "there")).requested_start
    if request:  # the second process died too
        go(place, ledger, 4, options, directory="there")
    assert ledger.new() == words(0 if start == "fresh" else 2, 4)
    assert len(set(ledger.last) - before) == 1, "one start, one incarnation"
    go(place, ledger, 5, options, directory="there")
    assert ledger.new() == expected, "a process that ended by itself has done what it was asked for"
    assert len(set(ledger.last) - before) == 2


def test_another_name_makes_it_another_start(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    fault.install("before:metadata.write:3=raise")
    with pytest.raises(JobExecutionError):
        go(place, ledger, 4, {FRESH: "true"})
    fault.clear()
    assert ledger.new() == words(0, 2)
    with caplog.at_level(logging.WARNING):
        go(place, ledger, 4, {FRESH: "true", NAME: "second"})
    assert ledger.new() == words(0, 4)
    fault.install("before:metadata.write:3=raise")
    with pytest.raises(JobExecutionError):
        go(place, ledger, 4, {FRESH: "true", NAME: "third"})
    fault.clear()
    ledger.new()
    with caplog.at_level(logging.WARNING):
        go(place, ledger, 4, {FRESH: "true", NAME: "third"})
    assert ledger.new() == words(2, 4)
    assert NAME in caplog.text


def test_a_restart_in_the_process_keeps_the_incarnation(place: Path) -> None:
    ledger = Ledger()
    for options in ({FRESH: "true"}, {}):
        fault.install("before:metadata.write:2=raise")
        go(place, ledger, 5, {**RESTARTING, **options})
        fault.clear()
    assert ledger.new() == words(0, 5)
    assert len(ledger.last) == 1


def test_a_function_of_two_parameters_is_called_as_ever(place: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    class Two:
        def write(self, table: pa.Table, epoch: int) -> None:
            seen.append((epoch,))

    class WithDefault:
        def write(self, table: pa.Table, epoch: int, name: str = "orders") -> None:
            seen.append((epoch, name))

    class ByName:
        def write(self, table: pa.Table, epoch: int, *, incarnation: str) -> None:
            seen.append((epoch, len(incarnation)))

    class Any_:
        def write(self, *arguments: Any) -> None:
            seen.append(arguments[1:])

    for number, kind in enumerate((Two, WithDefault, ByName, Any_)):
        go(place, kind(), 1, directory=f"job{number}")
    assert seen == [(1,), (1, "orders"), (1, 12), (1,)]


class Watched(Journal):
    """Fails the first try of each epoch, and writes down what its committer is told."""

    seen: list[tuple[str, str, int]]

    def create_committer(self, context: CommitterInitContext) -> Committer:
        watched = self

        class Trying(Committer):
            def commit(self, requests: Sequence[CommitRequest]) -> None:
                for request in requests:
                    _SEEN.append((request.incarnation, request.uid, request.epoch))
                    if not request.number_of_retries:
                        request.retry_later()

        assert watched.directory
        return Trying()


_SEEN: list[tuple[str, str, int]] = []


def test_committers_get_the_incarnation_and_a_retried_epoch_delays_the_next(place: Path) -> None:
    _SEEN.clear()
    program = Program()
    program.source("in", "string").map(lambda word: word, "string").uid("same").sink_to(Watched(place)).uid("w")
    run(program, place / "job", epochs("in", WORDS[:3]), {"execution.checkpointing.interval": "1 h"}, source_tasks=1)
    assert [epoch for _, _, epoch in _SEEN] == [1, 1, 2, 2, 3, 3]
    assert {uid for _, uid, _ in _SEEN} == {"w"}
    register = tidiness.register_of(tidiness.job_directory(place / "job"))
    assert {incarnation for incarnation, _, _ in _SEEN} == {register.incarnation}


def test_a_restored_job_directory_is_rejected_if_the_function_reports_its_last_epoch(place: Path) -> None:
    """As it was found: the epochs of the copy were taken for those that were written, and their rows were lost."""
    ledger = Ledger()
    told = {"last_epoch": ledger.last_epoch}
    go(place, ledger, 2, **told)
    shutil.copytree(place / "job", place / "backup")
    go(place, ledger, 4, **told)
    assert ledger.new() == words(0, 4), "asked before each first write, also of an incarnation that it has not"
    shutil.rmtree(place / "job")
    shutil.copytree(place / "backup", place / "job")
    with pytest.raises(RestoreError, match=r"committed epoch 4 .* is of epoch 2: the job directory was restored.*-s"):
        go(place, ledger, 5, RESTARTING, **told)
    assert ledger.new() == []
    go(place, ledger, 5, {PATH: newest(place)}, **told)
    assert ledger.new() == words(2, 5), "what came after the copy is emitted again"


def test_two_copies_of_one_job_directory_do_not_take_their_epochs_for_each_others(place: Path) -> None:
    ledger = Ledger()
    go(place, ledger, 2, last_epoch=ledger.last_epoch)
    shutil.copytree(place / "job", place / "copy")

    class Beside(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            if epoch_input is not None and epoch_input.number == 2:
                go(place, ledger, 3, directory="copy", last_epoch=ledger.last_epoch)
            return super().execute(epoch, epoch_input)

    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        go(place, ledger, 4, engine=Beside, last_epoch=ledger.last_epoch)
    assert ledger.new() == words(0, 3)


@pytest.mark.parametrize("answer", ["3", 3.5, (3,)])
def test_an_answer_that_is_no_epoch_ends_the_job_by_name(place: Path, answer: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"last_epoch of for_each_epoch 'db' returned .*an integer or None"):
        go(place, Ledger(), 1, last_epoch=lambda incarnation: answer)


def test_an_unavailable_target_is_awaited(place: Path) -> None:
    ledger, failures = Ledger(), [ConnectionError("the database is away")] * 3

    def last_epoch(incarnation: str) -> int | None:
        if failures:
            raise failures.pop()
        return ledger.last_epoch(incarnation)

    go(place, ledger, 3, RESTARTING, last_epoch=last_epoch)
    assert not failures
    assert ledger.new() == words(0, 3)
