"""What fuzzing has found in what strangers, servers and processes say to each other, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.sinks.output_directory import ObjectStoreOutputDirectory
from holdfast.dispatcher.process import ProcessStart, parse_line
from holdfast.errors import CorruptFileError, StorageError
from holdfast.queryable.wire.errors import BadRequestError
from holdfast.rest.http import HttpError, RequestHead
from holdfast.runtime.function.sink import RefusedElementError
from tests.fuzz.target import query_registration, staged_upload
from tests.fuzz.targets import CORPUS, Target


@pytest.mark.parametrize(
    "line",
    ["GET /" + "x" * 2000 + " HTTP/1.x", "GET / of " + "x" * 2000, "x" * 2000 + " /", "GET /x HTTP/" + "1" * 2000],
)
def test_an_error_does_not_repeat_the_whole_request(line: str) -> None:
    with pytest.raises(HttpError, match=r"^(Bad|Invalid) ") as refused:
        RequestHead(f"{line}\r\nHost: localhost\r\n\r\n".encode())
    assert refused.value.status in (400, 505) and len(str(refused.value)) <= 200


@pytest.mark.parametrize(
    "entry",
    [
        ["vertex", 128, 0, 127, "words", "1"],
        ["0" * 32, 128, -1, 127, "words", "1"],
        ["0" * 32, 128, 0, float("nan"), "words", "1"],
        ["0" * 32, 128, 0.5, 1.5, "words", "1"],
        ["0" * 32, 1e9, 0, 127, "words", "1"],
        ["0" * 32, 128, 0, 127, "w" * 1_000_000],
    ],
)
def test_a_server_that_registers_nonsense_is_told_so(entry: list[Any]) -> None:
    """As it was found: some of it was a failure of the leader, and a range that ends nowhere was held."""
    register = b'REGISTER {"job":"%s","address":["127.0.0.1",9069]}\n' % (b"0" * 32) + json.dumps([entry]).encode()
    with pytest.raises(BadRequestError, match=r"^The registration of a server is malformed: .{1,300}$"):
        query_registration.parse(register)


@pytest.mark.parametrize("port", [-1, 65_536, 10**30, True, "9069", None])
def test_a_server_registers_under_an_address_that_there_can_be(port: object) -> None:
    register = json.dumps({"job": "0" * 32, "address": ["127.0.0.1", port]}).encode()
    with pytest.raises(BadRequestError, match="The registration of a server is malformed"):
        query_registration.parse(b"REGISTER " + register + b"\n[]")


@pytest.mark.parametrize(
    "changed",
    [{"script": 7}, {"arguments": "a b"}, {"arguments": [1]}, {"options": {"a": 1}}, {"defaults": [["a", 1]]}],
)
def test_a_start_that_is_damaged_is_told_by_its_file(changed: dict[str, Any], tmp_path: Path) -> None:
    whole = ProcessStart("job.py", ("a", "b"), {"a": "1"}, {})
    whole.write(tmp_path)
    assert ProcessStart.read(tmp_path) == whole
    (tmp_path / "start.json").write_text(json.dumps(json.loads((tmp_path / "start.json").read_text()) | changed))
    with pytest.raises(CorruptFileError, match="it names no program to run"):
        ProcessStart.read(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"launched","job_id":7,"name":"job","root":"/x","create_subdir":true}',
        b'{"event":"launched","job_id":"%s","name":"job","root":[],"create_subdir":true}' % (b"0" * 32),
        b'{"event":"ended","status":"FAILED","failure":{"type_name":7,"message":null}}',
        b'{"event":"ended","status":["FAILED"],"failure":null}',
        b'{"event":"ended","status":null,"failure":null,"has_run":"no"}',
    ],
)
def test_a_line_of_a_process_that_is_none_of_ours_counts_as_one_that_is_not_whole(line: bytes) -> None:
    assert parse_line(line) is None


def test_the_mark_of_an_upload_whose_name_is_no_text_is_storage_that_fails() -> None:
    assert Target("staged_upload").accepts((CORPUS / "staged_upload" / "plain").read_bytes())
    with pytest.raises(StorageError, match="surrogates not allowed"):
        staged_upload.parse(b'{"final":"\\ud800"}')


def test_an_object_whose_name_is_no_text_is_refused_in_the_task_that_would_write_it() -> None:
    with pytest.raises(RefusedElementError, match="surrogates not allowed"):
        ObjectStoreOutputDirectory("s3://bucket/lake").check_final_name("day=\ud800/part")
