"""A checkpoint promises output of a sink that the program no longer has: refused by name, or dropped if asked for."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from holdfast.cli.output import REFUSED_RESTORE, exit_code_of
from holdfast.datastream import ParquetFileSink
from holdfast.errors import JobExecutionError, RestoreError
from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus
from tests.stories import journal, ledger, tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, run

PATH = "execution.state-recovery.path"
IGNORE = "execution.state-recovery.ignore-unclaimed-state"
BATCHES = [["a", "b", "c"], ["d", "e"], ["f"]]
AT_ONCE = {"sink.committer.max-pending-checkpoints": "0"}
"""Each epoch is committed before the next one begins, so that it is known what a failure leaves."""


def words(out: Path, uid: str) -> Program:
    """Writes words as they are."""
    program = Program()
    program.source("in", "string").map(lambda word: word, "string").uid("same").sink_to(Journal(out)).uid(uid)
    return program


def first_run(place: Path) -> str:
    run(words(place / "out", "out"), place / "job", epochs("in", BATCHES), AT_ONCE)
    return tidiness.retained(tidiness.job_directory(place / "job"))[-1].path


def test_it_is_refused_with_the_exit_code_of_a_refused_restore_and_nothing_changes(place: Path) -> None:
    path = first_run(place)
    with pytest.raises(RestoreError, match=r"\['out'\].*1 row .*-n") as refused:
        run(words(place / "new", "files"), place / "k", epochs("in", BATCHES), {**RESTARTING, PATH: path}, name="k")
    assert exit_code_of(refused.value) == REFUSED_RESTORE
    assert (refused.value.missing_uids, refused.value.new_uids) == (("out",), ("files",))
    assert not (place / "new").exists()
    run(words(place / "new", "out"), place / "k", epochs("in", BATCHES), {PATH: path}, name="k")
    assert journal.read(place / "new") == BATCHES[-1], "under its old uid it is committed"


def test_output_of_a_removed_sink_is_dropped_on_request_and_its_rows_are_logged(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = first_run(place)
    program, options = words(place / "new", "files"), {**RESTARTING, PATH: path, IGNORE: "true"}
    with caplog.at_level(logging.WARNING):
        status = run(program, place / "k", epochs("in", [*BATCHES, ["g", "h"]]), options, name="k")
    assert status is JobStatus.SUSPENDED
    assert sorted(journal.read(place / "new")) == ["g", "h"]
    assert "1 row of 'out'" in caplog.text and "dropped" in caplog.text


def test_also_a_job_that_died_before_its_sink_had_committed_refuses_to_lose_the_rows(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault.install("before:sink.commit:2=raise")
    with pytest.raises(JobExecutionError):
        run(words(place / "out", "out"), place / "job", epochs("in", BATCHES), AT_ONCE)
    fault.clear()
    with pytest.raises(RestoreError, match=r"2 rows"):
        run(words(place / "out", "renamed"), place / "job", epochs("in", BATCHES), RESTARTING)
    with caplog.at_level(logging.WARNING):
        run(words(place / "out", "renamed"), place / "job", epochs("in", BATCHES), {**RESTARTING, IGNORE: "true"})
    assert "2 rows of 'out'" in caplog.text
    assert sorted(journal.read(place / "out")) == ["a", "b", "c", "f"]


def test_committed_output_of_a_removed_sink_does_not_block(place: Path) -> None:
    first_run(place)
    run(words(place / "out", "renamed"), place / "job", epochs("in", [*BATCHES, ["g"]]))
    assert sorted(journal.read(place / "out")) == ["a", "b", "c", "d", "e", "f", "g"]


def test_one_of_several_sinks_may_go_and_the_others_commit(place: Path) -> None:
    def program(*uids: str) -> Program:
        program = Program()
        stream = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment")
        entries = stream.process(ledger.Ledger(), ledger.ENTRY).uid("ledger")
        for uid in uids:
            entries.sink_to(ParquetFileSink(place / uid)).uid(uid)
        return program

    payments = ledger.payments(5, 12, 4, seed=2)
    fault.install("before:sink.commit:3=raise")
    with pytest.raises(JobExecutionError):
        run(program("a", "b"), place / "job", ledger.inputs(payments))
    fault.clear()
    run(program("a"), place / "job", ledger.inputs(payments), {IGNORE: "true"})
    ledger.audit(place / "a", payments)


def test_it_never_waits_in_silence(place: Path) -> None:
    """As it was found: with the default restart strategy the job neither started nor failed."""
    path = first_run(place)
    ended = threading.Event()

    def start() -> None:
        with pytest.raises(RestoreError):
            run(
                words(place / "n", "files"), place / "k", [], {PATH: path, "restart-strategy.type": "exponential-delay"}
            )
        ended.set()

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(60)
    assert ended.is_set()
