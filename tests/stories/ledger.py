"""A ledger: payments keyed by account, numbered and summed up, and an auditor who judges the output from outside.

Used by stories about crashes: whatever happened, the output must hold each payment once, numbered 1, 2, 3 ... in each
account without gap or repeat, with the right running total.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from holdfast.datastream.sinks import ParquetFileSink
from holdfast.runtime.function.user_function import KeyedProcessFunction
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.types.type_parser import parse_schema, parse_type

PAYMENT = parse_schema("payment bigint, account string, amount bigint")
ENTRY = parse_schema(
    "payment bigint, account string, seq bigint, total bigint, distinct_amounts bigint, last_three bigint"
)
FINAL = parse_schema(
    "payment bigint, account string, seq bigint, total bigint, distinct_amounts bigint, last_three bigint, "
    "parity_seq bigint"
)


class Ledger(KeyedProcessFunction):
    """Numbers the payments of an account; uses value, map and list state so that a story covers all of them."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("seq", parse_type("bigint")))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", parse_type("bigint")))
        self.amounts = runtime_context.get_map_state(
            MapStateDescriptor("amounts", parse_type("bigint"), parse_type("bigint"))
        )
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", parse_type("bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seq = (self.seq.value() or 0) + 1
        total = (self.total.value() or 0) + value.amount
        self.seq.update(seq)
        self.total.update(total)
        self.amounts.put(value.amount, (self.amounts.get(value.amount) or 0) + 1)
        last = [*self.last.get(), value.amount][-3:]
        self.last.update(last)
        yield value.payment, value.account, seq, total, len(list(self.amounts.keys())), sum(last)


class Parity(KeyedProcessFunction):
    """A second keyed operator: numbers entries by the parity of their total."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("parity_seq", parse_type("bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seq = (self.seq.value() or 0) + 1
        self.seq.update(seq)
        yield (*value, seq)


class Thirds(KeyedProcessFunction):
    """A third keyed operator: numbers entries by their payment modulo three."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("third_seq", parse_type("bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seq = (self.seq.value() or 0) + 1
        self.seq.update(seq)
        yield (*value, seq)


def payments(epochs: int, rows: int, accounts: int, seed: int) -> list[list[tuple[int, str, int]]]:
    """Payments epoch by epoch; the same for the same seed."""
    rng = random.Random(seed)
    return [
        [(epoch * rows + i, f"account-{rng.randrange(accounts)}", rng.randrange(1, 50)) for i in range(rows)]
        for epoch in range(epochs)
    ]


def inputs(epochs: Sequence[Sequence[Any]]) -> list[Mapping[str, Sequence[Any]]]:
    """The payments as inputs of the epoch runner."""
    return [{"payments": list(epoch)} for epoch in epochs]


def graph(output: Path | str, *, two_stages: bool = False, parallelism: int | None = None) -> StreamGraph:
    """The job: payments -> ledger by account (-> parity) -> Parquet."""
    source = SourceNode(name="payments", uid="payments", element_type=PAYMENT, is_streaming=True)
    last: Any = KeyedNode(
        inputs=(source,),
        name="ledger",
        uid="ledger",
        element_type=ENTRY,
        operator=OperatorSpec(Ledger(), "process", True, PAYMENT, ENTRY),
        key=KeySpec(columns=("account",), order_by=("payment",)),
        parallelism=parallelism,
    )
    if two_stages:
        last = KeyedNode(
            inputs=(last,),
            name="parity",
            uid="parity",
            element_type=FINAL,
            operator=OperatorSpec(Parity(), "process", True, ENTRY, FINAL),
            key=KeySpec(selector=lambda entry: entry.total % 2, key_type=parse_type("bigint")),
            parallelism=parallelism,
        )
    sink = SinkNode(
        inputs=(last,), name="out", uid="out", element_type=last.element_type, sink=ParquetFileSink(str(output))
    )
    return StreamGraph([sink])


def audit(
    output: Path | str,
    epochs: Sequence[Sequence[tuple[int, str, int]]],
    *,
    two_stages: bool = False,
    three_stages: bool = False,
) -> None:
    """Judges the output from outside: sink equals model, sequences have no gap and no repeat.

    Raises:
        AssertionError: Something is missing, doubled or wrong.
    """
    found = read(output)
    rows = [tuple(row[:6]) for row in found]
    assert len(rows) == len(set(rows)), f"{len(rows) - len(set(rows))} rows came twice"
    assert sorted(rows) == model(epochs)
    if three_stages:
        for third in (0, 1, 2):
            numbers = sorted(row[7] for row in found if row[0] % 3 == third)
            assert numbers == list(range(1, len(numbers) + 1)), f"the sequence of third {third} has a gap or a repeat"
    if two_stages or three_stages:
        for parity in (0, 1):
            numbers = sorted(row[6] for row in found if row[3] % 2 == parity)
            assert numbers == list(range(1, len(numbers) + 1)), f"the sequence of parity {parity} has a gap or a repeat"


def model(epochs: Sequence[Sequence[tuple[int, str, int]]]) -> list[tuple[Any, ...]]:
    """The rows that the first keyed operator must emit, sorted."""
    rows = []
    seen: dict[str, list[int]] = {}
    for payment, account, amount in (p for epoch in epochs for p in epoch):
        amounts = seen.setdefault(account, [])
        amounts.append(amount)
        rows.append((payment, account, len(amounts), sum(amounts), len(set(amounts)), sum(amounts[-3:])))
    return sorted(rows)


def read(output: Path | str) -> list[tuple[Any, ...]]:
    """All rows of the output as a reader sees them."""
    files = sorted(Path(output).glob("**/*.parquet"))
    if not files:
        return []
    table = ds.dataset([str(f) for f in files], format="parquet").to_table()
    return list(zip(*(table.column(i).to_pylist() for i in range(table.num_columns)), strict=True))
