"""What sinks do with a row that their target cannot take, where a task can tell: it stops the job, or goes aside."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from holdfast.datastream import OutputTag, ParquetFileSink
from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.testing.epoch.epoch_program import EpochProgram
from holdfast.testing.sink_contract.commit_process import PATIENCE
from holdfast.testing.sink_contract.sink_backend import SinkBackend

SINK: Final = "out"
EPOCHS: Final = 3
Written = tuple[Any, Any]
"""A row as it is written, which the target may refuse."""
ENDS: Final = (
    "after:sink.stage:5=kill",
    "after:pointer.write:2=kill",
    "after:sink.commit:3=kill",
    "lost:sink.commit:3=raise",
)
"""Two sinks commit each epoch, so the third commit is the first of the second epoch: one of the two has it then."""


class RefusalContract:
    """Jobs on the epoch runner, whose tasks come upon a row in each epoch that the target cannot take."""

    @pytest.fixture
    def refused(self, sink_backend: SinkBackend) -> Written:
        row = sink_backend.refused_row()
        if row is None:
            pytest.skip("the target takes all rows of these columns")
        return row

    def test_a_row_that_is_refused_stops_the_job_with_the_words_with_which_it_would_go_aside(
        self, sink_backend: SinkBackend, tmp_path: Path, refused: Written
    ) -> None:
        inputs = [{"in": [("kelp", 1)]}, {"in": [("rock", 2), refused, ("sand", 2)]}]
        for _ in range(2):  # started again, it says the same
            with pytest.raises(HoldfastError) as caught:
                _run(sink_backend, tmp_path, inputs, {"restart-strategy.type": "none"}, goes_aside=False)
        assert sink_backend.rows() == [("kelp", 1)]
        _run(sink_backend, tmp_path, inputs)
        assert sorted(sink_backend.rows()) == [("kelp", 1), ("rock", 2), ("sand", 2)]
        [letter] = _letters(tmp_path)
        assert letter[:3] == (refused, SINK, 2)
        assert letter[3] and letter[3] in str(caught.value)

    @pytest.mark.parametrize("end", ENDS)
    def test_a_row_that_is_refused_goes_aside_once_wherever_its_process_ends(
        self, sink_backend: SinkBackend, tmp_path: Path, refused: Written, end: str
    ) -> None:
        # A fork of this process might inherit a lock that a thread of it holds; one of the fork server does not.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(sink_backend).__module__])
        process = context.Process(target=_run_until, args=(sink_backend, tmp_path, refused, end), daemon=True)
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == (-signal.SIGKILL if end.endswith("kill") else 0)
        _run(sink_backend, tmp_path, _inputs(refused))
        assert sorted(sink_backend.rows()) == sorted((word, n) for word in ("kelp", "sand") for n in range(EPOCHS))
        letters = [letter[:3] for letter in _letters(tmp_path)]
        assert letters == [(refused, SINK, epoch) for epoch in range(1, EPOCHS + 1)]


def _inputs(refused: Written) -> list[dict[str, list[Written]]]:
    return [{"in": [("kelp", n), refused, ("sand", n)]} for n in range(EPOCHS)]


def _run_until(backend: SinkBackend, place: Path, refused: Written, end: str) -> None:
    fault.install(end)
    with suppress(HoldfastError):  # an answer that is lost need not end the job: it looks, and goes on
        _run(backend, place, _inputs(refused))


def _run(
    backend: SinkBackend,
    place: Path,
    inputs: list[dict[str, list[Written]]],
    options: Mapping[str, Any] | None = None,
    *,
    goes_aside: bool = True,
) -> None:
    program = EpochProgram()
    out = program.source("in", backend.columns).sink_to(backend.new_sink()).uid(SINK)
    if goes_aside:
        tag = OutputTag("refused")
        letters = out.set_dead_letter_output(tag).get_side_output(tag)
        letters.sink_to(ParquetFileSink(place / "aside")).uid("letters")
    program.run(place / "checkpoints", inputs, options)


def _letters(place: Path) -> list[tuple[Written, str, int, str]]:
    """What has gone aside, by epoch."""
    tables = [pq.ParquetFile(file).read() for file in (place / "aside").glob("*.parquet")]
    rows = [letter for table in tables for letter in table.to_pylist()]
    letters = [((row["row"]["word"], row["row"]["n"]), row["sink"], row["epoch"], row["reason"]) for row in rows]
    return sorted(letters, key=lambda letter: letter[2])
