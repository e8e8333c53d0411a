"""for_each_epoch, print and collect: what they see is what the checkpoint names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.sinks.driver_sinks import CollectSink, ForEachEpochSink, Mailbox, PrintSink
from holdfast.errors import ConfigurationError, JobExecutionError, StorageError, UserFunctionError
from holdfast.testing.sink_contract import SinkStage as Stage
from holdfast.types.type_parser import to_type


class Table:
    """A table that is written idempotently by epoch, as the documentation asks for."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[int, list[Any]]] = []
        self.rows: dict[int, list[Any]] = {}
        self.failures = failures

    def write(self, frame: Any, epoch: int) -> None:
        rows = [tuple(row.values()) for row in frame.to_pylist()]
        self.calls.append((epoch, rows))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the database is away")
        self.rows[epoch] = rows


def test_the_function_gets_one_frame_an_epoch_over_the_rows_of_all_subtasks(tmp_path: Path) -> None:
    table = Table()
    stage = Stage(ForEachEpochSink(table.write), tmp_path)
    committables = stage.write(2, [("sand", 3)], subtask=1)
    committables += stage.write(1, [("kelp", 1)]) + stage.write(1, [("rock", 2)], subtask=1)
    assert table.calls == []

    stage.commit(committables)

    assert table.calls == [(1, [("kelp", 1), ("rock", 2)]), (2, [("sand", 3)])]


def test_it_is_called_again_with_the_same_rows_until_it_returns(tmp_path: Path) -> None:
    table = Table(failures=3)
    stage = Stage(ForEachEpochSink(table.write), tmp_path)
    stage.commit(stage.write(1, [("kelp", 1)]) + stage.write(2, [("rock", 2)]))

    assert table.calls == [(1, [("kelp", 1)])] * 4 + [(2, [("rock", 2)])]
    assert table.rows == {1: [("kelp", 1)], 2: [("rock", 2)]}


def test_when_it_never_returns_the_job_fails_with_the_users_traceback_and_can_still_commit_later(
    tmp_path: Path,
) -> None:
    table = Table(failures=11)
    stage = Stage(ForEachEpochSink(table.write), tmp_path)
    committables = stage.write(1, [("kelp", 1)])

    with pytest.raises(StorageError, match="after 10 retries") as caught:
        stage.commit(committables)

    cause = caught.value.__cause__
    assert isinstance(cause, UserFunctionError)
    assert cause.epoch == 1
    assert "in write" in str(cause), "the user's traceback"
    assert "ConnectionError: the database is away" in str(cause)
    stage.commit(committables)
    assert table.rows == {1: [("kelp", 1)]}


def test_it_is_not_called_for_an_epoch_without_rows(tmp_path: Path) -> None:
    table = Table()
    stage = Stage(ForEachEpochSink(table.write), tmp_path)
    stage.commit(stage.write(1, []) + stage.write(2, [("kelp", 1)]))
    assert [epoch for epoch, _ in table.calls] == [2]


def test_the_function_stays_in_the_driver_so_it_may_hold_what_cannot_be_pickled(tmp_path: Path) -> None:
    class Connected(Table):
        def __reduce__(self) -> Any:
            raise TypeError("a connection cannot be pickled")

    shipped = pickle.loads(pickle.dumps(ForEachEpochSink(Connected().write)))
    assert len(Stage(shipped, tmp_path).write(1, [("kelp", 1)])) == 1


def test_what_asks_the_target_for_its_last_epoch_must_be_a_function() -> None:
    with pytest.raises(ConfigurationError, match="last_epoch of for_each_epoch is a function"):
        ForEachEpochSink(Table().write, 3)  # type: ignore[arg-type]


def test_staged_files_stay_until_no_checkpoint_names_them(tmp_path: Path) -> None:
    table = Table()
    stage = Stage(ForEachEpochSink(table.write), tmp_path)
    committables = stage.write(1, [("kelp", 1)])
    stage.commit(committables)
    stage.commit(committables)
    other = tmp_path / "000001-000000001-1-deadbeef-0-0123456789ab.parquet"
    other.write_bytes(b"of another sink")

    assert len(table.calls) == 2
    assert stage.sweep(lambda name: name.epoch == 1) == 1
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


def test_elements_are_printed_after_the_commit_with_flinks_prefixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(PrintSink(to_type("word string, n bigint"), "words"), tmp_path)
    committables = stage.write(1, [("rock", 2)], subtask=1) + stage.write(1, [("kelp", 1)])
    assert capsys.readouterr().out == ""

    stage.commit(committables)

    assert capsys.readouterr().out == "words:1> +I[kelp,1]\nwords:2> +I[rock,2]\n"


def test_plain_and_pickled_elements_can_be_printed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for described, elements in (("bigint", [1, 2]), (None, [{"any": "thing"}])):
        stage = Stage(PrintSink(to_type(described)), tmp_path, described)  # type: ignore[arg-type]
        stage.commit(stage.write(1, elements))
    assert capsys.readouterr().out == "1> 1\n1> 2\n1> {'any': 'thing'}\n"


def test_collected_elements_arrive_once_although_their_commit_is_repeated(tmp_path: Path) -> None:
    mailbox = Mailbox(to_type("word string, n bigint"))
    stage = Stage(CollectSink(mailbox.name), tmp_path)
    first = stage.write(1, [("kelp", 1)])
    stage.commit(first)
    stage.commit(first + stage.write(2, [("rock", 2)]))
    mailbox.end()

    assert list(mailbox) == [("kelp", 1), ("rock", 2)]


def test_the_error_of_the_job_comes_after_the_elements_of_its_complete_epochs(tmp_path: Path) -> None:
    mailbox = Mailbox(to_type("word string, n bigint"))
    stage = Stage(CollectSink(mailbox.name), tmp_path)
    stage.commit(stage.write(1, [("kelp", 1)]))
    mailbox.end(JobExecutionError("the job failed"))

    elements = iter(mailbox)
    assert next(elements).word == "kelp"
    with pytest.raises(JobExecutionError):
        next(elements)


def test_a_closed_mailbox_holds_nobody_up(tmp_path: Path) -> None:
    mailbox = Mailbox(to_type("word string, n bigint"))
    stage = Stage(CollectSink(mailbox.name), tmp_path)
    mailbox.close()
    stage.commit([c for epoch in range(100) for c in stage.write(epoch, [("kelp", epoch)])])
    mailbox.end()
