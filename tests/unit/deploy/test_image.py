"""What the Dockerfile takes: files of the repository that the builder is given, and packages that Debian has.

An engine builds it, and a container runs it, in `tests/services/test_image_in_containers.py`, where there is one.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.process import ROOT

DOCKERFILE = ROOT / "deploy/Dockerfile"


def arguments_of(instruction: str) -> Iterator[str]:
    """What each instruction of this name says, in one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, arguments = line.partition(" ")
        if name == instruction:
            yield arguments


def context() -> list[str]:
    """The files of the repository that the builder is given."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
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


def test_the_builder_is_given_what_it_copies_and_not_what_lies_about() -> None:
    files = context()
    assert {"pyproject.toml", "src/holdfast/__init__.py", "deploy/entrypoint.sh"} <= set(files)
    assert not [file for file in files if file.startswith(("tests/", ".git", "benchmarks/")) or "__pycache__" in file]
    for *names, _target in (words.split() for words in arguments_of("COPY") if not words.startswith("--from=")):
        for name in names:
            assert [file for file in files if file == name or file.startswith(f"{name}/")], f"it is not given {name!r}"


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="this is no Debian")
def test_debian_has_the_packages() -> None:
    [command] = (command for command in arguments_of("RUN") if command.startswith("apt-get "))
    listed = command.partition("recommends")[2].partition("&&")[0]
    packages = listed.split()
    assert {"openjdk-17-jre-headless", "tini"} <= set(packages)
    for package in packages:
        found = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True, check=False)
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
    assert os.access(entry, os.X_OK)
    said = subprocess.run([entry, "executor"], env=environment, capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert lines[:12] == [f"-Dn={number} of 12" for number in range(12)], "in their order, each one argument"
    assert lines[lines.index("--podName") + 1] == "the EXECUTOR_POD_NAME"
    classpath = lines[lines.index("-cp") + 1].split(":")
    assert list(Path(classpath[-1].removesuffix("*")).glob("spark-kubernetes_*.jar"))
    failed = subprocess.run(
        [entry, "sh", "-c", "echo $0 $1; exit 7", "a b", "c"], capture_output=True, text=True, check=False
    )
    assert (failed.returncode, failed.stdout) == (7, "a b c\n")
