"""Elements that cross Spark's exchanges in messages: a chain with rules for all, small and very large elements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import KeyedBroadcastProcessFunction
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tests.spark.test_shapes import Numbered, environment, name

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

LETTERS = MapStateDescriptor("letters", "string", "string")
MEGABYTES = 9


class Replaced(KeyedBroadcastProcessFunction):
    """Puts another word in the place of some, as the rules say, and counts what it has seen of each."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: str, ctx: Any) -> Iterator[str]:
        self.count.update(self.count.value() + 1)
        yield ctx.get_broadcast_state(LETTERS).get(value[:4]) or value

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LETTERS).put(value.old, value.new)


def test_rules_arrive_before_words_and_a_word_of_megabytes_arrives_whole(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_exchange_packed=True)
    lines = ["kelp rock kelp", "sand " + "x" * (MEGABYTES << 20), "rock", *(f"word{at:03} kelp" for at in range(500))]
    words = env.from_collection([(line,) for line in lines], "line string").flat_map(
        lambda row: row.line.split(), output_type="string"
    )
    rules = env.from_collection([("rock", "stone")], "old string, new string").map(
        lambda row: row, output_type="old string, new string"
    )
    by_word = words.key_by(lambda word: word, "string").connect(rules.broadcast(LETTERS))
    replaced = by_word.process(Replaced(), output_type="string").uid("replaced")
    numbered = replaced.map(lambda word: (word, len(word)), output_type="word string, length bigint")
    with (
        numbered.key_by("word")
        .process(Numbered(), "word string, n bigint")
        .uid("n")
        .execute_and_collect(name()) as found
    ):
        rows = [tuple(row) for row in found]
    assert {row for row in rows if row[0] in ("stone", "rock", "sand")} == {("stone", 1), ("stone", 2), ("sand", 1)}
    assert sorted(n for word, n in rows if word == "kelp") == list(range(1, 503))
    [large] = [word for word, _ in rows if word.startswith("x")]
    assert large == "x" * (MEGABYTES << 20)
    assert len(rows) == 2 + 1 + 502 + 500 + 1
