"""What a job looks like in a notebook, and which job a cell means; a real kernel is in tests/spark/test_notebook.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.master.job_client import NotebookNames, notebook_display
from tests.stories.served import Running


class Shell(SimpleNamespace):
    """Runs cells, as far as names of jobs can tell."""

    def __init__(self, *, has_ids: bool) -> None:
        super().__init__(kernel=object(), execution_count=0, history_manager=SimpleNamespace(input_hist_raw=[""]))
        self.has_ids = has_ids
        self.cell = ""

    def run(self, cell: str, text: str) -> None:
        self.execution_count += 1
        self.cell = cell
        self.history_manager.input_hist_raw.append(text)

    def get_parent(self) -> dict[str, Any]:
        return {"metadata": {"cellId": self.cell}} if self.has_ids else {"metadata": {}}


@pytest.fixture(params=[True, False])
def shell(request: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(has_ids=request.param)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))  # type: ignore[arg-type]
    monkeypatch.setenv("JPY_SESSION_NAME", "work/tides.ipynb")
    return made


def test_a_cell_that_is_run_again_means_the_jobs_that_it_meant_before(shell: Shell) -> None:
    names = NotebookNames()
    shell.run("a", "two jobs")
    first = names.next(), names.next()
    shell.run("b", "another job")
    other = names.next()
    shell.run("a", "two jobs ")
    assert (names.next(), names.next()) == first == ("tides", "tides-2")
    assert other == "tides-3"
    shell.run("c", "named otherwise")
    assert names.next("moon") == "moon"


def test_a_changed_cell_is_the_same_job_if_the_notebook_names_cells(shell: Shell) -> None:
    names = NotebookNames()
    shell.run("a", "count(1)")
    before = names.next()
    shell.run("a", "count(2)")
    assert (names.next() == before) == shell.has_ids


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    job = Running(tmp_path, "<img src=x onerror=alert(1)>")
    try:
        shown = notebook_display(job.master)
        assert "<img" not in shown["text/html"]
        assert "&lt;img" in shown["text/html"]
        assert "RUNNING" in shown["text/plain"]
        job.say("poison")
        job.thread.join(30)
        shown = notebook_display(job.master)
        assert "FAILED" in shown["text/html"]
        assert "this word is poison" in shown["text/html"], "with where it was raised"
    finally:
        job.end()
