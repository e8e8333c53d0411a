"""Savepoints that Flink 1.20 and 2.3 have written, in Java and in Python, are read, become ours, and jobs go on.

The archives were made by `python -m tests.golden.flink.make`, which needs Java and downloads Flink. What is in them is
computed here again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.datastream import KeyedProcessFunction
from holdfast.errors import ConfigurationError, NotExistError, StateError
from holdfast.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state_processor import FlinkSavepointReader, SavepointReader
from holdfast.state_processor.flink.serializer import SIMPLE, DataInput, avro_serializer
from holdfast.state_processor.flink.serializer_snapshot import decoder_of
from holdfast.testing import EpochProgram
from holdfast.types.types import Types
from tests.stories import journal

ARCHIVES = Path(__file__).parent / "flink"
JAVA = ("java-1.20", "java-2.3", "rocksdb-2.3")
PYTHON = ("process-1.20", "process-2.3")
UIDS = ("everything", "by-tuple", "of-operator", "windows", "source")
KEYS = ("ada", "grace", "jöan", "日本", "😀 smile", "", "x" * 200)
NUMBERS = range(40)
EVENT, PROCESSING = 4_102_444_800_000, 4_102_444_900_000


def opened(archive: str, place: Path) -> FlinkSavepointReader:
    with zipfile.ZipFile(ARCHIVES / f"{archive}.zip") as whole:
        whole.extractall(place / archive)
    return FlinkSavepointReader.read(str(place / archive))


def key_of(number: int) -> str:
    return KEYS[number % len(KEYS)]


def values_of(key: str, last: int, seen: list[int]) -> dict[str, Any]:
    """What the value states of a key have after the Java program; rows and records as Arrow has them."""
    address = {"number": last, "street": None if last % 5 == 0 else f"street {last}"}
    profile = {"address": None if last % 4 == 0 else address, "age": None if last % 2 == 0 else last,
               "best": {"f0": "best", "f1": last}, "member": last % 3 == 0, "name": key, "visits": last}  # fmt: skip
    flight = {"carrier": key, "delay": None if last % 2 == 0 else last / 2, "miles": last * 1000,
              "stops": [1, last], "codes": [("from", "EWR")]}  # fmt: skip
    return {
        "count": len(seen), "small": -last, "tiny": last, "one": -last, "single": last / 4, "ratio": last / 8,
        "flag": last % 2 == 0, "text": f"text,of {key} {last}", "blob": bytes([last, 0, 255]),
        "numbers": [last, -last, -(1 << 63)], "words": [key, None, f"w{last}"], "tags": [key, f"tag{last}"],
        "triple": {"f0": key, "f1": last, "f2": last / 2},
        "row": {"f0": None if last % 3 == 0 else f"w{last}", "f1": last, "f2": None if last % 2 == 0 else True},
        "profile": profile, "flight": flight, "color": ("RED", "GREEN", "BLUE")[last % 3],
        "instant": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=last, microseconds=123_456),
        "money": Decimal("-12.5") * last, "sum": sum(seen), "average": {"f0": sum(seen), "f1": len(seen)},
        "recent": last, "history": seen, "pairs": [{"f0": f"p,q{n}", "f1": n} for n in seen],
        "lately": [f"l{n}" for n in seen],
    }  # fmt: skip


def maps_of(seen: list[int], *, has_null: bool) -> dict[str, dict[Any, Any]]:
    totals: dict[Any, Any] = {f"t{n % 3}": n for n in seen} | ({"nothing": None} if has_null else {})
    rows = {n: {"f0": f"r{n}", "f1": None if n % 2 == 0 else n} for n in seen}
    return {"totals": totals, "rows": rows, "fresh": {f"f{n % 2}": n for n in seen}}


def by_key(table: pa.Table) -> dict[Any, Any]:
    return {row["key"]: row["value"] for row in table.to_pylist()}


def maps_by_key(table: pa.Table) -> dict[Any, dict[Any, Any]]:
    found: dict[Any, dict[Any, Any]] = {}
    for row in table.to_pylist():
        found.setdefault(row["key"], {})[row["map_key"]] = row["value"]
    return found


def judge_java(reader: Any, *, has_null: bool) -> None:
    """Reads everything that the Java program has kept, from Flink's savepoint or from ours."""
    seen = {key: [n for n in NUMBERS if key_of(n) == key] for key in KEYS}
    wanted = {key: values_of(key, seen[key][-1], seen[key]) for key in KEYS}
    for name in wanted["ada"]:
        found = by_key(reader.read_keyed_state("everything", name))
        assert found == {key: wanted[key][name] for key in KEYS}, name
    attributes = by_key(reader.read_keyed_state("everything", "attributes"))
    assert {key: dict(pairs) for key, pairs in attributes.items()} == {
        key: {"n": seen[key][-1], "null": None} for key in KEYS
    }
    for name in ("totals", "rows", "fresh"):
        found = maps_by_key(reader.read_keyed_state("everything", name))
        assert found == {key: maps_of(seen[key], has_null=has_null)[name] for key in KEYS}, name
    timers = reader.read_timers("everything").to_pylist()
    assert sorted((row["domain"], row["key"], row["timestamp"]) for row in timers) == sorted(
        (domain, key_of(n), since + n)
        for n in NUMBERS
        for domain, since in (("event", EVENT), ("processing", PROCESSING))
    )
    assert sorted(reader.read_list_state("of-operator", "dealt").column("value").to_pylist()) == list(NUMBERS)
    union = reader.read_union_state("of-operator", "union").column("value").to_pylist()
    assert sorted(union) == sorted(f"u{n}" for n in NUMBERS)
    everywhere = reader.read_broadcast_state("of-operator", "everywhere").to_pylist()
    assert sorted((row["key"], row["value"]) for row in everywhere) == [("a", 1), ("b", 2)]


