"""Every parser over its corpus, and over a few hundred inputs that are made of it: refused by name, or read."""

from __future__ import annotations

import random
import sys
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fuzz.memory import peak, peak_begun_anew
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import CORPUS, NAMES, Target

EXAMPLES = examples(300)
MEBIBYTE = 1024
MOST_MEMORY = 500 * MEBIBYTE


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
def test_mutated_input_is_read_or_rejected_with_its_name(name: str, seed: int) -> None:
    chance = random.Random(seed)
    data = mutated(chance.choice(target(name).corpus).read_bytes(), chance)
    before = peak_begun_anew()
    target(name).accepts(data)
    assert peak() - before < MOST_MEMORY


@pytest.mark.skipif(sys.platform != "linux", reason="there the peak is that of all times")
def test_memory_is_seen_also_where_the_process_has_had_more_before() -> None:
    def use(mebibytes: int) -> int:
        before = peak_begun_anew()
        held = bytearray(mebibytes * MEBIBYTE * 1024)
        held[::4096] = b"x" * len(held[::4096])
        del held
        return peak() - before

    assert use(192) > 190 * MEBIBYTE
    assert 90 * MEBIBYTE < use(96) < 120 * MEBIBYTE, "half as much, after the first was given back"


def test_every_parser_has_a_line_and_a_corpus() -> None:
    files = {path.stem for path in CORPUS.with_name("target").glob("*.py")} - {"__init__"}
    assert files == set(NAMES) == {path.name for path in CORPUS.iterdir()}
