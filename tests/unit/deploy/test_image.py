"""The Dockerfile, step by step without Docker: each COPY and RUN in a directory of its own.

There is no engine and no base image here, so of the layers of Debian it is only seen that the packages are in the
archive, where this machine knows it. Everything else runs: the virtual environment, the installation from the files
that the builder would be given, and the command and the entry point in the second stage.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.stories.process import ROOT

DOCKERFILE = ROOT / "deploy/Dockerfile"
OF_DEBIAN = ("apt-get ", "useradd ")


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, in one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(parts[0], parts[2]) for line in text.splitlines() if (parts := line.partition(" "))[0]]


def context() -> list[str]:
    """The files of the repository that the builder is given."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    rules = [line for line in Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines() if line and line[0] != "#"]

    def is_given(name: str) -> bool:
        given = True
        for rule in rules:
            pattern = rule.removeprefix("!")
            parts = [name, *map(str, Path(name).parents)]
            if pattern.startswith("**/"):
                pattern, parts = pattern.removeprefix("**/"), [*parts, *Path(name).parts]
            if any(fnmatch.fnmatch(part, pattern) for part in parts):
                given = rule.startswith("!")
        return given

    return [name for name in listed.stdout.splitlines() if is_given(name)]


@dataclass
class Stage:
    """A stage whose root is a directory."""

    root: Path
    stages: dict[str, Path]
    place: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)

    def at(self, path: str) -> Path:
        return self.root / (path if path.startswith("/") else f"{self.place}/{path}").lstrip("/")

    def here(self, text: str) -> str:
        """A command whose own paths lie in the root."""
        return re.sub(r"(?<![\w.])/(opt|build|home)/", lambda match: f"{self.root}/{match[1]}/", text)

    def copy(self, arguments: str) -> None:
        words = arguments.split()
        source, files = ROOT, context()
        if words[0].startswith("--from="):
            source, files = self.stages[words.pop(0).partition("=")[2]], []
        *names, target = words
        for name in names:
            if source != ROOT:
                # A virtual environment knows where it is: the copy is a link to it, as both have one path in the image.
                self.at(target).parent.mkdir(parents=True, exist_ok=True)
                self.at(target).symlink_to(source / name.lstrip("/"))
                continue
            matching = [file for file in files if file == name or file.startswith(f"{name}/")]
            assert matching, f"the builder is not given {name!r}"
            for file in matching:
                whole = target.endswith("/") or len(names) > 1
                goal = self.at(target) / file if whole else Path(str(self.at(target)) + file.removeprefix(name))
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, goal)

    def run(self, command: str) -> None:
        if command.startswith(OF_DEBIAN):
            listed = command.partition("recommends")[2].partition("&&")[0]
            self.packages += re.findall(r"(?<=\s)[a-z0-9][a-z0-9+.-]+(?=\s)", listed)
            return
        # With the cache of this machine instead of none.
        command = self.here(command).replace("--no-cache-dir ", "")
        programs = self.root / "programs"
        programs.mkdir(exist_ok=True)
        if not (programs / "python").exists():
            (programs / "python").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **self.environment}
        self.at("").mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["sh", "-ec", command], cwd=self.at(""), env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def build(directory: Path, *, only_copies: bool = False) -> Stage:
    stages: dict[str, Path] = {}
    stage = Stage(directory, stages)
    for number, (name, arguments) in enumerate(instructions()):
        match name:
            case "FROM":
                stage = Stage(directory / str(number), stages)
                stage.root.mkdir()
                stages[arguments.partition(" AS ")[2]] = stage.root
            case "ARG":
                key, _, value = arguments.partition("=")
                stage.environment[key] = value.strip('"')
            case "WORKDIR":
                stage.place = arguments
            case "ENV":
                stage.environment.update(pair.split("=", 1) for pair in stage.here(arguments).split())
            case "COPY":
                stage.copy(arguments)
            case "RUN" if not only_copies:
                stage.run(arguments)
    return stage


def test_the_builder_is_given_what_it_copies_and_not_what_lies_about(tmp_path: Path) -> None:
    files = context()
    assert {"pyproject.toml", "src/holdfast/__init__.py", "deploy/entrypoint.sh"} <= set(files)
    assert not [file for file in files if file.startswith(("tests/", ".git", "benchmarks/")) or "__pycache__" in file]
    stage = build(tmp_path, only_copies=True)
    assert os.access(stage.at("/opt/entrypoint.sh"), os.X_OK)


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="this is no Debian")
def test_debian_has_the_packages() -> None:
    stage = Stage(Path("/nowhere"), {})
    for name, arguments in instructions():
        if name == "RUN" and arguments.startswith(OF_DEBIAN):
            stage.run(arguments)
    assert {"openjdk-17-jre-headless", "tini"} <= set(stage.packages)
    for package in stage.packages:
        found = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True)
        if found.returncode != 0 and not list(Path("/var/lib/apt/lists").glob("*Packages*")):
            pytest.skip("the package lists are not here")
        assert found.returncode == 0, f"there is no package {package}"


def test_the_entry_point_runs_commands_and_executors(tmp_path: Path) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    java.chmod(0o755)
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    environment = {f"SPARK_{name}": f"the {name}" for name in (*names, "EXECUTOR_POD_NAME", "EXECUTOR_MEMORY")}
    environment |= {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} of 12" for number in range(12)}
    environment |= {"JAVA_HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    entry = ROOT / "deploy/entrypoint.sh"
    said = subprocess.run([entry, "executor"], env=environment, capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert lines[:12] == [f"-Dn={number} of 12" for number in range(12)], "in their order, each one argument"
    assert lines[lines.index("--podName") + 1] == "the EXECUTOR_POD_NAME"
    classpath = lines[lines.index("-cp") + 1].split(":")
    assert list(Path(classpath[-1].removesuffix("*")).glob("spark-kubernetes_*.jar"))
    failed = subprocess.run([entry, "sh", "-c", "echo $0 $1; exit 7", "a b", "c"], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (7, "a b c\n")


def test_all_steps_make_an_environment_with_holdfast_and_spark_in_it(tmp_path: Path) -> None:
    stage = build(tmp_path)
    environment = {**os.environ, **stage.environment, "PATH": f"{stage.at('/opt/holdfast/bin')}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    entry = stage.at("/opt/entrypoint.sh")

    def said(*command: str) -> str:
        done = subprocess.run([entry, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = dict(instructions())["CMD"]
    assert command == '["holdfast", "--help"]'
    assert "jobmanager" in said("holdfast", "--help")
    where = said(
        "python", "-c", "import holdfast, pyspark, kazoo, lightkube, obstore, prometheus_client; print(holdfast)"
    )
    assert str(tmp_path) in where