def with_tuples(table: pa.Table, names: Iterable[str]) -> dict[Any, Any]:
    return {tuple(row["key"][name] for name in names): row["value"] for row in table.to_pylist()}


@pytest.mark.parametrize("archive", JAVA)
def test_what_a_java_program_has_kept_is_read_and_becomes_a_savepoint_of_ours(archive: str, tmp_path: Path) -> None:
    flink = opened(archive, tmp_path)
    has_null = archive.startswith("rocksdb")
    judge_java(flink, has_null=has_null)
    last = {(n % 5, key_of(n)): n for n in NUMBERS}
    assert with_tuples(flink.read_keyed_state("by-tuple", "last"), ("f0", "f1")) == last
    windows = flink.read_keyed_state("windows", "window-contents").to_pylist()
    assert {(row["key"], row["window_start"], row["window_end"], row["value"]) for row in windows} == {
        (key, 0, 1_000_000, sum(n for n in NUMBERS if key_of(n) == key)) for key in KEYS
    }

    writer = flink.writer(
        UIDS, leave_out=["source", "windows", "everything/opaque"], key_names={"by-tuple": ["n", "word"]}
    )
    ours = SavepointReader.read(None, writer.write(str(tmp_path / "ours")))
    judge_java(ours, has_null=has_null)
    assert with_tuples(ours.read_keyed_state("by-tuple", "last"), ("n", "word")) == last
    assert {row["operator-uid"]: row["operator-max-parallelism"] for row in ours.metadata().to_pylist()} == {
        "by-tuple": 300, "everything": 128, "of-operator": 128,
    }  # fmt: skip
    stamps = {row["key"]: row["stamp"] for row in flink.read_keyed_state("everything", "recent").to_pylist()}
    assert {row["key"]: row["stamp"] for row in ours.read_keyed_state("everything", "recent").to_pylist()} == stamps


