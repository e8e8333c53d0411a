"""The examples that PyFlink's wheel brings along, with `pyflink` replaced by `holdfast` in their imports.

The wheel is the one that `PYFLINK_WHEEL` names, else it is downloaded; without one the tests are skipped. What Flink
prints was worked out by hand, from the examples' data. They are compared as values; their order counts within a key.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
VERSION = "2.3.0"
FOLDER = "pyflink/examples/datastream/"
PEOPLE = [
    (1, '{"name": "Flink", "tel": 124, "addr": {"country": "Germany", "city": "Berlin"}}'),
    (2, '{"name": "hello", "tel": 136, "addr": {"country": "China", "city": "Shanghai"}}'),
    (3, '{"name": "world", "tel": 125, "addr": {"country": "USA", "city": "NewYork"}}'),
    (4, '{"name": "PyFlink", "tel": 33, "addr": {"country": "China", "city": "Hangzhou"}}'),
]
IN_CHINA = [ast.literal_eval(f"({number}, {text})") for number, text in PEOPLE if "China" in text]
PAYMENTS = [("Alice", n) for n in (110.1, 130.1, 143.2, 163.3)] + [("Bob", n) for n in (30.2, 83.3, 86.4, 102.5)]
TIMES = [1, 2, 3, 4, 5, 8, 9, 15]
SLIDING = Counter(start for at in TIMES for start in range(at - at % 2, at - 5, -2))

EXPECTED: dict[str, list[Any]] = {
    "basic_operations.py": [*PEOPLE, PEOPLE[0], ("Germany", 123), ("China", 135), ("USA", 124), ("China", 167)],
    "process_json_data.py": IN_CHINA,
    "state_access.py": PAYMENTS,
    "event_time_timer.py": [("Alice", 163.3)] * 4 + [("Bob", 102.5)] * 4,
    "windowing/tumbling_time_window.py": [("hi", 0, 5, 4), ("hi", 5, 10, 3), ("hi", 15, 20, 1)],
    "windowing/sliding_time_window.py": [("hi", start, start + 5, n) for start, n in sorted(SLIDING.items())],
    "windowing/session_with_gap_window.py": [("hi", 1, 14, 6), ("hi", 15, 20, 1)],
    "windowing/session_with_dynamic_gap_window.py": [("hi", 1, 30, 7)],
    "windowing/tumbling_count_window.py": [("hi", 4), ("hello", 6), ("hello", 12)],
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    named = os.environ.get("PYFLINK_WHEEL")
    if not named:
        place = tmp_path_factory.mktemp("wheel")
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-q", "-d", str(place)]
        asked = subprocess.run([*download, f"apache-flink=={VERSION}"], capture_output=True, check=False, timeout=300)
        found = list(place.glob("*.whl"))
        if asked.returncode or not found:
            pytest.skip(f"PYFLINK_WHEEL is not set, and apache-flink {VERSION} could not be downloaded")
        named = str(found[0])
    with zipfile.ZipFile(named) as opened:
        yield opened


def test_the_page_of_names_is_current(wheel: zipfile.ZipFile) -> None:
    asked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "pyflink_page.py"), str(wheel.filename), "--check"], check=False
    )
    assert asked.returncode == 0, "run scripts/pyflink_page.py with the wheel of apache-flink"


def example(wheel: zipfile.ZipFile, name: str) -> str:
    """The text of an example with its imports replaced, and nothing else."""
    text = wheel.read(FOLDER + name).decode()
    return re.sub(r"^(\s*)(from|import) pyflink\b", r"\1\2 holdfast", text, flags=re.MULTILINE)


def require_modules(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            if missing:
                pytest.skip(f"{node.module}.{missing[0]} is not there yet")


def printed(text: str, arguments: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> list[str]:
    """The lines of elements that a program prints."""
    program = place / "program.py"
    program.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    capsys.readouterr()
    runpy.run_path(str(program), run_name="__main__")
    # Where there are several subtasks, a line begins with the number of one.
    lines = [re.sub(r"^\d+> ", "", line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line and not line.startswith(("Printing result", "Executing ", "Use --"))]


def element(line: str) -> Any:
    """A tuple as Python shows it, or as Flink shows a declared one: ``(hi,4)``."""
    try:
        return ast.literal_eval(line)
    except ValueError:
        return tuple(int(part) if part.isdigit() else part for part in line.strip("()").split(","))


def by_key(elements: list[Any]) -> dict[Any, list[Any]]:
    keyed: dict[Any, list[Any]] = {}
    for element in elements:
        parts = tuple(round(part, 3) if isinstance(part, float) else part for part in element)
        keyed.setdefault(element[0], []).append(parts)
    return keyed


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_prints_on_flink(
    spark: Any,
    wheel: zipfile.ZipFile,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = example(wheel, name)
    require_modules(text)
    lines = printed(text, [], tmp_path, monkeypatch, capsys)
    assert by_key([element(line) for line in lines if line.startswith("(")]) == by_key(EXPECTED[name])


def test_words_are_counted_once_each_in_batch_mode(
    spark: Any,
    wheel: zipfile.ZipFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = example(wheel, "word_count.py")
    require_modules(text)
    verse = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "word_count_data"
    )
    counted = [element(line) for line in printed(text, [], tmp_path, monkeypatch, capsys)]
    assert sorted(counted) == sorted(Counter(word for line in verse for word in line.split()).items())
