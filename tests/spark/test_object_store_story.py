"""The ledger on real Spark with its checkpoints in an object store; the output is local."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from holdfast.testing import S3Server
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
