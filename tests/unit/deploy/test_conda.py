"""The recipe for conda names what `pyproject.toml` names: the version, the dependencies, the command, the licences."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml

import holdfast
from tests.stories.process import ROOT

OTHER_NAMES = {"xxhash": "python-xxhash"}
"""Packages that conda-forge has under another name than PyPI."""


@pytest.fixture(scope="module")
def recipe() -> Any:
    return yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pyproject() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def of_conda(requirements: list[str]) -> set[str]:
    """Requirements of pip as conda writes them: a space before the versions."""
    found = set()
    for requirement in requirements:
        name = requirement.partition(">")[0]
        found.add(f"{OTHER_NAMES.get(name, name)} {requirement.removeprefix(name)}")
    return found


def test_it_has_the_version_and_the_requirements(recipe: Any, pyproject: Any) -> None:
    project = pyproject["project"]
    python = f"python {project['requires-python']}"
    assert recipe["context"]["version"] == holdfast.__version__
    assert set(recipe["requirements"]["run"]) == {python, *of_conda(project["dependencies"])}
    assert set(recipe["requirements"]["run_constraints"]) == of_conda(project["optional-dependencies"]["spark"])
    assert set(recipe["requirements"]["host"]) == {python, "pip", *of_conda(pyproject["build-system"]["requires"])}


def test_it_has_the_command_and_the_licences(recipe: Any, pyproject: Any) -> None:
    project = pyproject["project"]
    commands = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["license_file"] == project["license-files"]
    assert recipe["about"]["summary"] == project["description"]


def test_its_source_is_this_checkout(recipe: Any) -> None:
    assert (ROOT / "conda" / recipe["source"]["path"] / "pyproject.toml").exists()
