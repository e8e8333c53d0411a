"""Alerts and dashboard, judged by a real Prometheus that scrapes real jobs."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.dispatcher.job_manager_api import JobManagerApi
from holdfast.errors import StorageError
from holdfast.rest.client import RestClient
from holdfast.rest.server import RestServer
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.metric_catalog import ALL
from tests.prometheus import Prometheus, require_prometheus
from tests.stories.process import ROOT
from tests.stories.served import Running, until
from tests.unit.runtime.realtime.test_real_time_metrics import program_of, running

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

RULES = ROOT / "deploy" / "prometheus" / "holdfast.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
LAGGING = 100_001
FAILED = "holdfast_job_attempts_failed_total"
DELAY = "restart-strategy.exponential-delay"


def rules_at_once(directory: Path, **expressions: str) -> Path:
    """The rules as they are, but that none waits before it fires, and that some have other expressions."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            rule["expr"] = expressions.get(rule["alert"], rule["expr"])
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    return directory / "rules.yml"


def expressions() -> list[str]:
    """What the panels of the dashboard ask, for all jobs."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [expression.replace("$job_name", ".*").replace("$__rate_interval", "10s") for expression in found]


class Sick:
    """A job that lags behind its input, and fails until it is healed."""

    def __init__(self, directory: Path, options: dict[str, Any]) -> None:
        short = {f"{DELAY}.{name}": "10 ms" for name in ("initial-backoff", "max-backoff")}
        restarts = {"restart-strategy.type": "exponential-delay", **short}
        self.job = Running(directory, event_time=True, **restarts, **options)
        self._burning = threading.Event()
        self.job.engine._interceptor = self._intercept

    def _intercept(self, stage: int, partition: int) -> None:
        if self._burning.is_set():
            raise StorageError("the disk is on fire")

    def burns(self) -> None:
        """From now on every attempt fails, while words keep coming."""
        self._burning.set()
        self.job.say(*["kelp"] * LAGGING)

    def is_healed(self) -> None:
        self._burning.clear()
        self.job.engine.inputs[-1] = {"words": ["kelp"]}

    def savepoint_fails(self, directory: Path) -> None:
        (directory / "file").write_text("no directory")
        self.job.client.post("savepoints", {"target-directory": str(directory / "file")})
        self.job.say("sand")
        until(lambda: self.job.master.statistics.create_snapshot().failures)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("for-prometheus")
    return tmp_path / "token"


@pytest.fixture
def manager() -> Iterator[str]:
    """The place of a job manager that stands by."""
    server = RestServer(JobManagerApi(lambda: None), "for-prometheus")
    yield server.start().removeprefix("http://")
    server.close()


def targets_of(place: str, live: JobMaster, manager: str, token: Path) -> dict[str, tuple[str, Path]]:
    in_real_time = RestClient.find(live.job.directory).address.url.removeprefix("http://")
    places = {
        "holdfast-jobs": place,
        "holdfast-live": in_real_time,
        "holdfast": manager,
        "holdfast-gone": "127.0.0.1:1",
    }
    return {name: (found, token) for name, found in places.items()}


def test_alerts_fire_and_every_panel_of_the_dashboard_has_something_to_show(
    tmp_path: Path, token: Path, manager: str
) -> None:
    require_prometheus()
    sick = Sick(tmp_path, {"rest.metrics.token-file": str(token)})
    place = sick.job.client.address.url.removeprefix("http://")
    real_time = {"rest.metrics.token-file": str(token), "metrics.latency.interval": "50 ms"}
    with (
        running(program_of(0, 100), tmp_path / "real-time", **real_time) as live,
        Prometheus(tmp_path, targets_of(place, live, manager, token), [rules_at_once(tmp_path)]) as prometheus,
    ):
        prometheus.until(lambda p: p.query("holdfast_job_epochs_total"), "the job is scraped")
        assert not {"HoldfastJobRestarts", "HoldfastJobMakesNoProgress", "HoldfastSourceLag"} & set(prometheus.firing())
        sick.burns()
        wanted = {
            "HoldfastJobRestarts",
            "HoldfastJobMakesNoProgress",
            "HoldfastSourceLag",
            "HoldfastWatermarkLag",
            "HoldfastNoLeader",
            "HoldfastIsDown",
        }
        firing = prometheus.until(lambda p: wanted <= (found := p.firing()).keys() and found, f"{wanted} fire")
        assert firing["HoldfastSourceLag"]["operator_id"] == "words"
        assert firing["HoldfastJobRestarts"]["job_name"] == "words"

        sick.is_healed()
        sick.savepoint_fails(tmp_path)
        prometheus.until(lambda p: "HoldfastCheckpointsFail" in p.firing(), "failed checkpoints are told")
        prometheus.until(lambda p: "HoldfastSourceLag" not in p.firing(), "the lag is over")
        prometheus.until(lambda p: "HoldfastJobMakesNoProgress" not in p.firing(), "it makes progress")
        ended = threading.Event()
        feeder = threading.Thread(target=lambda: [sick.job.say("kelp") for _ in iter(lambda: ended.wait(0.1), True)])
        feeder.start()
        for expression in expressions():
            prometheus.until(lambda p, asked=expression: p.query(asked), f"{expression} answers")
        ended.set()
        feeder.join()
    sick.job.end()


def test_the_alert_of_a_sink_that_is_away_names_it_and_no_other(tmp_path: Path, token: Path) -> None:
    """Also when it has made the job restart, after the other sink has committed the same epochs."""
    require_prometheus()
    is_away = threading.Event()
    epochs: list[int] = []

    def write(rows: Any, epoch: int) -> None:
        if is_away.is_set():
            raise StorageError("the target is away")
        epochs.append(epoch)

    short = {f"{DELAY}.{name}": "10 ms" for name in ("initial-backoff", "max-backoff")}
    restarts = {"restart-strategy.type": "exponential-delay", "sink.committer.retries": 1, **short}
    running = Running(tmp_path, beside=write, **restarts, **{"rest.metrics.token-file": str(token)})
    until(lambda: epochs)
    place = running.client.address.url.removeprefix("http://")
    rules = rules_at_once(tmp_path, HoldfastSinkLag="holdfast_operator_commit_lag_seconds > 1")

    def lagging(prometheus: Prometheus) -> set[str]:
        alerts = [alert for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"]
        found = [alert for alert in alerts if alert["labels"]["alertname"] == "HoldfastSinkLag"]
        for alert in found:
            sink = alert["labels"]["operator_id"]
            assert alert["annotations"]["summary"].startswith(f"Output of {sink} in words waits for ")
        return {alert["labels"]["operator_id"] for alert in found}

    with Prometheus(tmp_path, {"holdfast-jobs": (place, token)}, [rules]) as prometheus:
        prometheus.until(lambda p: p.query("holdfast_operator_commit_lag_seconds"), "the job is scraped")
        is_away.set()
        running.say("kelp")
        prometheus.until(lambda p: lagging(p) == {"beside"}, "the sink that is away lags")
        prometheus.until(lambda p: any(float(s["value"][1]) >= 3 for s in p.query(FAILED)), "the job has restarted")
        assert lagging(prometheus) == {"beside"}
        [[_, lag]] = [s["value"] for s in prometheus.query('holdfast_operator_commit_lag_seconds{operator_id="sink"}')]
        assert float(lag) == 0
        is_away.clear()
        prometheus.until(lambda p: not lagging(p), "it is over")
    running.end()
    assert running.failure is None


def test_what_fires_when_is_told_by_promtool(tmp_path: Path) -> None:
    _, promtool = require_prometheus()
    told = subprocess.run(
        [promtool, "test", "rules", RULES.with_name("holdfast.rules_test.yml")], capture_output=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    check = [promtool, "check", "config", "--syntax-only", RULES.with_name("prometheus.yml")]
    checked = subprocess.run(check, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    tests = yaml.safe_load(RULES.with_name("holdfast.rules_test.yml").read_text())["tests"]
    fired = {alert["alertname"] for test in tests for alert in test["alert_rule_test"] if alert["exp_alerts"]}
    assert fired == {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = {f"{metric.name}_total" if metric.is_counter else metric.name for metric in ALL}
    asked = " ".join([RULES.read_text(), *expressions()])
    names = set(re.findall(r"\b(?:holdfast|flink)_[A-Za-z_]+", asked))
    assert names - known == set()
    dashboard = json.loads(DASHBOARD.read_text())
    assert {"uid", "title", "schemaVersion", "panels", "templating"} <= dashboard.keys()
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    taken = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(taken) == len(set(taken)), "no two panels are in one place"
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)", DASHBOARD.read_text())) - {"__all", "__rate_interval"}
    assert used == variables
