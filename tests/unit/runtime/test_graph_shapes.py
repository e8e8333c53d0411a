"""Programs of many shapes, each against the same computation in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import DataStream, OutputTag, ParquetFileSink, ProcessFunction
from holdfast.runtime.job.control import JobStatus
from tests.stories import journal, ledger
from tests.stories.functions import Numbering
from tests.stories.journal import Journal, as_tuples
from tests.stories.local import Program, epochs, run
from tests.unit.runtime.test_transforms import transformed

SALE = "id bigint, shop string, amount bigint"
NUMBERED = "id bigint, shop string, amount bigint, seq bigint"

SALES = [
    [(1, "a", 5), (2, "b", 7), (3, "a", 2), (4, "c", 9)],
    [(5, "b", 1), (6, "a", 5)],
    [],
    [(7, "c", 3), (8, "a", 8), (9, "d", 4), (10, "b", 6), (11, "a", 1)],
]


def numbering() -> Numbering:
    return Numbering(lambda sale, number: (*sale, number))


def numbered(sales: Sequence[Sequence[Any]], key: Any) -> list[tuple[Any, ...]]:
    """The oracle of `Numbering` over all epochs."""
    counts: dict[Any, int] = defaultdict(int)
    out = []
    for sale in (tuple(sale) for epoch in sales for sale in epoch):
        counts[key(sale)] += 1
        out.append((*sale, counts[key(sale)]))
    return out


def by_shop(stream: DataStream) -> DataStream:
    return stream.key_by("shop", order_by="id").process(numbering(), NUMBERED)


def test_two_keyed_operators_on_one_stream(place: Path) -> None:
    program = Program()
    sales = program.source("sales", SALE)
    by_shop(sales).uid("by-shop").sink_to(Journal(place / "shop")).uid("shop-sink")
    parity = sales.key_by(lambda sale: sale.amount % 2, "bigint", order_by="id").process(numbering(), NUMBERED)
    parity.uid("parity").sink_to(Journal(place / "parity")).uid("parity-sink")
    run(program, place / "job", epochs("sales", SALES))
    assert as_tuples(journal.read(place / "shop")) == sorted(numbered(SALES, lambda s: s[1]))
    assert as_tuples(journal.read(place / "parity")) == sorted(numbered(SALES, lambda s: s[2] % 2))


def test_a_stream_united_with_one_that_is_derived_from_it_by_a_key(place: Path) -> None:
    """One edge spans two exchanges: the stage in between hands its elements on untouched."""
    program = Program()
    sales = program.source("sales", SALE)
    first = sales.key_by("shop", order_by="id").process(
        Numbering(lambda sale, number: (sale.id + 100, sale.shop, number)), SALE
    )
    both = sales.union(first.uid("first"))
    both.key_by("shop", order_by="id").process(numbering(), NUMBERED).uid("second").sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("sales", SALES))

    expected, counts = [], defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for epoch in SALES:
        derived = []
        for sale in epoch:
            counts[sale[1]] += 1
            derived.append((sale[0] + 100, sale[1], counts[sale[1]]))
        for row in sorted([*epoch, *derived]):
            totals[row[1]] += 1
            expected.append((*row, totals[row[1]]))
    assert as_tuples(journal.read(place / "out")) == sorted(expected)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
@pytest.mark.parametrize("mapped", [False, True], ids=["source", "step"])
def test_a_stream_united_with_itself_has_each_element_twice_everywhere(place: Path, mapped: bool, packed: bool) -> None:
    program = Program()
    sales = program.source("sales", SALE)
    if mapped:
        sales = sales.map(lambda sale: sale, SALE)
    twice, thrice = sales.union(sales), sales.union(sales, sales)
    twice.sink_to(Journal(place / "sink")).uid("sink")
    thrice.filter(lambda sale: True).sink_to(Journal(place / "narrow")).uid("narrow")
    twice.key_by("shop").process(numbering(), NUMBERED).uid("columns").sink_to(Journal(place / "columns")).uid("c")
    by_selector = twice.union(sales.map(lambda sale: sale, SALE)).key_by(lambda sale: sale.shop, "string")
    by_selector.process(numbering(), NUMBERED).uid("selector").sink_to(Journal(place / "selector")).uid("s")
    twice.broadcast().set_parallelism(2).sink_to(Journal(place / "all")).uid("all")
    later = transformed(twice, lambda table: table, SALE)
    later.union(later, sales).sink_to(Journal(place / "later")).uid("later")
    run(program, place / "job", epochs("sales", SALES), {"execution.exchange.packed": packed})

    once = [sale for epoch in SALES for sale in epoch]
    for name, times in (("sink", 2), ("narrow", 3), ("all", 4), ("later", 5)):
        assert as_tuples(journal.read(place / name)) == sorted(once * times), name
    for name, times in (("columns", 2), ("selector", 3)):
        numbers: dict[str, list[int]] = defaultdict(list)
        for _, shop, _, number in journal.read(place / name):
            numbers[shop].append(number)
        assert {shop: sorted(found) for shop, found in numbers.items()} == {
            shop: list(range(1, times * sum(sale[1] == shop for sale in once) + 1)) for shop in "abcd"
        }, name


def test_a_stream_united_with_its_own_mapped_self(place: Path) -> None:
    program = Program()
    sales = program.source("sales", SALE)
    doubled = sales.map(lambda sale: (sale.id + 100, sale.shop, 2 * sale.amount), SALE)
    sales.union(doubled).key_by("shop").reduce(lambda a, b: (a.id, a.shop, a.amount + b.amount)).uid("sum").sink_to(
        Journal(place / "out")
    )
    run(program, place / "job", epochs("sales", SALES))
    last = {row.shop: row.amount for row in sorted(journal.read(place / "out"), key=lambda row: row.amount)}
    assert last == {shop: 3 * sum(s[2] for epoch in SALES for s in epoch if s[1] == shop) for shop in "abcd"}


def test_two_sources_united(place: Path) -> None:
    program = Program()
    shops, web = program.source("shops", SALE), program.source("web", SALE)
    by_shop(shops.union(web)).uid("count").sink_to(Journal(place / "out"))
    inputs = [
        {"shops": [(1, "a", 1), (3, "b", 1)], "web": [(2, "a", 1)]},
        {"web": [(4, "b", 1), (5, "a", 1)]},
        {"shops": [(6, "a", 1)]},
    ]
    run(program, place / "job", inputs)
    flat = [sorted(row for rows in epoch.values() for row in rows) for epoch in inputs]
    assert as_tuples(journal.read(place / "out")) == sorted(numbered(flat, lambda s: s[1]))


def test_two_sources_of_different_types_in_one_job(place: Path) -> None:
    program = Program()
    shops = program.source("shops", SALE)
    names = program.source("names", "string")
    by_shop(shops).uid("count").sink_to(Journal(place / "sales"))
    names.key_by(lambda name: name[:1]).process(Numbering()).uid("letters").sink_to(Journal(place / "names"))
    run(program, place / "job", [{"shops": SALES[0], "names": ["ann", "bob", "al"]}, {"names": ["amy"]}])
    assert as_tuples(journal.read(place / "sales")) == sorted(numbered(SALES[:1], lambda s: s[1]))
    assert sorted(journal.read(place / "names")) == [("al", 2), ("amy", 3), ("ann", 1), ("bob", 1)]


def test_a_chain_of_three_keyed_operators(place: Path) -> None:
    program = Program()
    stream: Any = program.source("sales", SALE)
    stream = stream.key_by("shop", order_by="id").process(numbering(), NUMBERED).uid("one")
    stream = stream.key_by("seq", order_by="id").process(
        Numbering(lambda row, number: (*row, number)), f"{NUMBERED}, second bigint"
    )
    stream = (
        stream.uid("two")
        .key_by(lambda row: "all", order_by="id")
        .process(Numbering(lambda row, number: (*row, number)), f"{NUMBERED}, second bigint, third bigint")
    )
    stream.uid("three").sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", epochs("sales", SALES))

    rows = numbered(SALES, lambda s: s[1])
    seconds: dict[int, int] = defaultdict(int)
    expected = []
    for third, row in enumerate(sorted(rows), start=1):  # ids ascend with the epochs
        seconds[row[3]] += 1
        expected.append((*row, seconds[row[3]], third))
    assert sorted(ledger.read(place / "out")) == expected


LATE = OutputTag("late", SALE)
ODD = OutputTag("odd", "bigint")


class Sorter(ProcessFunction):
    """Sends small amounts to one side output and the ids of odd ones to another, in PyFlink's way."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.amount < 3:
            ctx.output(LATE, value)
        else:
            yield value
        if value.amount % 2:
            yield ODD, value.id


