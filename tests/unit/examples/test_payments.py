"""The payments job, fed with records in epochs of any size, against plain Python; without Kafka and without Spark."""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.payments import job, oracle, traffic
from holdfast.datastream.connectors.kafka.topic_ranges import COLUMNS
from holdfast.testing import EpochProgram
from tests.documentation import ROOT, blocks

NOW = traffic.BEGIN + 2 * traffic.DAY


class Records:
    """What Kafka would give: records with their places."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.next = 0

    def of(self, values: list[bytes]) -> list[tuple[Any, ...]]:
        first, self.next = self.next, self.next + len(values)
        return [(None, value, self.topic, 0, first + n, NOW, []) for n, value in enumerate(values)]


class Outputs:
    """The three streams, as committed epochs have left them."""

    def __init__(self) -> None:
        self.program = EpochProgram()
        self.rows: dict[str, Counter[Any]] = {"alerts": Counter(), "turnovers": Counter(), "unreadable": Counter()}
        streams = job.define(self.program.source("payments", COLUMNS), self.program.source("rules", COLUMNS))
        for (name, rows), stream in zip(self.rows.items(), streams, strict=True):

            def write(frame: Any, epoch: int, incarnation: str, rows: Counter[Any] = rows) -> None:
                rows.update(tuple(row.values()) for row in frame.to_pylist())

            stream.for_each_epoch(write).uid(name)

    def turnovers(self) -> Counter[Any]:
        return Counter(
            {(merchant, int(hour.timestamp() * 1000), n, cents): times
             for (merchant, hour, n, cents), times in self.rows["turnovers"].items()}
        )  # fmt: skip


def in_epochs(payments: list[dict[str, Any]], change: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """All of it, cut anywhere, with garbage in between; the rules change somewhere before they hold."""
    records, rules = Records("payments"), Records("rules")
    pending = [json.dumps(rule).encode() for rule in traffic.change_of_rules(change)]
    first = rules.of([json.dumps(rule).encode() for rule in traffic.rules()] + [b"[]"])
    values = [json.dumps(payment).encode() for payment in payments]
    position = 0
    while position < len(values):
        end = position + chance.randrange(1, 900)
        now: list[tuple[Any, ...]] = first
        if pending and (chance.random() < 0.3 or payments[min(end, len(values)) - 1]["at"] >= change):
            now, pending = now + rules.of(pending), []
        garbage = [chance.choice(traffic.GARBAGE)] if chance.random() < 0.3 else []
        yield {"payments": records.of(values[position:end] + garbage), "rules": now}
        position, first = end, []


@pytest.mark.parametrize("amnesia", [False, True])
def test_wherever_epochs_end_it_writes_what_plain_python_says(tmp_path: Path, amnesia: bool) -> None:
    payments = list(traffic.payments(3000, seed=7))
    change = payments[1500]["at"]
    inputs = list(in_epochs(payments, change, random.Random(int(amnesia))))
    outputs = Outputs()
    outputs.program.run(tmp_path, inputs[: len(inputs) // 2], amnesia=amnesia)
    outputs.program.run(tmp_path, inputs, amnesia=amnesia)  # it goes on where it stopped

    expected = oracle.alerts(payments, traffic.rules() + traffic.change_of_rules(change))
    assert {rule for _, _, rule, _ in expected} == {"big spender", "spender", "busy card", "two places"}
    assert oracle.differences("alerts", outputs.rows["alerts"], expected) == []
    certain = max(json.loads(value)["at"] for _, value, *_ in inputs[-2]["payments"] if value not in traffic.GARBAGE)
    found = outputs.turnovers()
    assert oracle.turnover_problems(found, payments, certain) == [] and len(found) > 100
    garbage = Counter(value for epoch in inputs for _, value, *_ in epoch["payments"] if value in traffic.GARBAGE)
    unreadable: Counter[bytes] = Counter()
    for (_topic, _partition, _offset, value, _reason), times in outputs.rows["unreadable"].items():
        unreadable[value] += times
    assert unreadable == garbage + Counter([b"[]"])


@pytest.mark.parametrize(
    ("topic", "changed", "reason"),
    [
        ("payments", {"at": NOW + 2 * job.HOUR}, "is not before that of its record"),
        ("payments", {"at": -1}, "is not before"),
        ("payments", {"cents": 2**62}, "nobody pays"),
        ("payments", {"card": None}, "a field is null"),
        ("payments", {"cents": 1.5}, "whole number"),
        ("payments", {"cents": 2**63}, "64 bits"),
        ("rules", {"kind": "astrology"}, "astrology"),
        ("rules", {"seconds": 3601}, "an hour at most"),
    ],
)
def test_a_record_that_could_do_harm_goes_beside_with_the_reason(
    tmp_path: Path, topic: str, changed: dict[str, Any], reason: str
) -> None:
    good = {"payments": next(traffic.payments(10, seed=1)), "rules": traffic.rules()[0]}
    value = json.dumps({**good[topic], **changed}).encode()
    outputs = Outputs()
    outputs.program.run(tmp_path, [{"payments": [], "rules": [], topic: Records(topic).of([value])}])
    [(said, partition, offset, kept, why)] = outputs.rows["unreadable"]
    assert (said, partition, offset, kept) == (topic, 0, 0, value) and reason in why
    assert not outputs.rows["alerts"]


SHOWN = (
    "PAYMENT", "RECORD", "RULE", "ALERT", "TURNOVER", "HOUR", "RULES", "UNREADABLE",
    "Read", "problem_of_payment", "Fraud", "instant", "in_time", "turnovers",
)  # fmt: skip


def test_the_tutorial_shows_the_job_as_it_is() -> None:
    program = (ROOT / "examples" / "payments" / "job.py").read_text(encoding="utf-8")
    page = ROOT / "docs" / "tutorial-payments.md"
    defined, shown = definitions(program), [definitions(block.text) for block in blocks(page, "python")]
    for name in SHOWN:
        assert {names[name] for names in shown if name in names} == {defined[name]}, name
    sinks = re.findall(
        r"^    (?:alerts|turnovers|unreadable|env)\.\w+\(.*\n", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(sinks) == 4 and "".join(sinks) in program


def definitions(program: str) -> dict[str, str]:
    """Return the classes, functions and assigned names of a program outside of classes, without their layout."""
    found: dict[str, str] = {}
    places = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Module | ast.FunctionDef)]
    for node in (node for place in places for node in place.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.setdefault(node.name, ast.unparse(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.setdefault(ast.unparse(target), ast.unparse(node))
    return found
