"""What the README says: `pip install '.[spark]'` into an environment that has nothing else, then its program runs.

The environment of a developer has more than the wheel asks for, so nothing else shows what is missing there. `make
release` runs this with the wheel that it has built. A machine without the newest Python tries the newest that it has,
or skips; the CI fails. Spark is the newest; `make soak` tries the others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.documentation import ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3000)]

OLDEST = (3, 11)
PROMISED = re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NEWEST = (3, max(map(int, PROMISED)))
OTHER_SPARKS = [
    ("3.5.9", "oldest"),
    *((spark, which) for spark in ("4.0.5", "4.1.4", "4.2.1") for which in ("oldest", "newest")),
]
"""The newest of each other Spark that is supported, with the Pythons that it runs with."""
COLLECTED = """
from holdfast.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
words = env.from_collection([("kelp", 1), ("rock", 2)], "word string, n bigint").uid("words")
doubled = words.map(lambda row: row, "word string, n bigint").uid("map").transform(lambda frame: frame.where("n > 1"))
print(list(doubled.execute_and_collect()))
"""
"""Beside the README's: rows that the driver brings, and a transform."""
IN_REAL_TIME = """
import sys
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield ctx.get_current_key(), self.count.value()


env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": "real-time-checkpoints",
    "parallelism.default": 2,
})
numbers = env.from_source(NumberSequenceSource(1, 1000), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
counts = numbers.key_by(lambda n: n % 5, "bigint").process(Count(), "key bigint, count bigint").uid("counts")
counts.sink_to(ParquetFileSink("real-time-out")).uid("out")
env.execute("numbers")
"""


def run(*command: object, directory: Path) -> str:
    """Runs a command that knows nothing of the environment of the tests."""
    leaves = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**leaves, "SPARK_LOCAL_IP": "127.0.0.1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=False,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@cache
def interpreters() -> dict[tuple[int, int], str]:
    """The Pythons of the path, of pyenv and of `scripts/newest_python.py` that can make an environment."""
    found: dict[tuple[int, int], str] = {}
    versions = Path.home() / ".pyenv" / "versions"
    for minor in range(OLDEST[1], 30):
        name = f"python3.{minor}"
        brought = ROOT / ".pythons" / f"3.{minor}" / "usr" / "bin" / name
        candidates = [shutil.which(name), *map(str, [*sorted(versions.glob(f"3.{minor}.*/bin/{name}")), brought])]
        for candidate in filter(None, candidates):
            asked = [candidate, "-c", "import venv, ssl"]
            if Path(candidate).exists() and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                found[3, minor] = candidate
                break
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("HOLDFAST_WHEEL"):
        return Path(built)
    directory = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", directory, ROOT, directory=ROOT
    )
    [made] = directory.glob("*.whl")
    return made


def test_the_wheel_has_all_files_of_the_web_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if "/rest/page/static/" in name and "licenses" not in name}
    files = (ROOT / "src" / "holdfast" / "rest" / "page" / "static").iterdir()
    assert packed == {file.relative_to(ROOT / "src").as_posix() for file in files}


def test_a_new_project_is_tested_and_a_machine_is_checked_without_spark(tmp_path: Path, wheel: Path) -> None:
    installed = environment(tmp_path, wheel, "pytest", python="oldest")
    assert not re.search(r"^pyspark ", installed, re.MULTILINE)
    program = tmp_path / "environment" / "bin"
    run(program / "holdfast", "new", "tide_words", directory=tmp_path)
    told = run(program / "python", "-m", "pytest", directory=tmp_path / "tide_words")
    assert "3 passed" in told
    checked = subprocess.run([program / "holdfast", "doctor"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (1, "")
    assert re.search(r"^problem +pyspark: .*\n +-> pip install 'holdfast\[spark\]'", checked.stdout, re.MULTILINE)
    assert re.search(r"^OK +extra kafka: +not installed\. If a job needs it: pip install", checked.stdout, re.MULTILINE)


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_readme_runs_with_the_packages_of_the_extra(tmp_path: Path, wheel: Path, which: str) -> None:
    readme_runs(tmp_path, f"{wheel}[spark]", python=which)
    (tmp_path / "real_time.py").write_text(IN_REAL_TIME, encoding="utf-8")
    run(tmp_path / "environment" / "bin" / "python", "real_time.py", directory=tmp_path)
    rows = ds.dataset(tmp_path / "real-time-out", format="parquet").to_table().to_pylist()
    expected = [(key, count) for key in range(5) for count in range(1, 201)]
    assert sorted((row["key"], row["count"]) for row in rows) == expected


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_harness_runs_without_spark_and_extras(tmp_path: Path, wheel: Path, which: str) -> None:
    installed = environment(tmp_path, wheel, python=which)
    assert "pyspark" not in installed
    examples = blocks(ROOT / "docs" / "guide" / "testing.md", "python")
    [block] = [example for example in examples if "OperatorHarness(" in example.text]
    (tmp_path / "harness.py").write_text(block.text, encoding="utf-8")
    run(tmp_path / "environment" / "bin" / "python", "harness.py", directory=tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("spark", "which"), OTHER_SPARKS)
def test_the_readme_runs_on_another_spark(tmp_path: Path, wheel: Path, spark: str, which: str) -> None:
    readme_runs(tmp_path, f"{wheel}[spark]", f"pyspark=={spark}", python=which)
    shutil.rmtree(tmp_path / "environment")  # half a gigabyte


def readme_runs(directory: Path, *wanted: str, python: str) -> None:
    """Installs something into a new environment, and runs the program of the README, and one more, there."""
    installed = environment(directory, *wanted, python=python)
    assert not re.search(r"^pandas ", installed, re.MULTILINE), "the test is about an environment without pandas"
    program = directory / "environment" / "bin"
    [block] = blocks(ROOT / "README.md", "python spark")
    (directory / "word_count.py").write_text(block.text, encoding="utf-8")
    (directory / "texts").mkdir()
    (directory / "texts" / "a.txt").write_text("kelp rock kelp\n", encoding="utf-8")
    run(program / "python", "word_count.py", "texts", "out", "checkpoints", directory=directory)
    rows = ds.dataset(directory / "out", format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [("kelp", 1), ("kelp", 2), ("rock", 1)]
    (directory / "collected.py").write_text(COLLECTED, encoding="utf-8")
    assert "[Row(word='rock', n=2)]" in run(program / "python", "collected.py", directory=directory)
    listed = run(program / "holdfast", "checkpoints", "checkpoints", directory=directory)
    assert "COMPLETED" in listed
    assert "each of 48,000 rows exists once" in run(program / "holdfast", "demo", directory=directory)


def environment(directory: Path, *wanted: str, python: str) -> str:
    """Makes an environment with the oldest or newest Python; returns what is installed there."""
    version, found = OLDEST if python == "oldest" else NEWEST, interpreters()
    if os.environ.get("CI"):
        assert version in found, f"Python {version} is promised, and here are {sorted(found)}"
    version = version if python == "oldest" or version in found else max(found, default=OLDEST)
    if version not in found or (python == "newest" and version == OLDEST):
        pytest.skip(f"no other Python than {sorted(found)} on this machine")
    run(found[version], "-m", "venv", "--without-pip", directory / "environment", directory=directory)
    pip = [sys.executable, "-m", "pip", "--python", directory / "environment" / "bin" / "python"]
    run(*pip, "install", "--quiet", *wanted, directory=directory)
    return run(*pip, "list", directory=directory)
