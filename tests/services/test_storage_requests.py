"""Requests of a job to an object store: how many an epoch takes, and that the metric counts them all."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.rest.metric_samples import collect_samples
from holdfast.runtime.job.control import JobStatus
from holdfast.storage.object_store import REQUESTS
from holdfast.testing import S3Server
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import ledger
from tests.stories.local import master

pytestmark = pytest.mark.services

WARM_UP, EPOCHS = 21, 40
"""After the first 20 epochs come two sweeps, one every 20 checkpoints."""
GET_CLASS, PUT_CLASS = ("get", "head"), ("put", "list")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as serving:
        serving.make_bucket("jobs")
        for name, value in serving.environment.items():
            monkeypatch.setenv(name, value)
        yield serving


@pytest.fixture
def log(server: S3Server) -> list[str]:
    """The methods of the requests that arrived at the server."""
    found: list[str] = []

    def note(request: str) -> None:
        method, _, url = request.partition(" ")
        query = url.partition("?")[2]
        kinds = {"POST": "delete" if query == "delete" else "put", "GET": "list" if "list-type" in query else "get"}
        found.append(kinds.get(method, method.lower()))

    server.strike = note
    return found


@pytest.mark.parametrize("subtasks", [1, 6])
def test_an_epoch_with_warm_workers_takes_few_requests(log: list[str], tmp_path: Path, subtasks: int) -> None:
    before: list[int] = []

    class CountingEngine(LocalEngine):
        """Notes how many requests there were before each epoch."""

        def execute(self, *arguments: Any) -> Any:
            before.append(len(log))
            return super().execute(*arguments)

    REQUESTS.take()
    payments = ledger.payments(EPOCHS + 2, 20 * subtasks, 200, seed=1)
    options = {"state.local-cache.directory": str(tmp_path / "cache")}
    path = f"s3://jobs/{uuid.uuid4()}"
    graph, inputs = ledger.graph(tmp_path / "out"), ledger.inputs(payments)
    job = master(graph, path, inputs, options, parallelism=subtasks, engine=CountingEngine)
    assert job.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)

    first, last = before[WARM_UP], before[WARM_UP + 20]
    of_an_epoch = {method: count / 20 for method, count in Counter(log[first:last]).items()}
    assert sum(of_an_epoch.get(method, 0) for method in GET_CLASS) <= 2 * subtasks, of_an_epoch
    assert sum(of_an_epoch.get(method, 0) for method in PUT_CLASS) <= subtasks + 3, of_an_epoch
    # A run each, the document and the pointer; the rest is of sweeps.
    assert subtasks + 2 <= of_an_epoch["put"] <= subtasks + 2.2, "every subtask changes in every epoch"

    counted = Counter(REQUESTS.take())  # those after the last epoch
    for sample in collect_samples(job):
        if sample.name == "holdfast_job_storage_requests":
            counted[sample.labels["method"]] += int(sample.value)
    assert +counted == Counter(log)
    by_process = {process: counts for (process, _), counts in job.metrics.numbers.requests.items() if counts}
    assert set(by_process) == {"driver", "worker"}
