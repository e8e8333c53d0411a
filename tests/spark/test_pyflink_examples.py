"""The examples that PyFlink's wheel brings along, with `pyflink` replaced by `holdfast` in their imports.

The wheel is the one that `PYFLINK_WHEEL` names, else it is downloaded; without one the tests are skipped, and the CI
fails. What Flink prints was recorded by `scripts/record_pyflink.py --examples`. The order of lines counts within a key,
and of numbers with a fraction three digits of it do.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pyflink_programs import key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
VERSION = "2.3.0"
FOLDER = "pyflink/examples/datastream/"
PRINTED = ROOT / "tests" / "programs" / "pyflink_examples"
EXAMPLES = sorted(str(path.relative_to(PRINTED).with_suffix(".py")) for path in PRINTED.rglob("*.txt"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    named = os.environ.get("PYFLINK_WHEEL")
    if not named:
        place = tmp_path_factory.mktemp("wheel")
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-q", "-d", str(place)]
        asked = subprocess.run([*download, f"apache-flink=={VERSION}"], capture_output=True, check=False, timeout=300)
        found = list(place.glob("*.whl"))
        if asked.returncode or not found:
            reason = f"PYFLINK_WHEEL is not set, and apache-flink {VERSION} cannot be had: {asked.stderr!r:.500}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        named = str(found[0])
    with zipfile.ZipFile(named) as opened:
        yield opened


def test_the_page_of_names_is_current(wheel: zipfile.ZipFile) -> None:
    asked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "pyflink_page.py"), "--wheel", str(wheel.filename), "--check"],
        check=False,
    )
    assert asked.returncode == 0, "run scripts/pyflink_page.py --wheel WHEEL"


def example(wheel: zipfile.ZipFile, name: str) -> str:
    """The text of an example with its imports replaced, and nothing else."""
    text = wheel.read(FOLDER + name).decode()
    return re.sub(r"^(\s*)(from|import) pyflink\b", r"\1\2 holdfast", text, flags=re.MULTILINE)


def printed(text: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> list[str]:
    """The lines that a program prints."""
    program = place / "program.py"
    program.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(program)])
    capsys.readouterr()
    runpy.run_path(str(program), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def by_key(lines: list[str]) -> dict[str, list[str]]:
    """Tuples by what they begin with. Before one may be the number of a subtask; other lines are the programs' own."""
    keyed: dict[str, list[str]] = {}
    for line in lines:
        shown = re.sub(r"^\d+> ", "", line)
        if shown.startswith("("):
            rounded = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.3f}", shown)
            keyed.setdefault(key(rounded), []).append(rounded)
    return keyed


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_prints_on_flink(
    spark: Any,
    wheel: zipfile.ZipFile,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = (PRINTED / name).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    lines = printed(example(wheel, name), tmp_path, monkeypatch, capsys)
    if name == "word_count.py":  # each word once, and words have commas
        assert sorted(line for line in lines if line.startswith("(")) == sorted(recorded)
    else:
        assert by_key(lines) == by_key(recorded)


@pytest.mark.parametrize("name", ["streaming_word_count.py", "asyncio/remote_model_inference.py"])
def test_an_example_with_a_table_is_referred_to_spark_sql(
    wheel: zipfile.ZipFile, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with pytest.raises(ImportError, match=r"no Table API, .*Use Spark SQL"):
        printed(example(wheel, name), tmp_path, monkeypatch, capsys)
