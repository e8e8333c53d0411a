"""What fuzzing has found in readers of messages, lines, markers, staged output and logs of Spark, each once."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from holdfast.datastream.connectors.delta import _added_file
from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats import input_format
from holdfast.datastream.formats.arrow import ArrowInputFormat
from holdfast.datastream.formats.avro import AvroRowDeserializationSchema
from holdfast.datastream.formats.csv import CsvReaderFormat
from holdfast.datastream.formats.input_format import InputFormat
from holdfast.datastream.formats.json import JsonLinesFormat
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.sinks.staged_files import open_staged_file, read_rows
from holdfast.errors import ConfigurationError, CorruptFileError, HoldfastError, InputError, StorageError
from holdfast.kernel.ids import JobID
from holdfast.spark.input.files import listed_in_log
from holdfast.spark.input.positions import QueryDirectory
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.types.row import Row
from tests.fuzz.lines import _splits
from tests.fuzz.target import csv_message, debezium_message, json_message
from tests.fuzz.targets import CORPUS, Target

DEEP = b"[" * 100_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "message",
    [
        b'{"big":1e9999999}',
        b'{"map":{"a":1e9999999}}',
        b'{"whole":1e99999999999999999999}',
        b'{"more":-1e-99999999999999999999}',
        b'{"row":' + DEEP,
    ],
)
def test_a_message_with_an_enormous_number_is_unreadable(message: bytes) -> None:
    assert not Target("json_message").accepts(message)
    for row in json_message.LENIENT.deserialize_all(message):
        assert all(value in (None, {"a": None}) for value in row), "what can be told apart is null, as in Flink"


@pytest.mark.parametrize("number", [b"1e9999999", b"1e99999999999999999999", b"-1e-99999999999999999999", DEEP])
def test_a_change_with_a_number_that_nobody_could_write_out_is_one_that_cannot_be_read(number: bytes) -> None:
    change = b'{"op":"c","source":{"lsn":1},"after":{"price":' + number + b"}}"
    assert not Target("debezium_message").accepts(change)
    assert debezium_message.LENIENT.deserialize_all(change) == []


def test_a_value_of_csv_that_no_type_has_is_null_if_that_was_asked_for() -> None:
    line = b"1e999," * 3 + b"x," * 8 + b"x"
    assert not Target("csv_message").accepts(line)
    [row] = csv_message.LENIENT.deserialize_all(line)
    assert row.whole is None and row.big is None and row.list is None


def test_no_message_of_ten_bytes_stands_for_a_list_of_a_thousand_million_elements() -> None:
    nothing = {"type": "fixed", "name": "nothing", "size": 0}
    fields = [{"name": "list", "type": {"type": "array", "items": nothing}}]
    with pytest.raises(ConfigurationError, match="'nothing' takes no bytes"):
        AvroRowDeserializationSchema(avro_schema_string=json.dumps({"type": "record", "name": "r", "fields": fields}))


@pytest.mark.parametrize(
    "message",
    [b"\0\0\0\0\1\xff", b"\0\0\0\0\2\xff", b"\0\0\0\0\3\0\x0b", b"\0", b"\1" * 17, b"\0\0\0\0\4" + b"\2" * 50_000],
)
def test_a_message_that_has_not_the_form_of_its_schema_is_one_that_cannot_be_read(message: bytes) -> None:
    assert not Target("confluent_message").accepts(message)


def rows(kind: InputFormat, path: Path, pieces: int = 1) -> Any:
    return [row for batch in FileSplits(kind).read(_splits(str(path), pieces)) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("content", "blamed"),
    [
        (b'{"word":"rock"}\n{"word":"ke\x8ep"}\n', "line 2 of the file"),
        (b'{"word":"rock"}\n{"word":\n"kelp"}\n', "line 2 of the file"),
        (b'{"n":[1,\n2]}{"n":3}\n', "line 1 of the file"),
        (b'{"list":[\n{"a":1}]} {"n":3}\n', "line 1 of the file"),
        (b'{"n":1}\n{"n":2}{"n":3}\n', "line 2 of the file"),
        (b'{"n":1}\r{"n":3}\n', "line 1 of the file"),
    ],
)
def test_a_line_that_is_no_object_by_itself_is_told_by_its_place(tmp_path: Path, content: bytes, blamed: str) -> None:
    file = tmp_path / "lines.json"
    file.write_bytes(content)
    for pieces in (1, 2, 5):
        with pytest.raises(InputError, match=blamed):
            rows(JsonLinesFormat("word string, n bigint, list array<struct<a: bigint>>"), file, pieces)


def test_objects_with_blanks_around_them_are_lines_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_bytes(b'\xef\xbb\xbf{"n":1}\r\n\n  {"n":2}\t\n{}\n{"n":{"a":1}}'.replace(b'{"n":{"a":1}}', b'{"n":4}'))
    assert rows(JsonLinesFormat("n bigint"), file) == [{"n": 1}, {"n": 2}, {"n": None}, {"n": 4}]


@pytest.mark.parametrize(("as_it_was", "damaged"), [(b"\4\0\0\0", b"\0\0\0\x40"), (b"kelp", b"ke\x8ep")])
def test_a_file_of_arrow_whose_offsets_lead_nowhere_or_whose_texts_are_none_is_told_by_name(
    tmp_path: Path, as_it_was: bytes, damaged: bytes
) -> None:
    rows_of_file = pa.record_batch({"word": ["kelp"]})
    with pa.ipc.new_stream(tmp_path / "rows.arrow", rows_of_file.schema) as writer:
        writer.write_batch(rows_of_file)
    head, end, rest = (tmp_path / "rows.arrow").read_bytes().rpartition(as_it_was)
    assert end
    assert rows(ArrowInputFormat("word string"), tmp_path / "rows.arrow") == [{"word": "kelp"}]
    (tmp_path / "rows.arrow").write_bytes(head + damaged + rest)
    with pytest.raises(InputError, match=r"rows.arrow' cannot be read as Arrow"):
        rows(ArrowInputFormat("word string"), tmp_path / "rows.arrow")


def test_texts_of_parquet_that_are_none_are_told_by_the_name_of_their_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"word": ["kelp"]}), tmp_path / "rows.parquet", compression="none", write_statistics=False)
    content = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(content.replace(b"kelp", b"ke\x8ep"))
    with pytest.raises(InputError, match=r"rows.parquet' cannot be read as Parquet"):
        rows(ParquetColumnarRowInputFormat("word string"), tmp_path / "rows.parquet")


def test_a_file_of_parquet_whose_footer_is_damaged_ends_no_process() -> None:
    assert not Target("parquet_file").accepts((CORPUS / "parquet_file" / "damaged-histogram").read_bytes())


@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz"])
def test_the_length_of_a_line_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(input_format, "LARGEST", 8 << 20)
    content = b"kelp\n" + b"x" * (20 << 20)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=f"{name}' cannot be read as text: a line does not end"):
        rows(StreamFormat.text_line_format(), tmp_path / name)
    for whole in (CsvReaderFormat.for_schema("word string", multi_line=True), StreamFormat.text_line_format("latin-1")):
        with pytest.raises(InputError, match="it is read whole, and has more than"):
            rows(whole, tmp_path / name)


@pytest.mark.parametrize("at", [[5, 10], [0, 5], [0, 12, 10], [0, -5, 10], [], [0, 7, 3, 10]])
def test_an_epoch_reads_no_range_that_its_file_has_not(at: list[int]) -> None:
    assert Target("split_record").accepts((CORPUS / "split_record" / "plain").read_bytes())
    record = {"files": [["@file@", "@time@", 10, at]]}
    assert not Target("split_record").accepts(json.dumps(record).encode())


@pytest.mark.parametrize("time", [-(2**63), 2**63, 10**15])
def test_a_file_of_no_time_of_a_calendar_is_told_of_as_any_other(time: int) -> None:
    assert not Target("split_record").accepts(json.dumps({"files": [["@file@", time, 10, [0, 10]]]}).encode())


def test_a_log_of_delta_that_its_client_takes_breaks_nothing_after_a_commit() -> None:
    log = (CORPUS / "delta_log" / "with-an-epoch").read_bytes()
    assert b'{"add":{"path":"part-' in log
    assert Target("delta_log").accepts(log)
    assert Target("delta_log").accepts(log.replace(b"part-", b"part\x01"))
    assert _added_file(b'{"add":' + DEEP) is None


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError):
        LocalFileSystem().make_durable(str(tmp_path / "pipe"))


def test_staged_rows_whose_columns_have_names_that_are_none_are_told_by_their_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["kelp"]}), tmp_path / "staged", store_schema=False)
    content = (tmp_path / "staged").read_bytes()
    assert b"name" in content
    (tmp_path / "staged").write_bytes(content.replace(b"name", b"n\x91me"))
    with pytest.raises(StorageError, match=f"{tmp_path}/staged"):
        read_rows(str(tmp_path / "staged"))


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1" * 40, b"PAR1" + b"\xff" * 60 + struct.pack("<i", 60) + b"PAR1"]
)
def test_staged_output_that_is_damaged_is_told_by_its_file(content: bytes) -> None:
    assert not Target("staged_rows").accepts(content)


@pytest.mark.parametrize("target", ["kafka_committable", "database_committable", "delta_committable"])
def test_damaged_output_is_not_committed(target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parser = Target(target)
    plain = (CORPUS / target / ("merged" if target == "delta_committable" else "plain")).read_bytes()
    assert parser.accepts(plain)
    monkeypatch.setattr(pq, "ParquetFile", damaged)
    monkeypatch.setattr(pq, "read_table", damaged)
    assert not parser.accepts(plain)


def damaged(*args: Any, **settings: Any) -> Any:
    raise pa.ArrowInvalid("Parquet magic bytes not found in footer.")


@pytest.mark.parametrize("text", ["9" * 5000, "7.5", "-1", "", "NaN", "\u0667"])
def test_a_property_of_a_table_that_is_no_number_of_an_epoch_is_refused_by_name(text: str) -> None:
    from tests.fuzz.target.table_marker import of_table

    with pytest.raises(ConfigurationError, match=r"The property 'epoch' .* which is not a number"):
        of_table(text.encode())


@pytest.mark.parametrize(
    ("file", "line", "value"),
    [
        ("offsets/1", 1, {"batchTimestampMs": [0]}),
        ("offsets/1", 1, {"batchWatermarkMs": "x"}),
        ("offsets/1", 1, DEEP.decode()),
        ("metadata", 0, DEEP.decode()),
        ("metadata", 0, "[]"),
    ],
)
def test_a_log_of_spark_that_is_damaged_is_told_by_its_file(file: str, line: int, value: Any) -> None:
    files = json.loads((CORPUS / "spark_log" / "plain").read_bytes())
    assert Target("spark_log").accepts(json.dumps(files).encode())
    files[file][line] = value
    with pytest.raises(CorruptFileError, match=f"'/query/{file}' is damaged"):
        Target("spark_log")._parse(json.dumps(files).encode())


@pytest.mark.parametrize("line", ["{}", '{"path":7,"batchId":0}', "[]", DEEP.decode(), "\ud800"])
def test_a_log_of_a_source_of_files_that_is_damaged_is_told_by_its_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "0").write_bytes(b"v1\n" + line.encode("utf-8", "surrogatepass"))
    with pytest.raises(CorruptFileError, match=str(tmp_path / "0")):
        listed_in_log(tmp_path, -1, 0)


def test_a_job_is_called_by_a_text_that_can_be_written() -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a job"):
        JobID.from_name("\ud800")
    body = {"script": "a.py", "files": {"a.py": ""}, "jobName": "\ud800"}
    for more in ({}, {"jobId": "0" * 32}):
        with pytest.raises(HoldfastError, match="cannot be the name of a job"):
            Target("job_manager_request")._parse(b"POST /jobs\n\n" + json.dumps({**body, **more}).encode())


@pytest.mark.parametrize(
    "request_of",
    [
        b"GET /jobs/" + b"9" * 30_000,
        b"9" * 30_000 + b" /jobs",
        b"PUT /jobs/" + b"9" * 30_000,
        b"POST /jobs\n\n" + b'{"script":"a","files":{"a":""},"jobId":"' + b"9" * 30_000 + b'"}',
    ],
)
def test_what_a_stranger_makes_of_a_path_or_an_id_does_not_stand_whole_in_the_answer(request_of: bytes) -> None:
    assert not Target("job_manager_request").accepts(request_of)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("json_message", b'{"day":"' + b"9" * 30_000 + b'"}'),
        ("debezium_message", b'{"op":"' + b"x" * 30_000 + b'"}'),
        ("csv_message", b"1,1,1,1,1,1,1,1," + b"9" * 30_000 + b",1,1,1"),
    ],
)
def test_a_message_that_cannot_be_read_does_not_stand_whole_in_the_reason(target: str, message: bytes) -> None:
    assert not Target(target).accepts(message)


def test_staged_output_is_told_of_as_storage_that_fails(tmp_path: Path) -> None:
    (tmp_path / "staged").write_bytes(b"no rows")
    with (
        pytest.raises(StorageError, match=f"{tmp_path}/staged.*cannot be read"),
        open_staged_file(str(tmp_path / "staged")) as file,
    ):
        pq.read_table(file)


@pytest.mark.parametrize("name", ["0/" + "x" * 300, "/".join(["0" * 300, "0"])])
def test_an_entry_of_a_source_that_no_file_can_be_called_is_storage_that_fails(tmp_path: Path, name: str) -> None:
    job = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    job.fs.create_exclusive(job.absolute("shared/a.src"), b"{}")
    handle = {"path": "shared/a.src", "size": 2, "digest": xxhash.xxh3_64_hexdigest(b"{}")}
    with pytest.raises(StorageError, match="File name too long"):
        QueryDirectory(tmp_path / "spark", job, 1).seed(
            {"batch_id": 0, "offsets": {"0": "v1"}, "sources": {name: handle}}
        )


@pytest.mark.parametrize("letters", [10, 20_000])
def test_the_names_of_fields_that_come_from_outside_are_forgotten(letters: int) -> None:
    """As it was found: each answer with other names left a class of rows for ever, 3 GB in six minutes."""

    target, answer = Target("query_answer"), (CORPUS / "query_answer" / "get_value").read_bytes()
    made = set()
    for number in range(3000):
        name = f"{number:06d}{'x' * letters}".encode()
        target.accepts(answer.replace(b'"name":"a"', b'"name":"' + name + b'"'))
        made |= {kind._names for kind in Row.__subclasses__()[-1:]}
    assert len(made) > 1000, "classes were made"
    gc.collect()
    assert len(Row.__subclasses__()) < 1500


def test_rows_of_the_same_names_have_the_same_class_as_long_as_there_is_one() -> None:
    row = Row(first=1, second=2)
    for number in range(3000):
        Row(**{f"field{number}": 1})
    gc.collect()
    assert type(Row(first=3, second=4)) is type(row) and pickle.loads(pickle.dumps(row)).second == 2
