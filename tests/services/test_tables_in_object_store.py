"""Delta and Iceberg tables in an object store: the contract of sinks, and a store that fails at each single request."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors import delta, iceberg, table_files
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.runtime.function.sink import Sink
from holdfast.storage import object_store, uploads
from holdfast.storage.file_system import join
from holdfast.storage.object_store import S3Options
from holdfast.storage.scheme import file_system_for
from holdfast.storage.uploads import uploads_for
from holdfast.testing import EpochProgram, S3Server, SinkBackend, SinkContract
from holdfast.testing.sink_contract import SinkStage
from holdfast.types.type_parser import to_type

pytestmark = pytest.mark.services

COLUMNS = pa.schema([("word", pa.string()), ("n", pa.int64())])
AT_ONCE = S3Options(max_retries=0)
"""What fails is not asked for again by the client."""


class Store:
    """The server, which is not sent to processes that commit."""

    server: S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as serving:
        Store.server = serving
        yield serving


@pytest.fixture
def out(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "_current", AT_ONCE)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    server.make_bucket(bucket)
    yield f"s3://{bucket}/lake/out"
    server.strike = lambda request: None


class Table(SinkBackend):
    """A table in a bucket; it is away when the store answers nobody."""

    steps = 5

    def __init__(self, place: str, key: tuple[str, ...] = ()) -> None:
        self.place = place
        self.key = key
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def reach(self) -> None:
        """Lets this process reach the store: the one that commits is another one."""
        os.environ.update(self.environment)
        object_store._current = AT_ONCE

    @contextmanager
    def away(self) -> Iterator[None]:
        Store.server.is_away = True
        try:
            yield
        finally:
            Store.server.is_away = False

    def table(self) -> Any:
        raise NotImplementedError

    def files(self) -> set[str]:
        """The objects that the table names."""
        raise NotImplementedError


class DeltaBucket(Table):
    def __init__(self, place: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(place, key)
        options = delta._storage_options(place)
        DeltaTable.create(place, Schema.from_arrow(COLUMNS), partition_by=["word"], storage_options=options)

    def new_sink(self) -> Sink:
        self.reach()
        return DeltaSink(self.place, key=self.key)

    def table(self) -> DeltaTable:
        return DeltaTable(self.place, storage_options=delta._storage_options(self.place))

    def rows(self) -> list[tuple[str, int]]:
        return [(row["word"], row["n"]) for row in self.table().to_pyarrow_table().to_pylist()]

    def files(self) -> set[str]:
        return set(self.table().file_uris())


class AtOnce(AwsStandardS3RetryStrategy):
    """What fails is not asked for again by pyarrow either."""

    def __init__(self) -> None:
        super().__init__(max_attempts=1)


class IcebergBucket(Table):
    """Its catalog is a local file, as one of SQL is elsewhere."""

    def __init__(self, place: str, catalog: Path, key: tuple[str, ...] = ()) -> None:
        super().__init__(place, key)
        at_once = f"{__name__}.{AtOnce.__name__}"
        self.properties = {"type": "sql", "uri": f"sqlite:///{catalog}", "warehouse": place}
        self.properties["s3.retry-strategy-impl"] = at_once
        # A double on a busy machine may be silent for longer than pyarrow waits.
        self.properties |= {"s3.request-timeout": "60", "s3.connect-timeout": "60"}
        catalog_of_test = self._catalog()
        catalog_of_test.create_namespace("db")
        catalog_of_test.create_table("db.seen", COLUMNS)

    def _catalog(self) -> Any:
        return load_catalog("test", **{**iceberg._s3_properties(), **self.properties})

    def new_sink(self) -> Sink:
        self.reach()
        return IcebergSink("test", "db.seen", properties=self.properties, key=self.key)

    def table(self) -> Any:
        return self._catalog().load_table("db.seen")

    def rows(self) -> list[tuple[str, int]]:
        return [(row["word"], row["n"]) for row in self.table().scan().to_arrow().to_pylist()]

    def files(self) -> set[str]:
        return {task.file.file_path for task in self.table().scan().plan_files()}


class TestDeltaInABucket(SinkContract):
    @pytest.fixture
    def sink_backend(self, out: str) -> SinkBackend:
        return DeltaBucket(out)


class TestIcebergInABucket(SinkContract):
    @pytest.fixture
    def sink_backend(self, out: str, tmp_path: Path) -> SinkBackend:
        return IcebergBucket(out, tmp_path / "catalog.db")


Make = Callable[..., Table]


@pytest.fixture(params=["Delta", "Iceberg"])
def make(request: pytest.FixtureRequest, out: str, tmp_path: Path) -> Make:
    """Makes the table, with a key or without."""
    if request.param == "Delta":
        return lambda *key: DeltaBucket(out, key)
    return lambda *key: IcebergBucket(out, tmp_path / "catalog.db", key)


class Job:
    """Stages epochs and commits them, without a second try."""

    def __init__(self, backend: Table, staging: Path) -> None:
        staging.mkdir()
        self.backend = backend
        self._stage = SinkStage(backend.new_sink(), staging, incarnation="1" * 32)
        self._stage.prepare()

    def write(self, epoch: int, attempt: int = 1) -> list[dict[str, Any]]:
        return self._stage.write(epoch, [("kelp", epoch)], 0, attempt) + self._stage.write(
            epoch, [("rock", epoch)], 1, attempt
        )

    def commit(self, entries: list[dict[str, Any]], *, is_recovered: bool = False) -> None:
        self._stage.committing(retries=0).commit(1, {"out": entries}, is_recovered=is_recovered)

    def sweep(self, attempt: int) -> int:
        return self._stage.sweep(lambda name: name.attempt == attempt)


def rows(last: int, first: int = 1) -> list[tuple[str, int]]:
    return sorted((word, epoch) for word in ("kelp", "rock") for epoch in range(first, last + 1))


def objects(place: str, folder: str) -> list[str]:
    """All below a folder of a table."""
    fs, found = file_system_for(place), []
    for entry in fs.list(join(place, folder)):
        name = f"{folder}/{entry.name}"
        found += objects(place, name) if entry.is_directory else [name]
    return found


def directory(backend: Table) -> str:
    return backend.place if isinstance(backend, DeltaBucket) else str(backend.table().location())


def nothing_is_left(backend: Table) -> bool:
    """Whether what tasks have written is in the table, and nothing else is there."""
    place = directory(backend)
    found = {join(place, name) for name in objects(place, "data")}
    assert objects(place, "_holdfast") == ["_holdfast/identity"]
    bucket = place.removeprefix("s3://").partition("/")[0]
    pending = uploads_for(place)._client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert not [upload for upload in pending if "/_holdfast/" in upload["Key"]], "those of others are their own"
    return found == backend.files()


def requests_of(server: S3Server, work: Callable[[], Any]) -> list[str]:
    before = len(server.requests)
    work()
    return server.requests[before:]


def gone_from(number: int, how: Any) -> Callable[[str], Any]:
    """The store strikes one request, from 0, and is away from then on."""
    asked = -1

    def strike(request: str) -> Any:
        nonlocal asked
        asked += 1
        return None if asked < number else how if asked == number else "refused"

    return strike


def moments(requests: list[str], spread: int) -> list[tuple[int, str]]:
    """Each request of a commit that changes something, carried out or not; and some of those that only look."""
    changing = [number for number, request in enumerate(requests) if not request.startswith(("GET", "HEAD"))]
    looking = [number for number in range(0, len(requests), spread) if number not in changing]
    return [(number, how) for number in changing for how in ("refused", "lost")] + [(n, "refused") for n in looking]


@pytest.mark.parametrize("key", [(), ("word", "n")], ids=["adds", "puts"])
def test_a_store_that_goes_away_at_any_request_of_a_commit_shows_each_row_once(
    server: S3Server, make: Make, tmp_path: Path, key: tuple[str, ...]
) -> None:
    backend = make(*key)
    job = Job(backend, tmp_path / "staged")
    for entries in (job.write(1), job.write(2)):
        asked = requests_of(server, lambda e=entries: job.commit(e))
    for epoch, (number, how) in enumerate(moments(asked, 5), 3):
        entries = job.write(epoch)
        server.strike = gone_from(number, how)
        with suppress(HoldfastError):  # one that nobody needed any more may be struck
            job.commit(entries)
        server.strike = lambda request: None
        job.commit(entries, is_recovered=True)
        assert sorted(backend.rows()) == rows(epoch), f"{how} at {asked[number]}"
    assert key or nothing_is_left(backend)


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_a_task_that_fails_at_any_request_leaves_nothing(
    server: S3Server, make: Make, tmp_path: Path, how: str
) -> None:
    backend = make()
    job = Job(backend, tmp_path / "staged")
    asked = requests_of(server, lambda: job.commit(job.write(1)))
    asked = requests_of(server, lambda: job.write(1, attempt=9))
    job.sweep(9)
    for epoch, number in enumerate(range(len(asked)), 2):
        server.strike = gone_from(number, how)
        with suppress(HoldfastError):
            job.write(epoch, attempt=1)
        server.strike = lambda request: None
        job.sweep(1)
        job.commit(job.write(epoch, attempt=2))
        job.sweep(1)
        assert sorted(backend.rows()) == rows(epoch), f"{how} at {asked[number]}"
        assert nothing_is_left(backend), f"{how} at {asked[number]}"


def test_a_mark_whose_answer_is_lost_is_known_again_and_costs_nothing(
    server: S3Server, make: Make, tmp_path: Path
) -> None:
    job = Job(backend := make(), tmp_path / "staged")
    struck = []

    def lose(request: str) -> Any:
        if "/marks/" in request and request.startswith("PUT"):
            struck.append(request)
            return "lost"
        return None

    server.strike = lose
    job.commit(job.write(1))
    assert len(struck) == 2 and sorted(backend.rows()) == rows(1) and nothing_is_left(backend)


def test_a_task_that_outlives_its_attempt_removes_what_it_wrote(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(backend := make(), tmp_path / "staged")
    write = uploads.Uploads.open_object

    @contextmanager
    def be_swept(self: Any, uri: str) -> Iterator[Any]:
        with write(self, uri) as file:
            yield file
            job.sweep(1)

    monkeypatch.setattr(uploads.Uploads, "open_object", be_swept)
    with pytest.raises(StorageError, match="was swept while it was written"):
        job.write(1)
    monkeypatch.setattr(uploads.Uploads, "open_object", write)
    job.commit(job.write(1, attempt=2))
    assert sorted(backend.rows()) == rows(1) and nothing_is_left(backend)


def test_files_that_are_large_go_in_parts_and_one_that_fails_is_taken_back(
    out: str, monkeypatch: pytest.MonkeyPatch, server: S3Server
) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
    data = os.urandom(12 << 20)
    store = uploads_for(out)
    with store.open_object(join(out, "large")) as file:
        file.write(data)
    with store.open_object(join(out, "small")) as file:
        file.write(b"small")
    assert file_system_for(out).read(join(out, "large")) == data
    assert file_system_for(out).read(join(out, "small")) == b"small"
    with pytest.raises(ZeroDivisionError), store.open_object(join(out, "broken")) as file:
        file.write(data)
        raise ZeroDivisionError
    server.strike = lambda request: "refused" if "uploadId" in request and request.startswith("POST") else None
    with pytest.raises(StorageError), store.open_object(join(out, "incomplete")) as file:
        file.write(data)
    server.strike = lambda request: None
    assert sorted(file_system_for(out).list_names(out)) == ["large", "small"]
    bucket = out.removeprefix("s3://").partition("/")[0]
    assert not store._client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_copy_is_made_by_the_store_also_in_parts(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, data = uploads_for(out), os.urandom(12 << 20)
    with store.open_object(join(out, "one")) as file:
        file.write(data)
    store.copy(join(out, "one"), join(out, "at once"))
    monkeypatch.setattr(uploads, "_LARGEST_COPY", 5 << 20)
    monkeypatch.setattr(uploads, "_COPIED_PART", 5 << 20)
    store.copy(join(out, "one"), join(out, "in parts"))
    for name in ("at once", "in parts"):
        assert file_system_for(out).read(join(out, name)) == data
    with pytest.raises(NotExistError):
        store.copy(join(out, "nothing"), join(out, "copy of nothing"))


def test_a_table_that_is_made_has_checkpoints_of_its_log_so_that_commits_stay_as_fast(
    server: S3Server, out: str, tmp_path: Path
) -> None:
    sink = DeltaSink(out, create_table=True)
    sink.check_input(to_type("word string, n bigint"))
    stage = SinkStage(sink, tmp_path, incarnation="1" * 32)
    stage.prepare()
    asked = []
    for epoch in range(1, 32):
        entries = stage.write(epoch, [("kelp", epoch)])
        asked.append(len(requests_of(server, lambda: stage.commit(entries))))  # noqa: B023
    # Without checkpoints each commit asks six times more than the one before; under load one is asked again.
    assert max(asked[21:]) < max(asked[11:21]) + 6, asked
    assert DeltaTable(out, storage_options=delta._storage_options(out)).to_pyarrow_table().num_rows == 31


def test_vacuum_deletes_what_a_compaction_has_replaced_and_nothing_that_is_staged(out: str, tmp_path: Path) -> None:
    job = Job(backend := DeltaBucket(out), tmp_path / "staged")
    for epoch in (1, 2):
        job.commit(job.write(epoch))
    replaced, waiting = objects(out, "data"), job.write(3)
    backend.table().optimize.compact()
    backend.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(replaced) == 4 and not set(replaced) & set(objects(out, "data"))
    job.commit(waiting, is_recovered=True)
    assert sorted(backend.rows()) == rows(3)


def test_objects_of_earlier_releases_are_the_tables_own(make: Make, tmp_path: Path) -> None:
    """They had one name, and lost their marks before the commit."""
    job, entries = Job(backend := make(), tmp_path / "staged"), []
    fs = file_system_for(directory(backend))
    for epoch in (1, 2):
        entries.append(job.write(epoch))
        for name in objects(directory(backend), "_holdfast/marks"):
            fs.delete(join(directory(backend), name))
    with pytest.MonkeyPatch.context() as patch:  # the earlier release commits one epoch
        patch.setattr(table_files, "data_name", table_files.published_name)
        patch.setattr(table_files.ObjectStoreTableDirectory, "_copy", lambda *_: None)
        job.commit(entries[0])
    for _ in range(2):
        for committables in entries:
            job.commit(committables, is_recovered=True)
    job.commit(job.write(3))
    assert sorted(backend.rows()) == rows(3)
    old = [name for name in backend.files() if "/_holdfast/" in name]
    assert len(old) == 2 and all(fs.exists(name) for name in old)


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")  # by pyiceberg; Polars reads the files
def test_strangers_read_what_is_there(make: Make, tmp_path: Path) -> None:
    job = Job(backend := make(), tmp_path / "staged")
    for epoch in (1, 2):
        job.commit(job.write(epoch))
    table = backend.table()
    if isinstance(backend, DeltaBucket):
        options = {**backend.environment, "AWS_ALLOW_HTTP": "true"}
        by_polars = polars.read_delta(backend.place, storage_options=options)
        by_duckdb = duckdb.from_arrow(table.to_pyarrow_dataset()).fetchall()
    else:
        options = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
        lazy = polars.scan_iceberg(table.metadata_location, storage_options=options, reader_override="native")
        by_polars = lazy.collect()
        by_duckdb = table.scan().to_duckdb("seen").execute("select word, n from seen").fetchall()
    assert sorted(by_polars.select("word", "n").rows()) == rows(2)
    assert sorted(by_duckdb) == rows(2)


def test_a_catalog_of_glue_keeps_the_number_of_the_epoch(server: S3Server, out: str, tmp_path: Path) -> None:
    """Of one writer alone: this Glue does not look at the version that a commit is for."""
    keys = {"glue.access-key-id": "test", "glue.secret-access-key": "test", "glue.region": "us-east-1"}
    glue = {"type": "glue", "glue.endpoint": server.endpoint, "warehouse": out, **keys}
    words = [[("kelp", 1)], [("rock", 2)], [("sand", 3)]]
    for last in (2, 3):
        program = EpochProgram()
        sink = IcebergSink("glue", "lake.seen", properties=glue, partition_by="word", create_table=True)
        program.source("in", "word string, n bigint").sink_to(sink).uid("out")
        program.run(tmp_path / "job", [{"in": rows} for rows in words[:last]])
    table = load_catalog("glue", **{**iceberg._s3_properties(), **glue}).load_table("lake.seen")
    [marker] = [name for name in table.properties if name.startswith("holdfast.")]
    assert table.properties[marker] == "3"
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2, 3]


def test_a_store_without_conditions_and_a_table_that_is_gone_are_refused(out: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no bucket"):
        DeltaSink("s3://")
    with pytest.raises(ConfigurationError, match="There is no Delta table at 's3://"):
        prepare(DeltaSink(join(out, "nothing")), tmp_path)
    with S3Server(honours_conditions=False) as old:
        os.environ.update(old.environment)
        with pytest.raises(StorageError, match="ignores the condition If-None-Match"):
            DeltaBucket(join(out, "old"))
            prepare(DeltaSink(join(out, "old")), tmp_path)


def prepare(sink: DeltaSink, staging: Path) -> None:
    SinkStage(sink, staging, incarnation="1" * 32).prepare()