def descriptors() -> dict[str, Any]:
    """Those of the PyFlink program, with its imports replaced."""
    values = {
        "count": Types.LONG(), "small": Types.INT(), "ratio": Types.DOUBLE(), "flag": Types.BOOLEAN(),
        "text": Types.STRING(), "blob": Types.PRIMITIVE_ARRAY(Types.BYTE()), "tags": Types.LIST(Types.STRING()),
        "row": Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()]),
        "tuple": Types.TUPLE([Types.STRING(), Types.LONG()]), "map": Types.MAP(Types.STRING(), Types.LONG()),
        "pickled": Types.PICKLED_BYTE_ARRAY(),
    }  # fmt: skip
    made: dict[str, Any] = {name: ValueStateDescriptor(name, kind) for name, kind in values.items()}
    made["history"] = ListStateDescriptor("history", Types.LONG())
    made["totals"] = MapStateDescriptor("totals", Types.STRING(), Types.LONG())
    made["sum"] = ReducingStateDescriptor("sum", lambda one, other: one + other, Types.LONG())
    made["recent"] = ValueStateDescriptor("recent", Types.LONG())
    made["recent"].enable_time_to_live(StateTtlConfig.new_builder(20_000 * 86_400_000).build())
    return made


class Everything(KeyedProcessFunction):
    """Emits all that there is of a key, and counts on."""

    def open(self, runtime_context: Any) -> None:
        get = {"history": "get_list_state", "totals": "get_map_state", "sum": "get_reducing_state"}
        self.states = {
            name: getattr(runtime_context, get.get(name, "get_state"))(descriptor)
            for name, descriptor in descriptors().items()
        }

    def process_element(self, row: Any, ctx: Any) -> Any:
        states = self.states
        states["sum"].add(1000)
        values = {
            name: list(state.get()) if name == "history" else dict(sorted(state.items())) if name == "totals"
            else state.get() if name == "sum" else state.value()
            for name, state in states.items()
        }  # fmt: skip
        values["row"] = tuple(values["row"])
        yield row.word, repr(values)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), repr(timestamp)


@pytest.mark.parametrize("archive", PYTHON)
def test_a_pyflink_program_goes_on_here_with_what_it_has_kept_there(archive: str, tmp_path: Path) -> None:
    flink = opened(archive, tmp_path)
    [source] = [uid for uid in flink.operators() if flink.problems(uid)]
    writer = flink.writer(["everything"], leave_out=[source], states={"everything": list(descriptors().values())})
    start = writer.write(str(tmp_path / "ours"))

    program = EpochProgram()
    words = program.source("words", "word string")
    told = words.key_by(lambda row: row.word, Types.STRING()).process(Everything(), "word string, told string")
    told.uid("everything").sink_to(journal.Journal(tmp_path / "out")).uid("out")
    program.run(str(tmp_path / "job"), [{"words": [(key,) for key in KEYS]}], {"execution.state-recovery.path": start})

    emitted = dict(journal.as_tuples(journal.read(tmp_path / "out")))
    for key in KEYS:
        seen = [n for n in NUMBERS if key_of(n) == key]
        last = seen[-1]
        assert emitted[key] == repr(
            {
                "count": len(seen), "small": -last, "ratio": last / 8, "flag": last % 2 == 0,
                "text": f"text,of {key} {last}", "blob": bytes([last, 0, 255]), "tags": [key, f"tag{last}"],
                "row": (f"w{last}", last), "tuple": (key, last), "map": {"n": last}, "pickled": {"n": last},
                "history": seen, "totals": {f"t{n % 3}": n for n in sorted(seen, key=lambda n: n % 3)},
                "sum": sum(seen) + 1000, "recent": last,
            }
        )  # fmt: skip


def test_what_cannot_be_read_is_named_and_nothing_is_guessed(tmp_path: Path) -> None:
    java, python = opened("java-2.3", tmp_path), opened("process-2.3", tmp_path)
    assert java.operators() == ["by-tuple", "everything", "of-operator", "source", "windows"]
    assert list(java.problems("everything")) == ["opaque"]
    with pytest.raises(StateError, match=r"java\.util\.BitSet are written by Kryo"):
        java.read_keyed_state("everything", "opaque")
    with pytest.raises(StateError) as refused:
        java.writer()
    assert all(
        name in str(refused.value) for name in ("source:", "everything/opaque:", "windows/window-contents:", "timers")
    )
    with pytest.raises(NotExistError, match="nowhere"):
        java.writer(leave_out=["nowhere"])
    with pytest.raises(NotExistError, match="has no keyed state 'nothing'"):
        java.read_keyed_state("everything", "nothing")
    with pytest.raises(StateError, match=r"everything/count: .*whose type the savepoint does not have"):
        python.writer()
    count = python.read_keyed_state("everything", "count").to_pylist()
    assert {len(row["value"][0]) for row in count} == {8}  # without a descriptor: the bytes of PyFlink's coder
    for wrong in (ValueStateDescriptor("count", Types.INT()), ValueStateDescriptor("count", Types.STRING())):
        with pytest.raises(Exception, match=r"damaged.*(another one|should follow)"):
            python.read_keyed_state("everything", wrong)
    with pytest.raises(StateError, match="has 6 elements for a key, so it is no value state"):
        python.read_keyed_state("everything", ValueStateDescriptor("history", Types.LONG()))
    with pytest.raises(StateError, match="is a map, but its descriptor says otherwise"):
        python.read_keyed_state("everything", ValueStateDescriptor("totals", Types.LONG()))


