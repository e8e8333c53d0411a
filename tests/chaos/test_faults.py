"""The members that faults strike, and which faults come: those of a kind all do, and what cannot come is said."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.api_server import ApiServer
from tests.chaos.clocks import Clocks
from tests.chaos.faults import Faults
from tests.chaos.members import Driver, Member, busiest
from tests.chaos.rounds import Report, tables
from tests.chaos.site import REAL_TIME, a_site
from tests.services.kubernetes.cluster import REAL, KubernetesCluster


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Those of all processes that are started from now on."""
    clocks = Clocks.in_directory(tmp_path)
    if clocks is None:
        pytest.skip("there is no C compiler")
    for name, value in clocks.variables.items():
        monkeypatch.setenv(name, value)
    return clocks


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesCluster]:
    monkeypatch.setenv(REAL, str(server.kubeconfig))
    with closing(KubernetesCluster(tmp_path, None)) as cluster:
        yield cluster


def write(cluster: KubernetesCluster, name: str, **data: str) -> dict[str, Any]:
    answer = cluster.request("POST", cluster.path("configmaps"), {"metadata": {"name": name}, "data": data})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_an_api_server_that_was_killed_comes_back_with_what_it_had_answered(
    cluster: KubernetesCluster, server: ApiServer
) -> None:
    kept, gone = write(cluster, "kept", token="7"), write(cluster, "gone")
    deleted = cluster.request("DELETE", cluster.path("configmaps", "gone"))
    assert deleted.status_code == 200
    before = server.pid

    server.kill()
    server.start()

    assert server.pid != before
    assert cluster.map("kept") == kept
    assert cluster.request("GET", cluster.path("configmaps", "gone")).status_code == 404
    stale = cluster.request("PUT", cluster.path("configmaps", "kept"), {**kept, "metadata": gone["metadata"]})
    assert stale.status_code in (400, 409)
    updated = cluster.request("PUT", cluster.path("configmaps", "kept"), {**kept, "data": {"token": "8"}}).json()
    assert int(updated["metadata"]["resourceVersion"]) > int(gone["metadata"]["resourceVersion"])
    again = cluster.request("PUT", cluster.path("configmaps", "kept"), {**kept, "data": {"token": "9"}})
    assert again.status_code == 409
    assert cluster.map("kept")["data"] == {"token": "8"}


def test_a_watch_of_before_the_kill_is_told_that_it_has_expired(cluster: KubernetesCluster, server: ApiServer) -> None:
    old = write(cluster, "first")["metadata"]["resourceVersion"]
    now = write(cluster, "second")["metadata"]["resourceVersion"]
    server.kill()
    server.start()

    def watched(version: str) -> str:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "1", "allowWatchBookmarks": "true"}
        return cluster.request("GET", cluster.path("configmaps"), **query).text

    assert '"code": 410' in watched(old)
    assert '"type": "BOOKMARK"' in watched(now)


def test_a_stopped_api_server_answers_when_it_goes_on(cluster: KubernetesCluster, server: ApiServer) -> None:
    write(cluster, "map", token="7")
    answers: list[dict[str, Any]] = []
    server.suspend()
    asking = threading.Thread(target=lambda: answers.append(cluster.map("map")))
    asking.start()
    asking.join(0.5)
    assert answers == []
    server.resume()
    asking.join()
    assert answers[0]["data"] == {"token": "7"}


def test_the_clock_of_an_api_server_goes_wrong(clocks: Clocks, cluster: KubernetesCluster, server: ApiServer) -> None:
    clocks.move(server.pid, -7200)
    told = datetime.fromisoformat(write(cluster, "map")["metadata"]["creationTimestamp"])
    assert timedelta(hours=1) < datetime.now(UTC) - told < timedelta(hours=3)


@pytest.mark.parametrize(
    ("kind", "of_servers"),
    [("filesystem", set()), ("kubernetes", {"killed", "stopped and continued", "clock moved"})],
)
def test_each_fault_of_a_kind_has_come_before_any_comes_again(kind: str, of_servers: set[str], tmp_path: Path) -> None:
    with a_site(kind, tmp_path) as site:
        site.replica.supervise()
        faults = Faults(site, random.Random(1))
        met: set[tuple[str, str]] = set()
        for _ in range(10 if of_servers else 5):
            while (struck := faults.strike()) is None:  # a process that was killed takes a moment to end
                site.replica.supervise()
            struck.mend()
            met.add((struck.fault, struck.member))
            site.replica.supervise()
        expected = {(fault, "server") for fault in of_servers}
        expected |= {("killed", "replica"), ("stopped and continued", "replica")}
        if of_servers:
            expected |= {("connections reset", "standby's driver"), ("data dropped", "standby's driver")}
        if not any("clock" in why for why in site.left_out):
            expected.add(("clock moved", "replica"))
        if not any("disk" in why for why in site.left_out):
            expected.add(("disk full", "all"))
        assert met == expected


def python(stack: ExitStack, program: str) -> Member:
    """A process that runs until the end of the test, as a worker."""
    process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
    stack.callback(process.kill)
    return Member("worker", process.pid)


