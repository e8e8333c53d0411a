"""Jobs on real Spark with their checkpoints in an object store, and tables there too."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.testing import S3Server
from tests.programs.tables_job import catalog
from tests.spark.test_ledger_stories import Story
from tests.stories.process import run

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(420)]


def test_a_driver_killed_at_the_commit_point_leaves_what_its_successor_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path)
    with S3Server() as server:
        server.make_bucket("spark-jobs")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        root = f"s3://spark-jobs/{uuid.uuid4()}"
        arguments = ("--input", story.input, "--output", story.output, "--checkpoints", root)
        assert run("ledger_job.py", *arguments, fault="after:pointer.write:1=kill").was_killed
        ended = run("ledger_job.py", *arguments)
        assert ended.code == 0, ended.output
    story.audit()


def test_tables_in_a_store_get_each_row_once_from_a_driver_that_is_killed_between_them(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=3, rows=60)
    with S3Server() as server:
        server.make_bucket("tables")
        lake = f"s3://tables/{uuid.uuid4()}"
        arguments = (tmp_path, lake, server.endpoint)
        first = run("tables_job.py", *arguments, fault="after:sink.commit:3=kill")
        assert first.was_killed, first.output
        ended = run("tables_job.py", *arguments)
        assert ended.code == 0, ended.output
        environment = server.environment
        delta = DeltaTable(f"{lake}/delta", storage_options={**environment, "AWS_ALLOW_HTTP": "true"})
        found = [delta.to_pyarrow_table().to_pylist()]
        store = {
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
            "s3.region": "us-east-1",
        }
        table = load_catalog("test", **catalog(tmp_path, lake), **store).load_table("db.t")
        found.append(table.scan().to_arrow().to_pylist())
    expected = sorted(payment for epoch in story.payments for payment in epoch)
    for rows in found:
        assert sorted((row["payment"], row["account"], row["amount"]) for row in rows) == expected