def test_a_savepoint_in_the_format_of_one_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="flink savepoint --type canonical"):
        opened("native-2.3", tmp_path)


def test_the_command_line_tells_what_there_is_and_makes_a_savepoint(tmp_path: Path) -> None:
    opened("java-2.3", tmp_path)
    command = ["state", "from-flink", str(tmp_path / "java-2.3")]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert "everything\n" in told.output and "  count (value)\n" in told.output
    assert "  opaque (value): " in told.output and "java.util.BitSet are written by Kryo" in told.output

    ours = tmp_path / "ours"
    refused = CliRunner().invoke(main, [*command, "--to", str(ours)])
    assert refused.exit_code != 0 and "everything/opaque" in refused.stderr and not ours.exists()

    left = [text for uid in ("source", "windows", "everything/opaque") for text in ("--leave-out", uid)]
    made = CliRunner().invoke(main, [*command, "--to", str(ours), *left])
    assert made.exit_code == 0 and made.output.strip() == str(ours), made.output
    judge_java(SavepointReader.read(None, str(ours)), has_null=False)


def test_decimals_keep_all_of_their_digits() -> None:
    wanted = [Decimal("12345678901234567890.123456789012345678"), Decimal("-0.000000000000000001"), Decimal("7E+2")]
    reads = SIMPLE["org.apache.flink.api.common.typeutils.base.BigDecSerializer$BigDecSerializerSnapshot"].read
    for number in wanted:
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        data = unscaled.to_bytes(17, "big", signed=True)
        scale = (-exponent).to_bytes(4, "big", signed=True)
        assert reads(DataInput((len(data) + 4).to_bytes(4, "big") + data + scale, "file")) == number
        if exponent <= 0:
            kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": -exponent}
            record = {"type": "record", "name": "R", "fields": [{"name": "d", "type": kind}]}
            read = avro_serializer(json.dumps(record)).read
            assert read(DataInput(len(data).to_bytes(4, "big") + data, "file")) == {"d": number}


def test_an_avro_decimal_that_is_named_again_is_a_decimal_there_too() -> None:
    money = {"type": "fixed", "name": "Money", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
    fields = [{"name": "price", "type": money}, {"name": "paid", "type": "Money"}]
    reads = avro_serializer(json.dumps({"type": "record", "name": "Sale", "fields": fields}))
    assert reads.problem is None
    assert reads.read(DataInput(b"\x01\x00\xff\xff", "file")) == {"price": Decimal("2.56"), "paid": Decimal("-0.01")}


def test_a_timestamp_of_pyflink_is_read_by_its_own_coder_and_an_instant_by_another() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 0, 250_000)
    milliseconds = (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    timestamp = milliseconds.to_bytes(8, "big")
    instant = (milliseconds // 1000).to_bytes(8, "big") + (250_000_000).to_bytes(4, "big")
    assert decoder_of(Types.SQL_TIMESTAMP())(timestamp, "file") == moment
    assert decoder_of(Types.INSTANT())(instant, "file") == moment.replace(tzinfo=UTC)
    pair = decoder_of(Types.TUPLE([Types.SQL_TIMESTAMP(), Types.INSTANT()]))
    assert pair(timestamp + instant, "file") == (moment, moment.replace(tzinfo=UTC))
