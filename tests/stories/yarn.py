"""A YARN of Hadoop's own servers: a resource manager, and node managers whose loopback addresses are hosts to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast.spark.java import ensure_java
from holdfast.testing.server.zookeeper import free_port
from tests.stories.cluster import until

JARS = Path(sys.prefix, "yarn")
SPARK = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")
QUEUE = "streaming"
DRIVER, EXECUTOR = "org.apache.spark.deploy.yarn.ApplicationMaster", "YarnCoarseGrainedExecutorBackend"

_OF_SPARK = {
    "spark.master": "yarn",
    "spark.yarn.queue": QUEUE,
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executor.instances": "2",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "640m",  # for its Python, which YARN counts as well
    # No task begins before both executors are there, or waits for the one that has its rows.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.locality.wait": "0",
}
_ROOM = 2560
"""Megabytes of a host: an executor with these settings (1408) and a driver (1152), but no second executor."""


def require_jars() -> None:
    """Skips by name where there are no servers to start, but not in CI."""
    [version] = [path.stem.rpartition("-")[2] for path in SPARK.glob("jars/hadoop-client-api-*.jar")]
    if not list(JARS.glob(f"hadoop-client-minicluster-{version}.jar")):
        message = f"there are no servers of Hadoop {version}: run scripts/jars.py yarn, which needs a network"
        if os.environ.get("CI") and not os.environ.get("SPARK"):
            pytest.fail(message)
        pytest.skip(message)


class YarnCluster:
    """The servers, and the containers that they start.

    Clients find in `environment` what an administrator would have given them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            "HADOOP_CONF_DIR": str(directory),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._servers: list[subprocess.Popen[bytes]] = []
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        self._page = f"http://{addresses['webapp.address']}/ws/v1/cluster"
        settings = {f"yarn.resourcemanager.{name}": at for name, at in addresses.items()}
        self._configure("yarn-site", {**settings, "yarn.scheduler.minimum-allocation-mb": "128"})
        scheduler = {"root.queues": QUEUE, f"root.{QUEUE}.capacity": "100", "maximum-am-resource-percent": "1"}
        self._configure(
            "capacity-scheduler", {f"yarn.scheduler.capacity.{name}": value for name, value in scheduler.items()}
        )
        defaults = {**_OF_SPARK, "spark.yarn.stagingDir": f"{directory}/staging"}
        lines = [f"{name} {value}\n" for name, value in defaults.items()]
        (directory / "spark-defaults.conf").write_text("".join(lines))

    def start(self) -> None:
        """Starts the servers, and waits until there is a cluster."""
        self._start("resourcemanager", "ResourceManager", {})
        for host in HOSTS:
            own = {
                **dict.fromkeys(("hostname", "bind-host"), host),
                **dict.fromkeys(("address", "localizer.address", "webapp.address"), f"{host}:0"),
                "local-dirs": f"{self.directory}/{host}/local",
                "log-dirs": f"{self.directory}/{host}/logs",
                "resource.memory-mb": str(_ROOM),
                "vmem-check-enabled": "false",
                "disk-health-checker.enable": "false",  # it would not use a disk that is nearly full
            }
            settings = {f"yarn.nodemanager.{name}": value for name, value in own.items()}
            self._start("nodemanager", "NodeManager", settings, host)
        until(self._is_complete, "the nodes are there")

    def processes(self, runs: str = "") -> Iterator[int]:
        """The processes in its directory, which all of it have; those of Java that run a class of this name."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (process / "cmdline").read_text().split("\0")
                is_java = command[0].endswith("java") and any(word.endswith(runs) for word in command[1:])
                if (process / "cwd").readlink().is_relative_to(self.directory) and (is_java or not runs):
                    yield int(process.name)

    def containers(self) -> set[str]:
        """Those that there were, whatever became of them."""
        return {path.name for path in self.directory.glob("*/logs/*/container_*")}

    def attempts(self) -> int:
        """How often the driver of the last application was started, or what stands for it in YARN."""
        last = max(self._asked("apps")["apps"]["app"], key=lambda app: app["startedTime"])
        return len(self._asked(f"apps/{last['id']}/appattempts")["appAttempts"]["appAttempt"])

    def close(self) -> None:
        """Ends all of it."""
        while remaining := list(self.processes()):
            for process in remaining:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for server in self._servers:
                server.poll()
            time.sleep(0.05)

    def _is_complete(self) -> bool:
        ended = [server.args for server in self._servers if server.poll() is not None]
        assert not ended, [path.read_text() for path in self.directory.glob("*/log")]
        with suppress(OSError):
            active: int = self._asked("metrics")["clusterMetrics"]["activeNodes"]
            return active == len(HOSTS)
        return False

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._page}/{path}", timeout=10) as answer:
            return json.load(answer)

    def _configure(self, name: str, settings: Mapping[str, str]) -> None:
        rows = [f"<property><name>{key}</name><value>{of}</value></property>" for key, of in settings.items()]
        text = "\n".join(["<configuration>", *rows, "</configuration>"])
        (self.directory / f"{name}.xml").write_text(text)

    def _start(self, package: str, server: str, settings: Mapping[str, str], host: str = "127.0.0.1") -> None:
        place, java = self.directory / host, ensure_java()
        place.mkdir()
        with (place / "log").open("wb") as log:
            started = subprocess.Popen(
                [
                    *(str(java / "bin" / "java"), "-Xmx256m"),
                    *("-cp", f"{self.directory}:{JARS}/*:{SPARK}/jars/*"),
                    f"org.apache.hadoop.yarn.server.{package}.{server}",
                    *(word for name, value in settings.items() for word in ("-D", f"{name}={value}")),
                ],
                cwd=place, env={**os.environ, "JAVA_HOME": str(java)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._servers.append(started)
