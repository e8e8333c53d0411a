"""`holdfast new`: the project it makes is tested as it is, and nothing is written over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import __version__
from holdfast.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(name: str) -> Result:
    return CliRunner().invoke(main, ["new", name])


def test_a_new_project_passes_its_own_test(here: Path) -> None:
    result = new("tide_words")
    assert result.exit_code == 0, result.output
    project = here / "tide_words"
    assert sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()) == [
        ".gitignore",
        "Dockerfile",
        "README.md",
        "config.toml",
        "input/words.txt",
        "pytest.ini",
        "requirements.txt",
        "test_tide_words.py",
        "tide_words.py",
    ]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    told = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert told.returncode == 0 and "3 passed" in told.stdout, told.stdout


def test_a_project_inside_another_one_is_tested_by_its_own_settings(here: Path) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\npythonpath = ["."]\ntestpaths = ["tests"]\n'
    )
    new("tide_words")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=here / "tide_words", capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "3 passed" in run.stdout, run.stdout


def test_the_test_of_a_project_fails_when_its_program_is_wrong(here: Path) -> None:
    new("tide_words")
    program = here / "tide_words" / "tide_words.py"
    program.write_text(program.read_text().replace("self.count.value() + 1", "1"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    told = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    assert told.returncode == 1 and "3 failed" in told.stdout, told.stdout


def test_all_files_of_a_project_name_it_and_leave_nothing_of_the_template(here: Path) -> None:
    new("tide_words")
    texts = {path.name: path.read_text() for path in (here / "tide_words").rglob("*") if path.is_file()}
    for name in ("README.md", "Dockerfile", "config.toml", "tide_words.py", "test_tide_words.py"):
        assert "tide_words" in texts[name]
    assert [name for name, text in texts.items() if "$name" in text or "$version" in text] == []
    assert texts["requirements.txt"] == f"holdfast[spark]>={__version__}\n"
    assert '-v "$PWD/data:/data"' in texts["Dockerfile"]


def test_an_empty_directory_becomes_the_project(here: Path) -> None:
    (here / "tide_words").mkdir()
    assert new("tide_words").exit_code == 0
    assert (here / "tide_words" / "tide_words.py").is_file()


@pytest.mark.parametrize("kind", ["a directory with a file", "a file", "a link to an empty directory"])
def test_what_exists_is_not_written_over(here: Path, kind: str) -> None:
    target = here / "tide_words"
    if kind == "a file":
        target.write_text("mine")
    elif kind == "a directory with a file":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    else:
        (here / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    before = sorted(map(str, here.rglob("*")))
    result = new("tide_words")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and "exists and is not an empty directory" in result.stderr
    assert sorted(map(str, here.rglob("*"))) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tide-words", "such as 'tide_words'"),
        ("Tide Words", "such as 'tide_words'"),
        ("class", "no keyword of Python"),
        ("1st", "a letter first"),
        ("", "'my_project'"),
        ("../escape", "such as 'escape'"),
        ("/tmp/tide", "such as 'tmp_tide'"),
        ("tidé", "letters, digits"),
        ("a" * 61, "at most 60"),
        ("json", "'my_json'"),
        ("click", "'my_click'"),
        ("holdfast", "'my_holdfast'"),
        ("x\n\x1b[31m", "x\\n\\x1b"),
    ],
)
def test_a_name_that_is_no_module_or_hides_one_is_one_clear_error(here: Path, name: str, message: str) -> None:
    result = new(name)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and message in result.stderr
    assert list(here.iterdir()) == []


def test_a_project_that_cannot_be_written_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "full").mkdir()
    monkeypatch.chdir(here / "full")
    write = Path.write_text

    def fail(path: Path, text: str, encoding: str) -> int:
        if path.name == "Dockerfile":
            raise OSError(28, "No space left on device")
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", fail)
    result = new("tide_words")
    assert result.exit_code == 1
    assert "could not be written: No space left on device" in result.stderr
    assert list((here / "full").iterdir()) == []
