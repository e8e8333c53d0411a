"""The workflows of GitHub: least permissions, actions that cannot change, and the supported Pythons and Sparks.

`make workflows` checks their syntax with actionlint. It needs Go.
"""

from __future__ import annotations

import re
import tomllib
from itertools import product

import pytest
import yaml

from tests.spark.test_installed_wheel_stories import OTHER_SPARKS
from tests.stories.process import ROOT

FILES = sorted((ROOT / ".github").glob("[aw]*/**/*.yml"))
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES if path.parent.name == "workflows"
}
ACTION = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def test_every_action_is_a_commit_with_its_version() -> None:
    used = [use for path in FILES for use in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))]
    assert [use for use in used if not ACTION.match(use) and use != "./.github/actions/setup"] == []
    assert any(use.startswith("pypa/gh-action-pypi-publish@") for use in used)


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_job_may_only_read_unless_it_says_what_it_writes(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] in ({}, {"contents": "read"})


def test_only_the_jobs_that_publish_write() -> None:
    writes = {
        (name, job): {scope for scope, access in body.get("permissions", {}).items() if access == "write"}
        for name, workflow in WORKFLOWS.items()
        for job, body in workflow["jobs"].items()
    }
    assert {job: scopes for job, scopes in writes.items() if scopes} == {
        ("docs", "publish"): {"contents"},
        ("release", "attest"): {"attestations", "id-token"},
        ("release", "pypi"): {"id-token"},
        ("release", "github"): {"contents"},
    }
    assert WORKFLOWS["release"]["jobs"]["pypi"]["environment"] == "pypi"


def test_tests_run_with_each_python_and_spark_that_is_supported() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons
    matrix = jobs["spark"]["strategy"]["matrix"]
    run = {(spark, python) for spark, python in product(matrix["spark"], matrix["python"])}
    run |= {(one["spark"], one["python"]) for one in matrix["include"]}
    names = {"oldest": pythons[0], "newest": pythons[-1]}
    tried = {(spark, names[which]) for spark, which in OTHER_SPARKS}
    [pinned] = re.findall(
        r"^pyspark==(\S+)", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert run == tried | {(pinned, python) for python in names.values()}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_they_run_targets_that_there_are(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {target for line in re.findall(r"^([a-z -]+):", makefile, re.MULTILINE) for target in line.split()}
    commands = [step.get("run", "") for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]
    called = {
        target.replace("$WHICH", "newest").strip('"')
        for command in commands
        if command.startswith("make ")
        for target in command.split()[1:]
    }
    assert called
    assert called <= targets
