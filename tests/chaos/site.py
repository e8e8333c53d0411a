"""Where a job runs: its directories, the options of its kind of high availability, its drivers and servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, free_port
from tests.chaos.api_server import ApiServer
from tests.chaos.clocks import Clocks
from tests.chaos.members import Driver, real_api_servers
from tests.chaos.replica import Replica
from tests.services.kubernetes.cluster import REAL, KubernetesCluster

KINDS: Final = ("none", "filesystem", "zookeeper", "kubernetes")
LEASE: Final = 4.0
"""Seconds for which a leader that is silent still leads."""
EPOCHS: Final = "epochs"
REAL_TIME: Final = "real time"
ONE_WORKER: Final = "real time, one worker"
"""In real time with one task of each stage: all run in the thread of one worker."""
_DISK: Final = "192m"
_OPTIONS_BY_EPOCHS: Final = {
    "execution.trigger": "continuous",
    "execution.checkpointing.cleaner.grace-period": "20 s",
}
_OPTIONS_IN_REAL_TIME: Final = {  # a checkpoint each interval, also without input, so half as long for as many files
    "execution.trigger": "real-time",
    "execution.checkpointing.interval": "500 ms",
    "execution.checkpointing.max-concurrent-checkpoints": "3",  # they overlap while the machine is busy
    "execution.checkpointing.cleaner.grace-period": "10 s",
}


class Site:
    """A job with its drivers, and a replica of its state.

    Args:
        kind: The type of high availability.
        directory: An empty one, with the disk of the job in it.
        options: What the drivers have in common.
        routes: For each driver, what it reaches the servers through; options of its own go with it.
        servers: The servers, None where there are none.
        api_server: The double of Kubernetes' one, None where there is another one or none.
        clocks: The clocks of all its processes, None if they cannot be moved.
        engine: How the job runs.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        options: dict[str, str],
        routes: Sequence[tuple[list[TcpProxy], dict[str, str]]],
        servers: ZooKeeperEnsemble | KubernetesCluster | None,
        api_server: ApiServer | None,
        clocks: Clocks | None,
        engine: str = EPOCHS,
    ) -> None:
        self.kind, self.engine = kind, engine
        self.inputs, self.disk = directory / "inputs", directory / "disk"
        self.servers, self.api_server = servers, api_server
        self.clocks = clocks
        self.leader: Driver | None = None
        """The driver that was the last to say that it leads, if its process still runs."""
        self.options = options | _direct(servers)
        """How the register is reached past the proxies."""
        self.routes = [proxies for proxies, _ in routes]
        program = [self.inputs, self.disk, "--tasks", "1" if engine == ONE_WORKER else "2"]
        self.drivers = [
            Driver(number, [*program, *(f"-D{key}={value}" for key, value in {**options, **own}.items())], directory)
            for number, (_, own) in enumerate(routes)
        ]
        self.replica = Replica(self.disk / "checkpoints", self.options, free_port(), directory / "replica.log")

    @property
    def is_real_time(self) -> bool:
        """Whether the job runs in real time, and not by epochs."""
        return self.engine != EPOCHS

    @property
    def is_real(self) -> bool:
        """Whether the API server is a real one, and not a double."""
        return isinstance(self.servers, KubernetesCluster) and self.api_server is None

    @property
    def left_out(self) -> list[str]:
        """The faults that cannot strike here, and why."""
        found = []
        if self.clocks is None:
            found.append("no clock is moved: there is no C compiler (cc)")
        if not self.disk.is_mount():
            found.append("no disk is full: this process may not mount a tmpfs, as root may")
        if self.is_real:
            found.append("no server is killed or has its clock moved: whoever ran this has started it")
            if not real_api_servers():
                found.append("no server is stopped: HOLDFAST_TEST_API_SERVER does not say which processes it has")
        return found

    @property
    def logs(self) -> list[Path]:
        """What the processes have said."""
        of_servers = [] if self.api_server is None else [self.api_server.log]
        return [*(driver.log for driver in self.drivers), self.replica.log, *of_servers]

    def supervise(self) -> None:
        """Start everything that has ended."""
        for driver in self.drivers:
            if driver.begins_to_lead():
                self.leader = driver
            if driver.supervise() and self.leader is driver:
                self.leader = None
        self.replica.supervise()

    def leads(self, driver: Driver) -> bool:
        """Whether a driver works, or stands by."""
        return self.kind == "none" or self.leader is driver

    def close(self) -> None:
        """End the drivers, the replica, and what they reach the servers through."""
        for driver in self.drivers:
            driver.end()
        self.replica.end()
        for proxy in (proxy for route in self.routes for proxy in route):
            proxy.close()


