"""State has objects of the main module's classes, whatever makes it the main module; each run is another driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from holdfast.state_processor import SavepointReader
from tests.stories.process import ROOT

# As it is typed at a prompt: no empty lines in bodies, and one after each.
CLASSES = """\
import enum
from dataclasses import dataclass
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.testing import EpochProgram
PASSWORD = "not to be kept"
class Status(enum.Enum):
    NEW = "new"
    PAID = "paid"

@dataclass
class Order:
    status: Status
    cents: int
    class Note:
        def __init__(self, text):
            self.text = text
        def shown(self):
            return self.text + "?"  # a bug
    def euros(self):
        assert PASSWORD
        return self.cents / 10  # a bug

class Orders(KeyedProcessFunction):
    def open(self, runtime_context):
        self.order = runtime_context.get_state(ValueStateDescriptor("order"))
        self.declared = runtime_context.get_state(ValueStateDescriptor("declared", Order))
        self.statuses = runtime_context.get_map_state(MapStateDescriptor("statuses", "string", None))
        self.notes = runtime_context.get_list_state(ListStateDescriptor("notes"))
    def process_element(self, row, ctx):
        order = self.order.value()
        if order is None:
            self.order.update(Order(Status.NEW, 250))
            self.declared.update(Order(Status.PAID, 100))
            self.statuses.put("a", Status.NEW)
            self.notes.add(Order.Note("hello"))
        else:
            assert order == Order(Status.NEW, 250) and isinstance(order, Order) and order.status is Status.NEW
            assert self.declared.value() == Order(Status.PAID, 100)
            assert self.statuses.get("a") is Status.NEW
            assert [type(note) for note in self.notes.get()] == [Order.Note]
            yield f"{order.euros()} euros, {[note.shown() for note in self.notes.get()]}"

"""
RUN = """\
def write(frame, epoch):
    with open("found", "a") as file:
        file.writelines(row["value"] + "\\n" for row in frame.to_pylist())

def run():
    program = EpochProgram()
    orders = program.source("keys", "k string").key_by("k").process(Orders(), "string").uid("orders")
    orders.for_each_epoch(write).uid("out")
    with open("runs", "a") as file:
        file.write(".")
    with open("runs") as file:
        program.run("checkpoints", [{"keys": [("a",)]}] * len(file.read()))

run()
"""
REPAIRED = CLASSES.replace("/ 10  # a bug", "/ 100").replace('+ "?"  # a bug', '+ "!"')
WRONG = "25.0 euros, ['hello?']\n"
RIGHT = "2.5 euros, ['hello!']\n"

Entry = Callable[[Path, str], None]


def run_python(*arguments: str, directory: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        input=stdin,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-4000:]
    return done


def at_a_prompt(directory: Path, program: str) -> None:
    done = run_python("-i", directory=directory, stdin=program)
    assert ">>> " in done.stderr, "each statement is compiled by itself"


def on_standard_input(directory: Path, program: str) -> None:
    run_python(directory=directory, stdin=program)


def at_a_prompt_after_a_script(directory: Path, program: str) -> None:
    (directory / "job.py").write_text(program.removesuffix("run()\n"), encoding="utf-8")
    run_python("-i", "job.py", directory=directory, stdin="run()\n")


def by_command(directory: Path, program: str) -> None:
    run_python("-c", program, directory=directory)


def as_a_module(directory: Path, program: str) -> None:
    package = directory / "shop"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("from shop import prices\n", encoding="utf-8")
    (package / "prices.py").write_text("class Order:\n    pass\n", encoding="utf-8")
    (package / "orders.py").write_text(program, encoding="utf-8")
    run_python("-B", "-m", "shop.orders", directory=directory)


def in_a_notebook(directory: Path, program: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        resources = {"metadata": {"path": str(directory)}}
        cells = [nbformat.v4.new_code_cell(text) for text in (program.removesuffix(RUN), RUN)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()


ENTRIES = (at_a_prompt, on_standard_input, at_a_prompt_after_a_script, by_command, as_a_module, in_a_notebook)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_a_new_driver_has_the_objects_of_the_one_before_as_its_own(entry: Entry, tmp_path: Path) -> None:
    found = tmp_path / "found"
    entry(tmp_path, CLASSES + RUN)
    entry(tmp_path, CLASSES + RUN)
    assert found.read_text() == WRONG
    entry(tmp_path, REPAIRED + RUN)
    assert found.read_text() == WRONG + RIGHT
    require_no_secret(tmp_path / "checkpoints")


def require_no_secret(checkpoints: Path) -> None:
    """Look into each file, and into the values that are read from them, as files may be compressed."""
    for file in checkpoints.rglob("*"):
        assert file.is_dir() or b"not to be kept" not in file.read_bytes(), file
    newest = max(checkpoints.glob("*/chk-*"), key=lambda path: int(path.name.partition("-")[2]))
    reader = SavepointReader.read(None, str(newest))
    for state in ("order", "statuses", "notes"):
        values = str(reader.read_keyed_state("orders", state).to_pylist())
        assert "program_object" in values and "not to be kept" not in values and "cloudpickle" not in values, values


def test_cells_that_are_run_again_repair_the_classes_of_what_state_has(tmp_path: Path) -> None:
    """In one kernel: the objects of the run before are of classes that are not in the main module any more."""
    in_a_notebook(tmp_path, CLASSES + RUN.replace("\nrun()", "\nrun()\nrun()") + REPAIRED + RUN)
    assert (tmp_path / "found").read_text() == WRONG + RIGHT


@pytest.mark.parametrize(("first", "second"), [(as_a_module, by_command), (in_a_notebook, as_a_module)])
def test_a_program_may_be_started_otherwise_than_before(first: Entry, second: Entry, tmp_path: Path) -> None:
    first(tmp_path, CLASSES + RUN)
    second(tmp_path, REPAIRED + RUN)
    assert (tmp_path / "found").read_text() == RIGHT
    require_no_secret(tmp_path / "checkpoints")
