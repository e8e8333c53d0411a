"""Checkpoints with pickles and classes that would run code: commands that only read them, and servers, run none."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint.metadata import EVENT_TIME
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, MapFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.errors import HoldfastError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.watermark import WatermarkGenerator
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.testing import EpochProgram
from holdfast.types.serializer import TypeSerializer
from tests.unit.cli.test_query import Server

MODULE = "a_module_that_somebody_left_there"
UNPICKLED, IMPORTED = "somebody-has-unpickled-it", "somebody-has-imported-it"
COLUMNS = "word string, n bigint"
ROWS = [("kelp", 1), ("rock", 2)]
KEYED = ("value", "listed", "mapped", "words")
OPERATOR = ("split", "union", "shared")
COMMANDS = """
import json, sys
from holdfast.cli import main
for arguments in json.loads(sys.argv[1]):
    main(arguments, standalone_mode=False)
"""


class Trap:
    """What makes a file where it is unpickled."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.place, UNPICKLED),)


class Words(TypeSerializer[str]):
    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


class Generator(WatermarkGenerator):
    def __init__(self, place: str) -> None:
        self.trap = Trap(place)

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(1)

    def on_periodic_emit(self, output: Any) -> None:
        pass


class Keep(KeyedProcessFunction):
    """Keyed state of each form, with values that nobody should unpickle, and one that has a serializer of its own."""

    def __init__(self, place: str) -> None:
        self.place = place

    def open(self, runtime_context: Any) -> None:
        value = ValueStateDescriptor("value")
        value.set_queryable("value")
        self.value = runtime_context.get_state(value)
        self.listed = runtime_context.get_list_state(ListStateDescriptor("listed"))
        self.mapped = runtime_context.get_map_state(MapStateDescriptor("mapped", "string"))
        self.words = runtime_context.get_state(ValueStateDescriptor("words", Words()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.value.update(Trap(self.place))
        self.listed.add(Trap(self.place))
        self.mapped.put("x", Trap(self.place))
        self.words.update(value.word)
        ctx.timer_service().register_processing_time_timer(2**50)
        yield value.word


class Deal(RichMapFunction, CheckpointedFunction):
    def __init__(self, place: str) -> None:
        self.place = place

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split"))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", "string"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.split.add(Trap(self.place))
        self.union.add(Trap(self.place))
        self.shared.put("x", Trap(self.place))
        return value


class Emit(MapFunction):
    def __init__(self, place: str) -> None:
        self.place = place

    def map(self, value: Any) -> Any:
        return Trap(self.place)


def run(place: Path, name: str, options: dict[str, str], epochs: int = 1) -> None:
    program, here = EpochProgram(), str(place)
    strategy = WatermarkStrategy.for_generator(lambda context: Generator(here))
    rows = program.source("in", COLUMNS).assign_timestamps_and_watermarks(strategy).uid("stamped")
    dealt = rows.map(Deal(here), output_type=COLUMNS).uid("deal")
    kept = dealt.key_by("word").process(Keep(here), output_type="string").uid("keep").set_max_parallelism(8)
    kept.map(Emit(here)).uid("emit").print().uid("out")
    program.run(place / name, [{"in": ROWS}] * epochs, options, name=name, parallelism=1, source_tasks=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two jobs whose commit has failed, with operator state in files and in the document, and a module beside them."""
    place = tmp_path_factory.mktemp("hostile")
    (place / f"{MODULE}.py").write_text(f"import pathlib\npathlib.Path({str(place / IMPORTED)!r}).touch()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.types.serializer.class_path", lambda cls: f"{MODULE}:{cls.__name__}")
        for name, limit in (("files", "0"), ("inline", "20 kb")):
            fault.install("before:sink.commit=raise")
            with pytest.raises(JobExecutionError):
                run(place, name, {"execution.checkpointing.data-inline-threshold": limit})
            fault.clear()
    yield place
    sys.modules.pop(MODULE, None)


@pytest.fixture(autouse=True)
def nothing_has_happened(place: Path) -> None:
    """Who wrote the state may have unpickled it."""
    for name in (UNPICKLED, IMPORTED):
        (place / name).unlink(missing_ok=True)


def happened(place: Path) -> list[str]:
    return [name for name in (UNPICKLED, IMPORTED) if (place / name).exists()]


def job_in(place: Path, name: str) -> str:
    [directory] = (place / name).iterdir()
    return str(directory)


def holdfast(place: Path, *commands: list[str]) -> str:
    """What commands print, one after the other, in a process of their own, where the module could be imported."""
    process = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_list_and_inspect_run_nothing(place: Path) -> None:
    files, inline = job_in(place, "files"), job_in(place, "inline")
    told = holdfast(
        place,
        ["list", files, "-a"],
        ["list", str(place / "inline"), "-a", "--json"],
        ["checkpoints", files],
        ["checkpoints", str(place / "inline"), "--json"],
        ["inspect", files],
        ["inspect", f"{inline}/chk-1/_metadata", "--json"],
    )
    assert told.count("pickled") >= 2 * len((*KEYED, *OPERATOR)) - 2 and MODULE in told
    assert happened(place) == []


def test_a_comparison_by_keys_runs_nothing(place: Path) -> None:
    files, inline = job_in(place, "files"), job_in(place, "inline")
    by_keys = ["diff", files, inline, "--keys"]
    told = holdfast(
        place,
        ["diff", files, inline],
        ["diff", files, inline, "--json"],
        by_keys,
        *([*by_keys, "--uid", "keep", "--state", state, "--to", f"{state}.diff"] for state in KEYED),
    )
    assert "no difference" in told and "0 keys differ: value.diff" in told
    assert happened(place) == []


def test_export_import_and_sql_run_nothing(place: Path) -> None:
    exports = [
        ["state", "export", job_in(place, job), "--uid", uid, "--state", state, "--to", f"{job}-{state}.parquet"]
        for job in ("files", "inline")
        for uid, states in (("keep", (*KEYED, "timers")), ("deal", OPERATOR))
        for state in states
    ]
    named = ["--uid", "keep", "--state", "value", "--from", "files-value.parquet", "--to", str(place / "imported")]
    told = holdfast(
        place,
        *exports,
        *(["state", "sql", job_in(place, "files"), f'select * from "keep"."{state}"'] for state in (*KEYED, "timers")),
        ["state", "import", job_in(place, "files"), *named],
        ["inspect", str(place / "imported")],
    )
    assert told.count(" rows: ") == len(exports)
    rows = pq.read_table(place / "inline-union.parquet").column("value").to_pylist()
    assert len(rows) == 2 and all(UNPICKLED.encode() in row for row in rows), "this test is about nothing"
    assert happened(place) == []


def test_a_state_server_and_its_clients_run_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    with Server(job_in(place, "files"), "--port", 0) as server:
        told = holdfast(place, ["query", "--address", server.address, "files", "value", "kelp", "--json"])
    assert json.loads(told)["value"] is not None
    assert happened(place) == []


def test_pickles_stand_wherever_they_can_and_go_off_in_the_job(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, inline = (Path(job_in(place, name)) for name in ("files", "inline"))
    for path in (*files.glob("shared/*.run"), *files.glob("taskowned/*.state"), *files.glob("taskowned/*.printed")):
        assert UNPICKLED.encode() in path.read_bytes()
    encoded = re.findall(rb"[A-Za-z0-9+/]{60,}=*", (inline / "chk-1" / "_metadata").read_bytes())
    texts = [base64.b64decode(text) for text in encoded]
    assert sum(UNPICKLED.encode() in text for text in texts) == len(OPERATOR) + len([EVENT_TIME])
    monkeypatch.syspath_prepend(str(place))
    with suppress(HoldfastError), redirect_stdout(StringIO()):
        run(place, "files", {}, epochs=2)
    assert happened(place) == [UNPICKLED, IMPORTED]
