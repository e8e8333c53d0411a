"""The OpenAPI document is made of what is served, and a stranger who reads it finds that it is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from holdfast.dispatcher.job_manager_api import JobManagerApi
from holdfast.rest.client import RestClient
from holdfast.rest.http import HttpError
from holdfast.rest.route import Routes, UnknownPathError
from holdfast.rest.server import job_routes
from tests.stories.cluster import Cluster
from tests.stories.process import ROOT
from tests.stories.served import Running

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
HOOKS = Path(__file__).parents[2] / "stories" / "schemathesis_hooks.py"
ENDS_THE_JOB = ("patch-jobs-jobid", "post-jobs-jobid-stop")
ENDING = ("checkpoints", "savepoints")
"""What is asked for here with an empty body, and may be."""
FLINK = """\
DELETE /cluster
GET /config
GET /datasets
GET /datasets/delete/:triggerid
DELETE /datasets/:datasetid
GET /jars
POST /jars/upload
DELETE /jars/:jarid
GET /jars/:jarid/plan
POST /jars/:jarid/plan
POST /jars/:jarid/run
POST /jars/:jarid/run-application
GET /jobmanager/config
GET /jobmanager/environment
GET /jobmanager/logs
GET /jobmanager/logs/:log
GET /jobmanager/metrics
GET /jobmanager/profiler
POST /jobmanager/profiler
GET /jobmanager/thread-dump
GET /jobs
POST /jobs
GET /jobs/metrics
GET /jobs/overview
GET /jobs/:jobid
GET /jobs/:jobid/accumulators
GET /jobs/:jobid/checkpoints
POST /jobs/:jobid/checkpoints
GET /jobs/:jobid/checkpoints/config
GET /jobs/:jobid/checkpoints/details/:checkpointid
GET /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid
GET /jobs/:jobid/checkpoints/:triggerid
PATCH /jobs/:jobid/clientHeartbeat
GET /jobs/:jobid/config
POST /jobs/:jobid/coordinators/:operatorid
GET /jobs/:jobid/exceptions
GET /jobs/:jobid/execution-result
GET /jobs/:jobid/jobmanager/config
GET /jobs/:jobid/jobmanager/environment
GET /jobs/:jobid/jobmanager/log-url
GET /jobs/:jobid/metrics
GET /jobs/:jobid/plan
PATCH /jobs/:jobid/rescaling
GET /jobs/:jobid/rescaling/:triggerid
GET /jobs/:jobid/rescales/config
GET /jobs/:jobid/rescales/overview
GET /jobs/:jobid/rescales/summary
GET /jobs/:jobid/rescales/history
GET /jobs/:jobid/rescales/details/:rescaleuuid
GET /jobs/:jobid/resource-requirements
PUT /jobs/:jobid/resource-requirements
POST /jobs/:jobid/savepoints
GET /jobs/:jobid/savepoints/:triggerid
GET /jobs/:jobid/status
GET /jobs/:jobid/taskmanagers/:taskmanagerid/log-url
GET /jobs/:jobid/vertices/:vertexid
GET /jobs/:jobid/vertices/:vertexid/accumulators
GET /jobs/:jobid/vertices/:vertexid/backpressure
GET /jobs/:jobid/vertices/:vertexid/flamegraph
GET /jobs/:jobid/vertices/:vertexid/jm-operator-metrics
GET /jobs/:jobid/vertices/:vertexid/metrics
GET /jobs/:jobid/vertices/:vertexid/subtasks/accumulators
GET /jobs/:jobid/vertices/:vertexid/subtasks/metrics
GET /jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex
GET /jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex/attempts/:attempt
GET /jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex/metrics
GET /jobs/:jobid/vertices/:vertexid/subtasktimes
GET /jobs/:jobid/vertices/:vertexid/taskmanagers
GET /jobs/:jobid/vertices/:vertexid/watermarks
GET /overview
POST /savepoint-disposal
GET /savepoint-disposal/:triggerid
GET /taskmanagers
GET /taskmanagers/metrics
GET /taskmanagers/:taskmanagerid
GET /taskmanagers/:taskmanagerid/logs
GET /taskmanagers/:taskmanagerid/metrics
GET /taskmanagers/:taskmanagerid/thread-dump
POST /taskmanagers/:taskmanagerid/profiler
GET /applications/overview
GET /applications/:applicationid
POST /applications/:applicationid/cancel"""
"""Those of Flink 2.3 that end no job."""
CONFIGURATION = """
[parameters]
"path.jobid" = "{job}"
"path.vertexid" = "count"
"path.uid" = "count"
"path.state" = "count"
"path.snapshotid" = "latest"
"path.otherid" = "latest"

