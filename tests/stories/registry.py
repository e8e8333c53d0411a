"""A real schema registry for a module of tests: Apicurio's, which speaks Confluent's protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.spark.java import ensure_java
from holdfast.testing.server.zookeeper import free_port

HOME = Path(sys.prefix, "registry")
_START_SECONDS = 120.0


class SchemaRegistry:
    """One registry in a JVM of its own, which keeps its schemas in memory."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._log = directory / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients of Confluent's protocol find it."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        command = [
            str(ensure_java(dict(os.environ)) / "bin" / "java"),
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self._port}",
            "-jar",
            str(_program()),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the registry does not serve. Its log:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.2)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


def _program() -> Path | None:
    return next(iter(HOME.glob("apicurio-registry-app-*-runner.jar")), None)


def running_registry() -> Iterator[SchemaRegistry]:
    """A registry that serves; skips by name where there is none to start, but not in CI."""
    if _program() is None:
        message = "there is no schema registry: run scripts/schema_registry.py, which needs a network"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with TemporaryDirectory(prefix="registry-") as directory:
        registry = SchemaRegistry(Path(directory))
        registry.start()
        try:
            yield registry
        finally:
            registry.kill()
