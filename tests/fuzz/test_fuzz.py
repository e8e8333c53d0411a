"""Every parser over its corpus, and over a few hundred inputs that are made of it: refused by name, or read."""

from __future__ import annotations

import random
import resource
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import CORPUS, NAMES, Target

EXAMPLES = examples(300)
MEBIBYTE = 1024


@cache
def target(name: str) -> Target:
    return Target(name)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_corpus_is_refused_by_name_or_read_and_some_of_it_is_read(name: str) -> None:
    inputs = [path.read_bytes() for path in target(name).corpus]
    accepted = [target(name).accepts(data) for data in inputs]
    assert any(accepted)
    assert sum(map(len, inputs)) < 64 * 1024


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_becomes_of_the_corpus_is_refused_by_name_or_read(name: str, seed: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(seed)
    target(name).accepts(mutated(chance.choice(target(name).corpus).read_bytes(), chance))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * MEBIBYTE


def test_every_parser_has_a_line_and_a_corpus() -> None:
    files = {path.stem for path in CORPUS.with_name("target").glob("*.py")} - {"__init__"}
    assert files == set(NAMES) == {path.name for path in CORPUS.iterdir()}
