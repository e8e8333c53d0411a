"""Jobs in a notebook: a real kernel runs cells, and the test is who types, looks, runs a cell again and interrupts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.stories.cluster import counted, rows, until
from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SETUP = """
import os, time
from IPython.display import display
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        count = self.count.value() + 1
        self.count.update(count)
        yield row.word, count


env = StreamExecutionEnvironment.get_execution_environment({
    "execution.checkpointing.dir": "checkpoints", "execution.trigger": "100 ms", "parallelism.default": 2,
    "spark.master": "local[2]", "spark.ui.enabled": "false",
})


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


os.getpid()
"""
JOB = """
words = env.from_dataframe(env.spark.readStream.text("texts")).uid("texts").flat_map(
    lambda row: [(word,) for word in row.value.split()], output_type="word string"
)
counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")
counts.sink_to(ParquetFileSink("out")).uid("out")
client = env.execute_async()
display(client)
for name in os.listdir("new"):  # which the run before is not to read
    os.rename(f"new/{name}", f"texts/{name}")
until(lambda: client.last_progress is not None and client.last_progress["rows"])
time.sleep(2.5)
"""


class Notebook:
    """A notebook with its kernel."""

    def __init__(self, client: NotebookClient) -> None:
        self.client = client
        self.pid = int(self.run(SETUP)["text/plain"])

    def run(self, code: str) -> Any:
        """Runs a cell to its end; returns what it shows last, by media type."""
        cell = nbformat.v4.new_code_cell(code)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        shown = [output.data for output in cell.outputs if "data" in output]
        return shown[-1] if shown else None

    def run_and_interrupt(self, code: str) -> None:
        """Runs a cell, and presses the stop button while it runs."""

        def press() -> None:
            time.sleep(2)
            os.killpg(os.getpgid(self.pid), signal.SIGINT)

        threading.Thread(target=press).start()
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            self.run(code)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/tides.ipynb")
    client = NotebookClient(
        nbformat.v4.new_notebook(), timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with client.setup_kernel():
        yield Notebook(client)


def test_a_job_shows_itself_survives_its_cell_being_run_again_and_is_cancelled_by_an_interrupt(
    tmp_path: Path, notebook: Notebook
) -> None:
    output = tmp_path / "out"
    (tmp_path / "texts").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/1.txt").write_text("kelp sand kelp")
    shown = notebook.run(JOB)
    assert shown["text/plain"].startswith("<job 'tides' ")
    assert "RUNNING" in shown["text/html"]
    assert "<th>rows/s</th>" in shown["text/html"], "it was shown before there was an epoch, and refreshed since"
    assert '<a href="http://127.0.0.1:' in shown["text/html"]
    assert rows(output) == counted("kelp sand kelp")

    (tmp_path / "new/2.txt").write_text("kelp rock")
    first = "first = client"
    notebook.run(first)
    shown = notebook.run(JOB)
    assert shown["text/plain"].startswith("<job 'tides' "), "the same cell means the same job"
    assert rows(output) == counted("kelp sand kelp", "kelp rock"), "it goes on where the run before has stopped"
    statuses = notebook.run("first.get_job_status().value, client.get_job_status().value, first.exception()")
    assert statuses["text/plain"] == "('SUSPENDED', 'RUNNING', None)"

    notebook.run_and_interrupt("time.sleep(60)")
    assert notebook.run("client.get_job_status().value")["text/plain"] == "'RUNNING'", "another cell was interrupted"
    notebook.run_and_interrupt("client.await_termination()")
    notebook.run("until(lambda: client.get_job_status().is_terminal_state())")
    shown = notebook.run("client")
    assert "CANCELED" in shown["text/html"]
    assert "href" not in shown["text/html"], "its page has ended with it"

    (tmp_path / "new/3.txt").write_text("sand")
    notebook.run_and_interrupt(JOB.partition("client =")[0].replace('"out"', '"other"') + "env.execute()")
    until(lambda: not list((tmp_path / "checkpoints").rglob("rest/*.json")), "no job runs any more")


def test_a_stopped_session_ends_its_job_and_a_new_session_resumes_it(tmp_path: Path, notebook: Notebook) -> None:
    for folder in ("texts", "new"):
        (tmp_path / folder).mkdir()
    (tmp_path / "new/1.txt").write_text("kelp sand kelp")
    notebook.run(JOB)
    (tmp_path / "new/2.txt").write_text("kelp rock")
    notebook.run("old = env; env.spark.stop(); until(lambda: client.get_job_status().is_terminal_state())")
    ended = notebook.run("repr(client.exception())")["text/plain"]
    assert "EngineLostError" in ended and "the Spark session was stopped" in ended
    lanes = "[thread.name for thread in threading.enumerate() if thread.name.startswith('holdfast-commit')]"
    notebook.run(f"import threading; until(lambda: not {lanes}, 10)")
    with pytest.raises(CellExecutionError, match="the Spark session of this environment was stopped"):
        notebook.run("old.from_collection([1], 'bigint').print(); old.execute()")
    notebook.run("env = StreamExecutionEnvironment.get_execution_environment(env.get_configuration())")
    notebook.run(JOB)
    assert rows(tmp_path / "out") == counted("kelp sand kelp", "kelp rock")
    notebook.run("client.cancel(); client.await_termination()")
