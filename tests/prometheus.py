"""A real Prometheus of one's own: the server of the distribution, on a temporary directory and a free port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from holdfast.testing.server.zookeeper import free_port

SECONDS = 90.0


def require_prometheus() -> tuple[str, str]:
    """The programs `prometheus` and `promtool`. A machine without them skips the test, the CI fails."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] is None or found[1] is None:
        reason = "no Prometheus: install it, for instance apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[0], found[1]


class Prometheus:
    """A server that scrapes as often as it can.

    Args:
        directory: Where it works.
        targets: What it scrapes: by the job label the place and the file with the token.
        rules: Files of rules.
    """

    def __init__(self, directory: Path, targets: Mapping[str, tuple[str, Path]], rules: list[Path]) -> None:
        self._program, _ = require_prometheus()
        self._directory = directory
        configuration = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(rule) for rule in rules],
            "scrape_configs": [
                {
                    "job_name": job,
                    "authorization": {"credentials_file": str(token)},
                    "static_configs": [{"targets": [place]}],
                }
                for job, (place, token) in targets.items()
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self._log = (self._directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                self._program,
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'prometheus'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def ask(self, path: str, **query: str) -> Any:
        """What its API answers."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """The series that an expression has now."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of the alerts that fire, by name."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def until(self, condition: Callable[[Prometheus], Any], what: str) -> Any:
        """Waits until a condition holds, and returns what it gave."""
        deadline = time.monotonic() + SECONDS
        while True:
            assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
            try:
                if found := condition(self):
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass  # it has not begun yet
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
            time.sleep(0.2)
