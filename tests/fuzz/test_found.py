"""What fuzzing has found, each once: it fell over, hung, or believed what it should not have."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.cli.query import parse_key
from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    HoldfastError,
    OutputTypeError,
    RestoreError,
    StateMigrationError,
    StorageError,
)
from holdfast.kernel.configuration import Configuration, parse_duration, parse_memory_size
from holdfast.kernel.ids import JobID
from holdfast.queryable.wire.errors import BadRequestError, ProtocolError, UnknownKvStateLocationError
from holdfast.queryable.wire.frame import fields_of
from holdfast.rest.client import addresses
from holdfast.runtime.graph.source_positions import require_positions
from holdfast.spark.input.positions import QueryDirectory
from holdfast.state.operator_snapshot import OperatorSnapshot, snapshot_size
from holdfast.state.run_file import check_run
from holdfast.state_processor.flink.serializer import DataInput
from holdfast.state_processor.flink.serializer_snapshot import read_versioned
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.object_store import S3Options, connect
from holdfast.storage.scheme import file_system_for
from holdfast.types.key_codec import CompositeKeyCodec, key_codec_for
from holdfast.types.type_parser import to_type
from tests.fuzz.target import run_footer
from tests.fuzz.targets import CORPUS, Target

GONE = object()
INFINITE = float("inf")
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]

FOUND: list[tuple[str, str, str, Any]] = [
    ("barrier_row", "plain", "partition", [0]),
    ("barrier_row", "plain", "observed", 7),
    ("barrier_row", "plain", "steps.0.in", GONE),
    ("barrier_row", "plain", "read", [1, 2, 3]),
    ("barrier_row", "plain", "listed.0", [1, 2, 3]),
    ("barrier_row", "plain", "attempt", "longer than sixteen"),
    ("barrier_row", "plain", "stage", 2**40),
    ("committable", "plain", "staged", "../others/file"),
    ("committable", "plain", "staged", ".holdfast/../../others/file"),
    ("committable", "without-identity", "staged", "/etc/hostname"),
    ("committable", "without-identity", "final", "../others/moved.parquet"),
    ("committable", "plain", "directory", 7),
    ("committable", "plain", "final", GONE),
    ("committable", "plain", "final", "x" * 25_000 + "/file"),
    ("committable", "plain", "identity", ["an identity"]),
    ("committable", "plain", "identity", "x" * 25_000),
    ("committable", "without-identity", "staged", ".holdfast/line-sink/\ud800"),
    ("entry_map", "plain", "body.term", INFINITE),
    ("entry_map", "plain", "body.entries.job.version", INFINITE),
    ("execution_plan", "plain", "parallelisms", [1]),
    ("execution_plan", "plain", "parallelisms.count.0", INFINITE),
    ("execution_plan", "plain", "job_id", {"": None}),
    ("execution_plan", "plain", "job_id", "0" * 31),
    ("job_result", "plain", "result.net-runtime", INFINITE),
    ("job_result", "plain", "result.id", "0" * 31),
    ("lease_file", "plain", "body.term", INFINITE),
    ("metadata", "plain", "operators.0.subtasks", [7]),
    ("metadata", "plain", "operators.0.max_parallelism", 2**40),
    ("metadata", "plain", "operators.0.runs.0.digest", None),
    ("metadata", "plain", "operators.0.runs.0.path", "\ud800"),
    ("metadata", "plain", "operators.0.runs.0.key_groups", [5, 3]),
    ("metadata", "plain", "operators.0.runs.0.size", -1),
    ("metadata", "plain", "extra.previous_epoch", "x"),
    ("metadata", "merged", "operators.0.runs.0.lineage.count", "x"),
    ("metadata", "files", "operators.1.subtasks.0.format_version", 0.5),
    ("operator_state", "plain", "states.list.chunks.0.items", "x"),
    ("operator_state", "plain", "states.list.chunks.0.data", 7),
    ("operator_state", "plain", "states.list.chunks.0.data.inline", "AAAA"),
    ("operator_state", "plain", "states.rules.key", GONE),
    ("query_answer", "location", "key_groups", -1),
    ("query_answer", "location", "key_groups", 2**40),
    ("query_answer", "location", "placements.0", [0, 1]),
    ("query_answer", "scan_list", "description.max_parallelism", 2**40),
    ("query_answer", "scan_list", "description.kind", "map"),
    ("query_answer", "scan_list", "description.type", {"type": "double", "fields": ["x"]}),
    ("query_answer", "scan_list", "description.type", DEEP),
    ("query_answer", "get_value", "checkpoint_id", "1"),
    ("query_answer", "get_value", "description.arrow", "AAAA"),
    ("register_entry", "last", "token", 2**63),
    ("register_entry", "last", "version", 2**62),
    ("register_marker", "plain", "job_id", "nobody"),
    ("rest_address", "plain", "url", None),
    ("rest_address", "plain", "token", "1"),
    ("rest_address", "plain", "bearer", DEEP),
    ("run_footer", "plain", "block_size", 0),
    ("run_footer", "plain", "block_size", INFINITE),
    ("run_footer", "plain", "blocks", []),
    ("run_footer", "plain", "key_groups", [0, 2**40]),
    ("run_footer", "plain", "least_timers", ["a"]),
    ("run_footer", "plain", "segments.0.offset", -64),
    ("run_footer", "plain", "segments.0.length", 2**40),
    ("run_footer", "plain", "segments.0.rows", 10**9),
    ("run_footer", "plain", "segments.0.rows", 2**63),
    ("run_footer", "plain", "segments.0.first_rows", [2, 1, 0]),
    ("run_footer", "plain", "segments.0.schema", 0.5),
    ("run_footer", "plain", "segments.0.schema.kind", 2),
    ("run_footer", "plain", "segments.0.schema.ttl", GONE),
    ("run_footer", "plain", "segments.0.schema.namespace", GONE),
    ("run_footer", "plain", "segments.0.schema.type", None),
    ("run_footer", "plain", "segments.0.schema.type", DEEP),
    ("run_footer", "plain", "format_version", DEEP),
    ("source_positions", "uids", "streaming.batch_id", 99),
    ("source_positions", "uids", "streaming.inputs", []),
    ("source_positions", "uids", "static", 7),
    ("stored_type", "default", "fields.1.default", "-1"),
    ("stored_type", "char", "length", 10**12),
    ("stored_type", "decimal", "precision", "x"),
    ("stored_type", "tuple", "types", 128),
    ("type_text", "avro", "fields", 7),
    ("type_text", "avro", "fields.0.name", ["a"]),
    ("watch_line", "modified", "object.metadata.uid", []),
    ("watch_line", "bookmark", "object.metadata", 128),
    ("watch_line", "error", "object", "x"),
]


def changed(target: str, file: str, place: str, value: Any) -> bytes:
    """An input of the corpus with another value in one place."""
    head, line, rest = (CORPUS / target / file).read_bytes().partition(b"\n")
    document = json.loads(head)
    *way, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
    holder = document
    for part in way:
        holder = holder[part]
    if value is GONE:
        del holder[last]
    else:
        assert holder[last] != value
        holder[last] = value
    return json.dumps(document).encode() + line + rest


@pytest.mark.parametrize(
    ("target", "file", "place", "value"), FOUND, ids=[f"{one[0]}-{one[2]}-{number}" for number, one in enumerate(FOUND)]
)
def test_input_that_once_broke_a_parser_is_rejected_with_its_name(
    target: str, file: str, place: str, value: Any
) -> None:
    parser = Target(target)
    assert parser.accepts((CORPUS / target / file).read_bytes())
    assert not parser.accepts(changed(target, file, place, value))


def test_a_lease_that_nobody_can_read_counts_as_none() -> None:
    for place in ("leaderTransitions", "renewals", "leaseDurationSeconds"):
        assert Target("lease_record").accepts(changed("lease_record", "plain", place, INFINITE))
    assert Target("lease_record").accepts(b"[" * 100_000)


@pytest.mark.parametrize("file", ["plain", "without-identity"])
def test_staged_output_that_is_gone_is_refused_by_name_though_nobody_says_how_many_rows_it_had(file: str) -> None:
    committable = json.loads((CORPUS / "committable" / file).read_bytes())
    del committable["rows"]
    committable["staged"] += "-gone"
    assert not Target("committable").accepts(json.dumps(committable).encode())


def test_a_deadline_of_any_length_is_the_longest_one() -> None:
    assert Target("query_request").accepts(changed("query_request", "scan", "deadline", 10**400))


def test_a_key_that_is_typed_may_be_nested_without_end() -> None:
    assert Target("query_key").accepts(b"[" * 100_000), "it is a text like any other"
    with pytest.raises(ConfigurationError, match="is no key of this state"):
        parse_key(key_codec_for(to_type("a string, b bigint")), "[" * 100_000)


@pytest.mark.parametrize("day", [3_000_000, 2**31 - 1, -(2**31)])
def test_a_day_that_python_does_not_know_is_refused_and_is_no_key_that_may_be_typed(day: int) -> None:
    codec = key_codec_for(to_type("date"))
    with pytest.raises(OutputTypeError, match="is not of type date"):
        codec.user_key(day)


def test_a_number_with_more_bits_than_its_type_is_no_key() -> None:
    codec = key_codec_for(to_type("a date, b bigint"))
    assert isinstance(codec, CompositeKeyCodec)
    good = codec.canonical_bytes((7, 7))
    assert codec.from_storage(pa.array([good])) == [(7, 7)]
    with pytest.raises(CorruptFileError, match="is not a key of"):
        codec.from_storage(pa.array([good, good[:4] + (2**40 + 2**63).to_bytes(8, "big") + good[12:]]))


@pytest.mark.parametrize("read", [parse_duration, parse_memory_size])
def test_an_option_without_bounds_is_refused(read: Callable[[str], int]) -> None:
    for text in ("1" * 400 + " d", "9" * 5000, "inf s", "-1 s"):
        with pytest.raises(ConfigurationError, match="is not a"):
            read(text)


def test_a_type_without_bounds_is_refused() -> None:
    for text in (f"char({'9' * 5000})", "char(1000000000)", f"decimal({'9' * 5000}, 2)"):
        with pytest.raises(ConfigurationError):
            to_type(text)


def test_operator_state_of_a_newer_release_is_listed_and_refused_where_it_is_restored() -> None:
    newer = {"format_version": 99, "states": {"list": {"something": "else"}}}
    assert snapshot_size(newer) == 0
    with pytest.raises(StateMigrationError, match="Upgrade"):
        OperatorSnapshot.from_json(newer)


@pytest.mark.parametrize("size", [0, -1])
def test_a_run_without_a_size_of_blocks_is_refused_and_does_not_hang(size: int) -> None:
    run = run_footer.sealed_run(run_footer.segments(), changed("run_footer", "plain", "block_size", size))
    with pytest.raises(CorruptFileError, match="block_size cannot be"):
        check_run(memoryview(run), "a.run")


@pytest.mark.parametrize("number", [b"1e999", b"-1e9999999", b"NaN", b"Infinity"])
def test_a_number_without_bounds_is_refused_wherever_our_own_json_is_read(number: bytes) -> None:
    plan = (CORPUS / "execution_plan" / "plain").read_bytes()
    assert Target("execution_plan").accepts(plan.replace(b'{"nodes":[1]}', b'{"nodes":0.5e9}'))
    assert not Target("execution_plan").accepts(plan.replace(b'{"nodes":[1]}', b'{"nodes":' + number + b"}"))
    with pytest.raises(ProtocolError):
        fields_of(b'{"a":' + number + b"}")


def test_what_is_nested_without_end_is_refused_wherever_json_is_read() -> None:
    for target in ("barrier_row", "document", "frame", "rest_address", "type_text", "watch_line"):
        assert not Target(target).accepts(b"[" * 100_000)
    assert not Target("run_footer").accepts(b'{"a":' + b"[" * 100_000)


@pytest.mark.parametrize("name", ["../../../escaped", "0/../../../../escaped", "/tmp/escaped", "0//x", "", "0/\0"])
def test_source_positions_name_no_file_outside_their_directory(name: str) -> None:
    positions = json.loads((CORPUS / "source_positions" / "uids").read_bytes())
    require_positions(positions)
    [handle, *_] = positions["streaming"]["sources"].values()
    positions["streaming"]["sources"][name] = handle
    with pytest.raises(RestoreError, match="is no file of a source"):
        require_positions(positions)


@pytest.mark.parametrize("path", ["shared/\0.run", "shared/\ud800.run"])
def test_what_cannot_be_the_path_of_a_file_is_refused_by_the_file_system(path: str, tmp_path: Path) -> None:
    files, whole = LocalFileSystem(), f"{tmp_path}/{path}"
    for use in (files.read, files.mmap, files.exists, files.delete, files.status, files.list):
        with pytest.raises(StorageError, match="cannot be the path of a file"):
            use(whole)


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_read_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(StorageError, match="but a file was expected"):
            LocalFileSystem().read(path)


def test_no_more_room_is_made_than_a_file_has_bytes(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"small")
    assert LocalFileSystem().read(str(tmp_path / "small"), 1, 2**62) == b"mall"
    assert LocalFileSystem().read(str(tmp_path / "small"), 99, 2**62) == b""


def test_positions_of_sources_read_no_more_than_they_say(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 1000)
    positions = json.loads((CORPUS / "source_positions" / "uids").read_bytes())
    [handle, *_] = positions["streaming"]["sources"].values()
    handle["path"] = str(tmp_path / "long")
    job = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    with pytest.raises(CorruptFileError, match="the copied source entry"):
        QueryDirectory(tmp_path / "spark", job, 1).seed(positions["streaming"])


def test_a_file_whose_name_is_no_text_is_a_file_like_any_other(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    Path(tmp_path, name).write_bytes(b"x")
    assert LocalFileSystem().read(f"{tmp_path}/{name}") == b"x"


@pytest.mark.parametrize(("place", "value"), [("reads", "\ud800"), ("schema", "\ud800")])
def test_positions_of_sources_are_texts_that_can_be_written(place: str, value: str) -> None:
    positions = json.loads(changed("source_positions", "uids", f"streaming.inputs.0.{place}", value))
    with pytest.raises(RestoreError, match="surrogates not allowed"):
        require_positions(positions)


def test_elements_of_another_type_than_their_state_are_refused() -> None:
    assert not Target("operator_state").accepts(changed("operator_state", "plain", "states.list.type", "string"))
    rules = changed("operator_state", "plain", "states.rules.type", "date")
    assert not Target("operator_state").accepts(rules)


def test_an_entry_of_the_offset_log_is_called_by_the_number_of_a_batch() -> None:
    positions = json.loads((CORPUS / "source_positions" / "uids").read_bytes())
    positions["streaming"]["offsets"]["../../commits/7"] = positions["streaming"]["offsets"]["4"]
    with pytest.raises(RestoreError):
        require_positions(positions)


def test_a_command_goes_to_no_place_but_that_of_a_rest_interface(tmp_path: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    file = tmp_path / ("0" * 32) / "rest" / f"{1:019d}-{'0' * 12}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(changed("rest_address", "plain", "url", "file:///etc/passwd"))
    with pytest.raises(HoldfastError, match="is not the URL of a REST interface"):
        addresses(directory)


@pytest.mark.timeout(60)
def test_an_address_that_is_a_link_to_nowhere_does_not_keep_a_command_for_ever(tmp_path: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    link = tmp_path / ("0" * 32) / "rest" / f"{1:019d}-{'0' * 12}.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="dangling links"):
        addresses(directory)


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
        "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot",
        "org.apache.flink.api.common.typeutils.base.ListSerializerSnapshot",
        "org.apache.flink.api.common.typeutils.base.MapSerializerSnapshot",
    ],
)
def test_a_serializer_of_flink_without_its_parts_is_refused_by_name(name: str) -> None:
    head = struct.pack(">h", len(name)) + name.encode()
    without_parts = struct.pack(">iiiiii", 3, 911108, 1, 1333245, 1, 0)
    with pytest.raises(CorruptFileError, match="0 parts"):
        read_versioned(DataInput(head + without_parts, "a savepoint"))


@pytest.mark.parametrize("column", ["x", "value.x"])
def test_a_condition_on_a_column_that_is_not_there_does_not_stand_whole_in_the_reason(column: str) -> None:
    scan = {"job": "0" * 32, "state": "value", "consistency": None, "deadline": 10.0, "key_groups": [0, 7]}
    header = json.dumps({**scan, "where": [[column + "x" * 30_000, ">=", 7]]}).encode()
    with pytest.raises(BadRequestError, match=r"do not fit the columns: .{,500}$"):
        Target("query_request")._parse(header + b"\n")


def test_a_name_without_end_does_not_stand_in_the_answer_that_there_is_no_such_state() -> None:
    header = json.dumps({"job": "0" * 32, "state": "m" * 30_000, "count": 1}).encode()
    with pytest.raises(UnknownKvStateLocationError, match=r"with name 'm{299}\. Registered are: "):
        Target("query_request")._parse(header + b"\n")


@pytest.mark.parametrize("target", ["//[", "//[x]/jobs", "//jobs[/overview"])
def test_a_target_that_is_no_url_is_refused(target: str) -> None:
    with pytest.raises(HoldfastError, match="is not a request target"):
        Target("job_manager_request")._parse(f"GET {target}".encode())


@pytest.mark.parametrize("url", ["http://[", "http://h:no", "http://:7", "http://h", "ftp://h:7"])
def test_an_address_that_is_no_url_is_not_where_a_client_goes(url: str) -> None:
    [path] = Target("rest_address").corpus[:1]
    address = {**json.loads(path.read_bytes()), "url": url}
    with pytest.raises(CorruptFileError, match="is not the address of a job"):
        Target("rest_address")._parse(json.dumps(address).encode())


def test_paths_and_endpoints_that_are_no_urls_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'file://\[x' is not a path"):
        file_system_for("file://[x")
    for endpoint in ("http://[", "http://", "minio:9000"):
        with pytest.raises(ConfigurationError, match="is not a URL"):
            connect("bucket", S3Options(endpoint=endpoint))


def test_thousands_of_unknown_options_do_not_all_stand_in_the_message() -> None:
    with pytest.raises(ConfigurationError, match=r"And 2981 more\.$") as caught:
        Configuration({f"no.such.{number}": "x" for number in range(3000)} | {"y" * 30_000: "z"}).validate()
    assert len(str(caught.value)) < 5000


def test_what_is_found_in_damage_does_not_all_stand_in_the_message() -> None:
    with pytest.raises(CorruptFileError, match=r"^.{3900,4200}\(30000 characters\)$"):
        raise CorruptFileError("file", 7, "x" * 30_000)
    state = {**json.loads(Target("register_entry").corpus[0].read_bytes()), "terminal": ["x" * 30_000]}
    with pytest.raises(CorruptFileError, match=r"terminal of a register cannot be .{,300}$"):
        Target("register_entry")._parse(json.dumps(state).encode())
