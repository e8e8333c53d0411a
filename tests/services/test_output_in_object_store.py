"""Output in an object store: the contract of sinks over uploads, and what only a store can do to them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.common import Encoder
from holdfast.datastream import OutputTag, ParquetFileSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.function.sink import Sink
from holdfast.storage import object_store, uploads
from holdfast.storage.file_system import join
from holdfast.storage.object_store import S3Options
from holdfast.storage.scheme import file_system_for
from holdfast.storage.uploads import Uploads, uploads_for
from holdfast.testing import S3Server, SinkBackend, SinkContract
from holdfast.testing.sink_contract import SinkStage
from tests.stories.local import RESTARTING, Program, epochs, run

pytestmark = pytest.mark.services

WORDS = [[f"{letter}{epoch}" for letter in "abc"] for epoch in range(6)]
AT_ONCE = S3Options(max_retries=0)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as serving:
        yield serving


@pytest.fixture
def out(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where output goes; what fails is not asked for again."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "_current", AT_ONCE)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    server.make_bucket(bucket)
    return f"s3://{bucket}/lake/out"


def client(environment: Any = os.environ) -> Any:
    """What a stranger uses, who knows nothing of Holdfast."""
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )


def place_of(out: str) -> tuple[str, str]:
    bucket, _, prefix = out.removeprefix("s3://").partition("/")
    return bucket, prefix


def objects(out: str) -> list[str]:
    """The keys that readers follow."""
    bucket, prefix = place_of(out)
    found = client().list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", [])
    return [item["Key"] for item in found if "/.holdfast/" not in item["Key"]]


def pending(out: str) -> list[str]:
    """The keys of uploads that are not complete."""
    bucket, _ = place_of(out)
    return [upload["Key"] for upload in client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


def marks(out: str) -> list[str]:
    bucket, prefix = place_of(out)
    found = client().list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/.holdfast/").get("Contents", [])
    return [item["Key"] for item in found if item["Key"].endswith(".staged")]


def content(out: str, key: str) -> pa.Table:
    body = client().get_object(Bucket=place_of(out)[0], Key=key)["Body"].read()
    return pq.read_table(pa.BufferReader(body))


def rows(out: str) -> list[str]:
    return sorted(word for key in objects(out) for word in content(out, key).column(0).to_pylist())


def words(first: int, last: int) -> list[str]:
    return sorted(word for epoch in WORDS[first:last] for word in epoch)


def go(place: Path, out: str, count: int, options: Any = None, **more: Any) -> None:
    program = Program()
    stream = program.source("in", "string").map(lambda word: word, "string").uid("same")
    stream.sink_to(ParquetFileSink(out)).uid("files")
    run(program, place / "job", epochs("in", WORDS[:count]), options, **more)


def test_rows_whose_objects_would_have_keys_that_are_too_long_go_aside_and_the_longest_that_may_be_is_written(
    out: str, tmp_path: Path
) -> None:
    """A store refuses such a key when the task begins its upload, and the job would try that for ever."""
    columns = [f"part{number}" for number in range(4)]
    around = len(place_of(out)[1]) + len("/part0=" * 4) + len(f"/part-000000001-00000-{new_nonce()}.parquet")
    texts = ["x" * 240] * 3 + ["x" * (1024 - around - 720)]
    rows = [(*texts, 1), (*texts[:3], texts[3] + "x", 2)]
    program = Program()
    named = ", ".join(f"{name} string" for name in columns)
    refused = OutputTag("refused")
    files = program.source("in", f"{named}, n bigint").sink_to(ParquetFileSink(out, partition_by=columns)).uid("files")
    files.set_dead_letter_output(refused).get_side_output(refused).sink_to(ParquetFileSink(tmp_path / "aside")).uid(
        "aside"
    )
    run(program, tmp_path / "job", epochs("in", [rows]))
    [key] = objects(out)
    assert (len(key), content(out, key).to_pylist()) == (1024, [{"n": 1}])
    [letter] = pq.read_table(tmp_path / "aside").to_pylist()
    assert letter["row"]["n"] == 2
    assert "would have a key of 1,025 bytes; object stores allow 1,024" in letter["reason"]


@pytest.fixture(autouse=True)
def no_faults(server: S3Server) -> Iterator[None]:
    yield
    fault.clear()
    server.strike = lambda request: None


class Bucket(SinkBackend):
    """A directory in a bucket; it is away when the store answers nobody."""

    server: S3Server
    steps = 12

    def __init__(self, out: str) -> None:
        self.out = out
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def new_sink(self) -> Sink:
        os.environ.update(self.environment)  # in a process of its own, too
        object_store._current = AT_ONCE
        return ParquetFileSink(self.out)

    def rows(self) -> list[tuple[str, int]]:
        tables = [content(self.out, key) for key in objects(self.out)]
        return [(row["word"], row["n"]) for table in tables for row in table.to_pylist()]

    @contextmanager
    def away(self) -> Iterator[None]:
        Bucket.server.is_away = True
        try:
            yield
        finally:
            Bucket.server.is_away = False


class TestOutputInABucket(SinkContract):
    @pytest.fixture
    def sink_backend(self, server: S3Server, out: str) -> SinkBackend:
        Bucket.server = server
        return Bucket(out)


def test_rows_are_objects_once_their_epoch_is_complete_and_nothing_is_left(out: str, tmp_path: Path) -> None:
    go(tmp_path, out, 6)
    assert rows(out) == words(0, 6)
    assert (pending(out), marks(out)) == ([], [])


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_task_that_dies_while_it_stages_leaves_an_upload_that_is_aborted(
    out: str, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after the upload begins, and when nobody hears that it has begun."""
    real = Uploads.begin
    calls = 0

    def dying(self: Uploads, uri: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            if moment != "before":
                real(self, uri)
            raise StorageError("the worker is gone")
        return real(self, uri)

    monkeypatch.setattr(Uploads, "begin", dying)
    go(tmp_path, out, 5, RESTARTING)
    assert rows(out) == words(0, 5)
    assert (pending(out), marks(out)) == ([], [])


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("call", [1, 2])
def test_it_dies_between_the_uploads_of_an_epoch(
    out: str, tmp_path: Path, moment: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path, out, 2)
    real, calls = Uploads.complete, 0

    def dying(self: Uploads, uri: str, upload: str) -> bool:
        nonlocal calls
        calls += 1
        if calls != call:
            return real(self, uri, upload)
        if moment != "before":
            assert real(self, uri, upload)
        raise StorageError("nobody hears it")

    monkeypatch.setattr(Uploads, "complete", dying)
    with suppress(HoldfastError):
        go(tmp_path, out, 3, {"sink.committer.retries": 0} if moment != "lost" else None)
    monkeypatch.setattr(Uploads, "complete", real)
    go(tmp_path, out, 4)
    assert rows(out) == words(0, 4)
    assert (pending(out), marks(out)) == ([], [])


def test_a_mark_whose_answer_is_lost_is_known_again(server: S3Server, out: str, tmp_path: Path) -> None:
    struck = []

    def lose(request: str) -> Any:
        if request.startswith("PUT") and request.endswith(".staged"):
            struck.append(request)
            return "lost"
        return None

    server.strike = lose
    go(tmp_path, out, 3)
    assert len(struck) >= 3 and rows(out) == words(0, 3)
    assert (pending(out), marks(out)) == ([], [])


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_a_task_that_fails_at_any_request_leaves_nothing(server: S3Server, out: str, tmp_path: Path, how: Any) -> None:
    """From one request on the store answers no more; that one may have been carried out. Then the epoch runs again."""
    stage = SinkStage(ParquetFileSink(out), tmp_path, incarnation="1" * 32)
    stage.prepare()
    before = len(server.requests)
    stage.write(1, [("kelp", 1)], attempt=1)
    asked = server.requests[before:]
    stage.sweep(lambda name: True)
    assert any(request.endswith(".staged") for request in asked)
    for number in range(len(asked)):
        left = number

        def strike(request: str) -> Any:
            nonlocal left
            left -= 1
            return None if left >= 0 else how if left == -1 else "refused"

        server.strike = strike
        with suppress(HoldfastError):
            stage.write(number + 1, [("failed", number)], attempt=1)
        server.strike = lambda request: None
        stage.sweep(lambda name: name.attempt == 1)
        stage.commit(stage.write(number + 1, [("kelp", number)], attempt=2))
        assert sorted(rows(out)) == ["kelp"] * (number + 1), f"{how} at {asked[number]}"
        assert (pending(out), marks(out)) == ([], []), f"{how} at {asked[number]}"


def test_a_reader_may_take_objects_of_epochs_that_are_done(out: str, tmp_path: Path) -> None:
    go(tmp_path, out, 3)
    taken = objects(out)
    for key in taken:
        client().delete_object(Bucket=place_of(out)[0], Key=key)
    go(tmp_path, out, 5)
    assert rows(out) == words(3, 5)


def test_an_upload_that_the_store_has_dropped_is_refused_by_name_and_nothing_is_half_there(
    out: str, tmp_path: Path
) -> None:
    fault.install("before:sink.commit:2=raise")
    with pytest.raises(HoldfastError):
        go(tmp_path, out, 2)
    fault.clear()
    dropped = pending(out)[0]
    uploads_for(out).abort_all(f"s3://{place_of(out)[0]}/{dropped}")
    for _ in range(2):
        with pytest.raises(HoldfastError, match=r"no record says that it was committed"):
            go(tmp_path, out, 3)
    assert rows(out) == words(0, 1)


def test_neither_upload_nor_object_where_the_commit_had_begun_needs_somebody_who_knows(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Uploads.complete
    monkeypatch.setattr(Uploads, "complete", lambda self, uri, upload: (real(self, uri, upload), _fail())[0])
    with pytest.raises(HoldfastError):
        go(tmp_path, out, 1, {"sink.committer.retries": 0})
    monkeypatch.setattr(Uploads, "complete", real)
    bucket, _ = place_of(out)
    taken = objects(out)
    client().delete_object(Bucket=bucket, Key=taken[0])
    with pytest.raises(HoldfastError, match=r"Neither the upload .* nor the object") as refused:
        go(tmp_path, out, 2)
    assert taken[0] in str(refused.value)
    client().put_object(Bucket=bucket, Key=taken[0], Body=b"")
    go(tmp_path, out, 2)
    client().delete_object(Bucket=bucket, Key=taken[0])
    assert set(words(1, 2)) <= set(rows(out))


def _fail() -> None:
    raise StorageError("the answer is lost")


def test_a_bucket_that_is_another_one_is_refused(out: str, tmp_path: Path) -> None:
    go(tmp_path, out, 2)
    client().delete_object(Bucket=place_of(out)[0], Key=f"{place_of(out)[1]}/.holdfast/identity")
    with pytest.raises(HoldfastError, match="found no file"):
        go(tmp_path, out, 3)


def test_large_files_go_in_parts_and_one_part_is_in_memory(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real = Uploads.add

    def add(self: Uploads, uri: str, upload: str, number: int, data: bytes) -> None:
        sent.append(len(data))
        real(self, uri, upload, number, data)

    monkeypatch.setattr(Uploads, "add", add)
    monkeypatch.setattr(uploads, "_PARTS_BEFORE_LARGER_ONES", 2)
    monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
    target = join(out, "large")
    upload = uploads_for(out).begin(target)
    data = os.urandom(1 << 20)
    with uploads_for(out).open_output(target, upload) as file:
        for _ in range(25):
            file.write(data)
        assert file.tell() == 25 << 20
    assert sent == [5 << 20, 5 << 20, 10 << 20, 5 << 20]
    assert uploads_for(out).size(target, upload) == 25 << 20
    assert not file_system_for(out).exists(target)
    assert uploads_for(out).complete(target, upload)
    assert file_system_for(out).read(target) == data * 25
    assert not uploads_for(out).complete(target, upload)


def test_rows_go_into_directories_by_column_and_other_formats_do_as_well(out: str, tmp_path: Path) -> None:
    program = Program()
    stream = program.source("in", "word string, n bigint").map(lambda row: row, "word string, n bigint").uid("same")
    builder = FileSink.for_row_format(out, Encoder.json_encoder())
    builder.with_bucket_assigner(BucketAssigner.column_bucket_assigner("word"))
    stream.sink_to(builder.build()).uid("files")
    run(program, tmp_path / "job", epochs("in", [[("kelp", 1), ("rock", 2)], [("kelp", 3)]]))
    bucket, prefix = place_of(out)
    assert {key.removeprefix(f"{prefix}/").partition("/")[0] for key in objects(out)} == {"word=kelp", "word=rock"}
    lines = [client().get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in objects(out)]
    assert sorted(line for text in lines for line in text.splitlines()) == [
        '{"word": "kelp", "n": 1}',
        '{"word": "kelp", "n": 3}',
        '{"word": "rock", "n": 2}',
    ]


def test_what_is_wrong_is_told(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HoldfastError, match="no such bucket"):
        uploads_for("s3://nowhere-at-all/x").begin("s3://nowhere-at-all/x/y")
    monkeypatch.setattr(object_store, "_current", replace(AT_ONCE, endpoint="http://127.0.0.1:1"))
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1"):
        uploads_for(out).begin(join(out, "x"))
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[s3\]'"):
        Uploads("bucket", S3Options())