@contextmanager
def a_site(kind: str, directory: Path, engine: str = EPOCHS) -> Iterator[Site]:
    """A job of its own, on a disk of its own where this process may mount one."""
    clocks = Clocks.in_directory(directory)
    with ExitStack() as stack:
        disk = stack.enter_context(_disk(directory / "disk"))
        stack.enter_context(patch.dict(os.environ, {} if clocks is None else clocks.variables))
        servers, api_server = stack.enter_context(_servers(kind, directory))
        options = _options(kind, disk) | (_OPTIONS_BY_EPOCHS if engine == EPOCHS else _OPTIONS_IN_REAL_TIME)
        if isinstance(servers, KubernetesCluster):
            options |= {"kubernetes.cluster-id": "chaos", "kubernetes.namespace": servers.namespace}
        site = Site(kind, directory, options, _routes(kind, servers), servers, api_server, clocks, engine)
        stack.callback(site.close)
        yield site


@contextmanager
def _disk(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    mount = shutil.which("mount")
    mounted = ["-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(directory)]
    is_mounted = (
        mount is not None and subprocess.run([mount, *mounted], capture_output=True, check=False).returncode == 0
    )
    try:
        yield directory
    except BaseException:
        shutil.copytree(directory, directory.with_name("disk-then"))  # for whoever wants to know why
        raise
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def _servers(
    kind: str, directory: Path
) -> Iterator[tuple[ZooKeeperEnsemble | KubernetesCluster | None, ApiServer | None]]:
    with ExitStack() as stack:
        if kind == "zookeeper":
            yield stack.enter_context(ZooKeeperEnsemble()), None
        elif kind == "kubernetes":
            double = None
            if not os.environ.get(REAL):
                double = stack.enter_context(ApiServer(directory / "api-server"))
                stack.enter_context(patch.dict(os.environ, {REAL: str(double.kubeconfig)}))
            yield stack.enter_context(closing(KubernetesCluster(directory, None))), double
        else:
            yield None, None


def _options(kind: str, disk: Path) -> dict[str, str]:
    options = {
        "execution.checkpointing.dir": str(disk / "checkpoints"),
        "execution.checkpointing.tolerable-failed-checkpoints": "3",
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "200 ms",
        "restart-strategy.exponential-delay.max-backoff": "2 s",
        "high-availability.type": kind,
    }
    if kind == "none":
        return options
    options["high-availability.storageDir"] = str(disk / "ha")
    if kind == "zookeeper":
        return options | {
            "high-availability.zookeeper.client.session-timeout": f"{LEASE:g} s",
            "high-availability.zookeeper.client.retry-wait": "200 ms",
        }
    prefix = f"high-availability.{kind}.leader-election"
    return options | {
        f"{prefix}.lease-duration": f"{LEASE:g} s",
        f"{prefix}.renew-deadline": f"{LEASE * 0.7:g} s",
        f"{prefix}.retry-period": "500 ms",
    }


def _direct(servers: ZooKeeperEnsemble | KubernetesCluster | None) -> dict[str, str]:
    if isinstance(servers, ZooKeeperEnsemble):
        return {"high-availability.zookeeper.quorum": servers.connect_string}
    return {} if servers is None else {"kubernetes.config.file": str(servers.kubeconfig)}


def _routes(kind: str, servers: Any) -> list[tuple[list[TcpProxy], dict[str, str]]]:
    """One for each driver: a job without high availability has one driver, the others two."""
    if servers is None:
        return [([], {})] * (1 if kind == "none" else 2)
    return [_route(servers) for _ in range(2)]


def _route(servers: ZooKeeperEnsemble | KubernetesCluster) -> tuple[list[TcpProxy], dict[str, str]]:
    if isinstance(servers, KubernetesCluster):
        proxy, kubeconfig = servers.proxied()
        return [proxy], {"kubernetes.config.file": str(kubeconfig)}
    proxies = [TcpProxy("127.0.0.1", server.port) for server in servers.servers]
    return proxies, {"high-availability.zookeeper.quorum": ",".join(proxy.address for proxy in proxies)}