def test_side_outputs_go_to_a_keyed_operator_and_to_a_sink(place: Path) -> None:
    program = Program()
    main = program.source("sales", SALE).process(Sorter(), SALE)
    by_shop(main).uid("main").sink_to(Journal(place / "main"))
    by_shop(main.get_side_output(LATE)).uid("late").sink_to(Journal(place / "late"))
    main.get_side_output(ODD).sink_to(Journal(place / "odd"))
    run(program, place / "job", epochs("sales", SALES))
    large = [[s for s in epoch if s[2] >= 3] for epoch in SALES]
    small = [[s for s in epoch if s[2] < 3] for epoch in SALES]
    assert as_tuples(journal.read(place / "main")) == sorted(numbered(large, lambda s: s[1]))
    assert as_tuples(journal.read(place / "late")) == sorted(numbered(small, lambda s: s[1]))
    assert sorted(journal.read(place / "odd")) == [s[0] for epoch in SALES for s in epoch if s[2] % 2]


class Splitter(Numbering):
    """Emits first elements, and sends repeated ones to the side."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        for row in super().process_element(value, ctx):
            if row[-1] > 1:
                ctx.output(REPEATED, row)
            else:
                yield row


REPEATED = OutputTag("repeated", NUMBERED)


def test_the_side_output_of_a_keyed_operator_goes_on_to_another_one(place: Path) -> None:
    program = Program()
    split = (
        program.source("sales", SALE)
        .key_by("shop", order_by="id")
        .process(Splitter(lambda sale, number: (*sale, number)), NUMBERED)
    )
    split.uid("split").sink_to(Journal(place / "first"))
    again = split.get_side_output(REPEATED).key_by("seq", order_by="id").process(Numbering())
    again.uid("again").sink_to(Journal(place / "repeated"))
    run(program, place / "job", epochs("sales", SALES))
    rows = numbered(SALES, lambda s: s[1])
    assert as_tuples(journal.read(place / "first")) == sorted(row for row in rows if row[3] == 1)
    found = sorted((tuple(row), number) for row, number in journal.read(place / "repeated"))
    counts: dict[int, int] = defaultdict(int)
    expected = []
    for row in sorted(row for row in rows if row[3] > 1):
        counts[row[3]] += 1
        expected.append((row, counts[row[3]]))
    assert found == expected


def test_a_job_without_any_key(place: Path) -> None:
    program = Program()
    stream = program.source("sales", SALE).filter(lambda sale: sale.shop != "b")
    stream.map(lambda sale: sale.amount * 10, "bigint").sink_to(Journal(place / "out"))
    status = run(program, place / "job", epochs("sales", SALES))
    assert status is JobStatus.SUSPENDED
    assert sorted(journal.read(place / "out")) == sorted(s[2] * 10 for epoch in SALES for s in epoch if s[1] != "b")


def test_narrow_operators_between_keyed_ones(place: Path) -> None:
    program = Program()
    stream: Any = program.source("sales", SALE)
    stream = stream.filter(lambda sale: sale.amount > 1).key_by("shop", order_by="id").process(numbering(), NUMBERED)
    stream = stream.uid("one").map(lambda row: (row.id, row.seq % 2), "id bigint, parity bigint")
    stream = stream.flat_map(lambda row: [row] * 2, "id bigint, parity bigint").filter(lambda row: row.id != 4)
    stream = stream.key_by("parity", order_by="id").process(
        Numbering(lambda row, number: (*row, number)), "id bigint, parity bigint, n bigint"
    )
    stream.uid("two").sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("sales", SALES))
    rows = numbered([[s for s in epoch if s[2] > 1] for epoch in SALES], lambda s: s[1])
    twice = [[(row[0], row[3] % 2)] * 2 for row in sorted(rows) if row[0] != 4]
    assert as_tuples(journal.read(place / "out")) == sorted(numbered(twice, lambda s: s[1]))


def test_several_sinks_of_one_stream_and_of_its_source(place: Path) -> None:
    program = Program()
    sales = program.source("sales", SALE)
    sales.sink_to(Journal(place / "raw")).uid("raw")
    counted = by_shop(sales).uid("count")
    counted.sink_to(Journal(place / "one")).uid("one")
    counted.sink_to(ParquetFileSink(place / "two")).uid("two")
    counted.map(lambda row: row.seq, "bigint").sink_to(Journal(place / "three")).uid("three")
    run(program, place / "job", epochs("sales", SALES))
    expected = sorted(numbered(SALES, lambda s: s[1]))
    assert as_tuples(journal.read(place / "raw")) == sorted(s for epoch in SALES for s in epoch)
    assert as_tuples(journal.read(place / "one")) == expected
    assert sorted(ledger.read(place / "two")) == expected
    assert sorted(journal.read(place / "three")) == sorted(row[3] for row in expected)


def test_elements_of_undeclared_type_travel_pickled_through_keyed_operators(place: Path) -> None:
    program = Program()
    words = program.source("words")
    pairs = (
        words.map(lambda word: {"word": word, "letters": set(word)})
        .key_by(lambda e: len(e["word"]))
        .process(Numbering())
    )
    pairs.uid("count").key_by(lambda pair: pair[1]).process(Numbering()).uid("again").sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("words", [["to", "be", "or"], ["not", "to"], ["be"]]))
    found = [(pair[0]["word"], pair[0]["letters"], pair[1]) for pair, _ in journal.read(place / "out")]
    assert sorted((word, number) for word, _, number in found) == [
        ("be", 2), ("be", 5), ("not", 1), ("or", 3), ("to", 1), ("to", 4),
    ]  # fmt: skip
    assert all(letters == set(word) for word, letters, _ in found)


def test_operators_of_different_parallelism_in_one_chain(place: Path) -> None:
    program = Program()
    one = by_shop(program.source("sales", SALE)).uid("one").set_parallelism(5)
    two = one.key_by("seq", order_by="id").process(Numbering(lambda row, n: (row.id, n)), "id bigint, n bigint")
    two.uid("two").set_parallelism(2).sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("sales", SALES), parallelism=3)
    rows = [[(row[0], row[3])] for row in sorted(numbered(SALES, lambda s: s[1]))]
    expected = sorted((row[0], row[2]) for row in numbered(rows, lambda s: s[1]))
    assert as_tuples(journal.read(place / "out")) == expected