[[operations]]
include-operation-id = [
    "put-jobs-jobid-resource-requirements", "post-jobs", "get-jobs-jobid-state-snapshotid-operators-uid-state",
]
[operations.checks]
# Which operators and keys a job has, which columns a state has, and which programs are good ones, is more than a schema
# says: others are refused with 400.
positive_data_acceptance.enabled = false
"""


def judged(url: str, token: str, job: str, directory: Path, *arguments: str) -> str:
    """What schemathesis says of a server, which must be nothing bad."""
    configuration = directory / "schemathesis.toml"
    configuration.write_text(CONFIGURATION.format(job=job))
    excluded = [argument for name in ENDS_THE_JOB for argument in ("--exclude-operation-id", name)]
    shown = f"Authorization: Bearer {token}"
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": HOOKS.stem,
        "PYTHONPATH": str(HOOKS.parent),
        "SAVEPOINTS": str(directory / "savepoints"),
    }
    asked = [f"{url}/openapi.json", "-H", shown, *excluded, *arguments]
    always = ["--warnings", "off", "--no-shrink", "--seed", "20"]
    run = subprocess.run(
        [SCHEMATHESIS, "--config-file", configuration, "run", *asked, *always],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@contextmanager
def fed(job: Running) -> Iterator[None]:
    """A job has something to do: wishes are answered between epochs."""
    ended = threading.Event()

    def feed() -> None:
        while not ended.wait(0.02):
            job.say("kelp", "sand")

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    yield
    ended.set()
    feeder.join()


def savepoints(root: Path) -> dict[str, Any]:
    return {"execution.checkpointing.savepoint-dir": str(root / "savepoints")}


def document(client: RestClient) -> schemathesis.BaseSchema:
    shown = {"Authorization": f"Bearer {client.address.bearer_token}"}
    return schemathesis.openapi.from_url(f"{client.address.url}/openapi.json", headers=shown)


@pytest.mark.timeout(180)
def test_schemathesis_finds_no_difference_from_the_document(tmp_path: Path) -> None:
    job = Running(tmp_path, **savepoints(tmp_path))
    with fed(job):
        address = job.client.address
        told = judged(
            address.url, address.bearer_token, address.job_id, tmp_path, "--phases", "coverage,fuzzing", "-n2"
        )
        assert int(re.search(r"(\d+) generated", told)[1]) > 300, told  # type: ignore[index]
        assert job.client.get("status") == {"status": "RUNNING"}, "nothing that was tried has ended it"
        shown = {"Authorization": f"Bearer {address.bearer_token}"}
        stop = document(job.client)["/jobs/{jobid}/stop"]["POST"]
        stopped = stop.Case(path_parameters={"jobid": address.job_id}, body={"drain": False}).call(headers=shown)
        assert stopped.status_code == 202
        stop.validate_response(stopped)
        job.thread.join(30)
    assert job.master.status.value == "SUSPENDED"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_nor_does_it_find_any_such_thing_in_a_job_manager(tmp_path: Path) -> None:
    cluster = Cluster.without_elections(tmp_path, **savepoints(tmp_path))
    try:
        cluster.start()
        cluster.says(0, "leads, in session")
        (tmp_path / "in").mkdir()
        program = ROOT / "tests" / "programs" / "submitted_words.py"
        job = cluster.run("submit", program, "-Dpipeline.name=words", "--", tmp_path / "in", tmp_path / "out").strip()
        (tmp_path / "in" / "0.txt").write_text("kelp sand kelp")
        cluster.status(job, "RUNNING")
        (file,) = (tmp_path / "manager" / "rest").glob("*.json")
        address = json.loads(file.read_text())
        told = judged(address["url"], address["bearer_token"], job, tmp_path, "--phases", "coverage", "-n2")
        assert int(re.search(r"(\d+) generated", told)[1]) > 300, told  # type: ignore[index]
        assert cluster.jobs()[job]["status"] == "RUNNING"
    finally:
        cluster.close()


def test_a_job_is_cancelled_as_the_document_says(tmp_path: Path) -> None:
    job = Running(tmp_path)
    shown = {"Authorization": f"Bearer {job.client.address.bearer_token}"}
    cancel = document(job.client)["/jobs/{jobid}"]["PATCH"]
    path = {"jobid": job.client.job_id}
    assert cancel.Case(path_parameters=path, query={"mode": "harder"}).call(headers=shown).status_code == 400
    cancelled = cancel.Case(path_parameters=path, query={"mode": "cancel"}).call(headers=shown)
    assert cancelled.status_code == 202
    cancel.validate_response(cancelled)
    job.thread.join(30)
    assert job.master.status.value == "CANCELED"


def test_no_get_changes_anything(tmp_path: Path) -> None:
    job = Running(tmp_path, **savepoints(tmp_path))
    try:
        routes = job_routes(job.master)

        def seen() -> tuple[Any, ...]:
            master, counts = job.master, job.master.statistics.create_snapshot().counts
            return master.status, counts, dict(master.control.parallelism), master.control.is_ending, files(tmp_path)

        before = seen()
        parts = {"jobid": job.client.job_id, "vertexid": "count", "uid": "count", "state": "count"}
        parts |= {"checkpointid": "1", "triggerid": "a", "snapshotid": "latest", "otherid": "1"}
        for route in routes.served:
            if route.method == "GET":
                path = re.sub(r":([a-z]+)", lambda found: parts.get(found[1], "0"), route.path)
                asked(job, f"{path}?mode=cancel&target-directory={tmp_path}/savepoints")
                asked(job, path)
        assert seen() == before
    finally:
        job.end()


def asked(job: Running, target: str) -> int:
    address = job.client.address
    shown = {"Authorization": f"Bearer {address.bearer_token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address.url + target, headers=shown)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def files(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def test_every_path_says_what_it_takes_and_answers(tmp_path: Path) -> None:
    job = Running(tmp_path)
    try:
        routes: Routes = job_routes(job.master)
        assert [route.path for route in routes.served if not route.summary or not route.answer] == []
        shown = document(job.client).raw_schema
        names = {f"{method.upper()} {path}" for path, item in shown["paths"].items() for method in item}
        assert names == {f"{route.method} {braced(route.path)}" for route in routes.served}
        assert "Spark runs the tasks" in shown["x-absent"]["GET /taskmanagers*"]
    finally:
        job.end()


def test_every_path_of_flink_is_served_or_answered_with_the_reason(tmp_path: Path) -> None:
    job = Running(tmp_path)
    parts = {"jobid": job.client.job_id, "checkpointid": "1", "triggerid": "a"}
    try:
        for routes in (job_routes(job.master), JobManagerApi(lambda: None)):
            for target in FLINK.split("\n"):
                method, path = target.split(" ")
                concrete = re.sub(r":([a-z]+)", lambda found: parts.get(found[1], "0"), path)
                try:
                    answer = routes.answer(method, concrete, {})
                except HttpError as error:
                    assert not isinstance(error, UnknownPathError), target
                    assert str(error), target
                else:
                    assert method == "GET" or concrete.endswith(ENDING), (target, answer)
    finally:
        job.end()


def braced(path: str) -> str:
    return re.sub(r":([a-z]+)", r"{\1}", path)