def test_the_busiest_of_workers_is_that_which_uses_the_processor() -> None:
    with ExitStack() as stack:
        idle = [python(stack, "import time; time.sleep(1000)") for _ in range(3)]
        assert busiest([], 0.0) is None
        spins = python(stack, "while True: pass")
        deadline = time.monotonic() + 60
        while busiest([*idle[:2], spins, idle[2]], 0.2) != spins:  # the others may be starting
            assert time.monotonic() < deadline
        spins.send(signal.SIGKILL)
        os.waitid(os.P_PID, spins.pid, os.WEXITED | os.WNOWAIT)
        assert busiest([spins], 0.0) is None


def test_in_real_time_a_worker_that_works_is_killed_in_each_deal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_site("none", tmp_path, REAL_TIME) as site, ExitStack() as stack:
        assert site.options["execution.trigger"] == "real-time"
        workers: list[Member] = []
        monkeypatch.setattr(site.drivers[0], "members", lambda leads: workers)
        faults = Faults(site, random.Random(1))
        deal = 4 + site.disk.is_mount() + (site.clocks is not None)
        for number in range(1, 3):
            met: Counter[tuple[str, str]] = Counter()
            for _ in range(deal):
                workers = workers or [python(stack, "while True: pass")]
                while (struck := faults.strike()) is None:
                    pass  # a process that starts may not have had the processor yet
                struck.mend()
                met[struck.fault, struck.member] += 1
                if struck.fault == "killed":
                    workers = []
            assert met["killed", "busy worker"] == 1, f"in deal {number}"
            assert met["killed", "worker"] == 2


def test_what_cannot_strike_on_a_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for number, whose in enumerate(("mount is not there", "mount is not allowed")):
        directory = tmp_path / str(number)
        directory.mkdir()
        with a_site("filesystem", directory) as site:
            assert [why.split(":")[0] for why in site.left_out] == ["no clock is moved", "no disk is full"], whose
            report = Report("filesystem", 1, rounds=3, left_out=site.left_out)
        assert "no clock is moved" in str(report) and "no clock is moved" in tables([report])
        (programs / "mount").write_text("#!/bin/sh\nexit 1\n")
        (programs / "mount").chmod(0o755)


def test_a_driver_leads_from_when_it_says_so_until_another_does_or_it_ends(tmp_path: Path) -> None:
    drivers = [Driver(number, [], tmp_path) for number in range(2)]
    assert not any(driver.begins_to_lead() for driver in drivers)
    with drivers[0].log.open("w") as log:
        log.write("another process leads job 1: standing by\nthis process leads")
        log.flush()
        assert not drivers[0].begins_to_lead()
        log.write(" job 1\n")
        log.flush()
        assert drivers[0].begins_to_lead()
        assert not drivers[0].begins_to_lead()
    assert not drivers[1].begins_to_lead()


def test_the_tables_are_of_all_runs_that_were_kept() -> None:
    runs = [
        Report("none", 1, 2, Counter({("killed", "JVM"): 2}), [1.0, 4.0, 2.0], 1200, 1, 10, 1234, 99),
        Report("none", 2, 1, Counter({("killed", "JVM"): 1}), [3.0], 900, 1, 8, 7, 70),
        Report("none", 3, 2, Counter({("killed", "busy worker"): 2}), [5.0], 900, 1, 8, 7, 70, engine=REAL_TIME),
        Report("kubernetes, real", 1, 1, Counter({("disk full", "all"): 1}), [], 800, 2, 5, 6, 60, ["no clock: x"]),
    ]
    lines = tables([Report.from_json(run.to_json()) for run in runs]).splitlines()
    assert lines[2:6] == [
        "| none | epochs | 1 | 2 | 1,200 | 1 | 10 | 1,234 | 99 | 2.0 | 4.0 |",
        "| none | epochs | 2 | 1 | 900 | 1 | 8 | 7 | 70 | 3.0 | 3.0 |",
        "| none | real time | 3 | 2 | 900 | 1 | 8 | 7 | 70 | 5.0 | 5.0 |",
        "| kubernetes, real | epochs | 1 | 1 | 800 | 2 | 5 | 6 | 60 | 0.0 | 0.0 |",
    ]
    assert lines[7] == "Rounds: 6 (none 3, none in real time 2, kubernetes, real 1)."
    assert lines[9:14] == [
        "| fault | member | none | none in real time | kubernetes, real |",
        "| --- | --- | ---: | ---: | ---: |",
        "| disk full | all | 0 | 0 | 1 |",
        "| killed | JVM | 3 | 0 | 0 |",
        "| killed | busy worker | 0 | 2 | 0 |",
    ]
    assert lines[-1] == "kubernetes, real, seed 1: no clock: x."


def test_a_line_of_before_there_was_real_time_is_one_of_epochs() -> None:
    line = json.dumps({key: value for key, value in json.loads(Report("none", 1).to_json()).items() if key != "engine"})
    assert Report.from_json(line) == Report("none", 1)
    assert Report.from_json(Report("none", 1, engine=REAL_TIME).to_json()).name == "none in real time"
