"""Each recipe, run as a user runs it, prints what its page shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import KafkaServer
from tests.documentation import RECIPES, ROOT, recipe_output, recipe_program
from tests.stories.kafka import make_topic, messages, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

INTO_KAFKA = "exactly-once-kafka"
SEVERAL_SINKS = {"late-data"}
"""Recipes that print from several sinks, which commit in threads of their own: their lines have no order."""


def run(*command: object, directory: Path, log: Path, returns: int = 0) -> str:
    with log.open("a", encoding="utf-8") as errors:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
            timeout=400,
        )
    assert done.returncode == returns, log.read_text(encoding="utf-8")
    return done.stdout


@pytest.mark.parametrize("page", [page for page in RECIPES if page.stem != INTO_KAFKA], ids=lambda page: page.stem)
def test_a_recipe_prints_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    printed = run(recipe_program(page), directory=tmp_path, log=tmp_path / "log").splitlines()
    shown = recipe_output(page).splitlines()
    if page.stem in SEVERAL_SINKS:
        printed, shown = sorted(printed), sorted(shown)
    assert printed == shown


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.mark.services
def test_the_recipe_for_kafka_writes_each_record_once_though_it_is_killed_in_a_transaction(
    broker: KafkaServer, tmp_path: Path
) -> None:
    page = ROOT / "docs" / "how-to" / f"{INTO_KAFKA}.md"
    make_topic(broker.bootstrap_servers, "counts")
    texts, log = tmp_path / "texts", tmp_path / "log"
    texts.mkdir()
    (texts / "a.txt").write_text("kelp rock kelp\n", encoding="utf-8")
    arguments = [recipe_program(page), broker.bootstrap_servers, texts, tmp_path / "checkpoints"]
    killed = ["-m", "tests.programs.killed_in_transaction", 1, *arguments]
    run(*killed, directory=ROOT, log=log, returns=-signal.SIGKILL)
    (texts / "b.txt").write_text("rock sand\n", encoding="utf-8")
    run(*arguments, directory=ROOT, log=log)
    found = messages(broker.bootstrap_servers, "counts")
    assert sorted(f"{one.key().decode()} {one.value().decode()}" for one in found) == recipe_output(page).splitlines()
