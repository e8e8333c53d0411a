"""Where a job runs: its directories, the options of its kind of high availability, its drivers and servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, free_port
from tests.chaos.clocks import Clocks
from tests.chaos.members import Driver
from tests.chaos.replica import Replica
from tests.services.kubernetes.cluster import REAL, KubernetesCluster

KINDS: Final = ("none", "filesystem", "zookeeper", "kubernetes")
LEASE: Final = 4.0
"""Seconds for which a leader that is silent still leads."""
_DISK: Final = "192m"


class Site:
    """A job with its drivers, and a replica of its state.

    Args:
        kind: The type of high availability.
        directory: An empty one, with the disk of the job in it.
        options: What the drivers have in common.
        routes: For each driver, what it reaches the servers through; options of its own go with it.
        servers: The servers, None where there are none.
        clocks: The clocks of all its processes, None if they cannot be moved.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        options: dict[str, str],
        routes: Sequence[tuple[list[TcpProxy], dict[str, str]]],
        servers: ZooKeeperEnsemble | KubernetesCluster | None,
        clocks: Clocks | None,
    ) -> None:
        self.kind = kind
        self.inputs, self.disk = directory / "inputs", directory / "disk"
        self.servers = servers
        self.clocks = clocks
        self.options = options | _direct(servers)
        """How the register is reached past the proxies."""
        self.routes = [proxies for proxies, _ in routes]
        self.drivers = [
            Driver(
                number,
                [self.inputs, self.disk, *(f"-D{key}={value}" for key, value in {**options, **own}.items())],
                directory,
            )
            for number, (_, own) in enumerate(routes)
        ]
        self.replica = Replica(self.disk / "checkpoints", self.options, free_port(), directory / "replica.log")

    @property
    def is_real(self) -> bool:
        """Whether the API server is a real one, and not a double."""
        return isinstance(self.servers, KubernetesCluster) and self.servers.server is None

    @property
    def logs(self) -> list[Path]:
        """What the processes have said."""
        return [*(driver.log for driver in self.drivers), self.replica.log]

    def supervise(self) -> None:
        """Start everything that has ended."""
        for driver in self.drivers:
            driver.supervise()
        self.replica.supervise()

    def close(self) -> None:
        """End the drivers, the replica, and what they reach the servers through."""
        for driver in self.drivers:
            driver.end()
        self.replica.end()
        for proxy in (proxy for route in self.routes for proxy in route):
            proxy.close()


@contextmanager
def a_site(kind: str, directory: Path) -> Iterator[Site]:
    """A job of its own, on a disk of its own where this process may mount one."""
    clocks = Clocks.in_directory(directory)
    with ExitStack() as stack:
        disk = stack.enter_context(_disk(directory / "disk"))
        stack.enter_context(patch.dict(os.environ, {} if clocks is None else clocks.variables))
        servers = stack.enter_context(_servers(kind, directory))
        options = _options(kind, disk)
        if isinstance(servers, KubernetesCluster):
            options |= {"kubernetes.cluster-id": "chaos", "kubernetes.namespace": servers.namespace}
        site = Site(kind, directory, options, _routes(kind, servers), servers, clocks)
        stack.callback(site.close)
        yield site


@contextmanager
def _disk(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(directory)]
    is_mounted = subprocess.run(mounted, capture_output=True).returncode == 0
    try:
        yield directory
    except BaseException:
        shutil.copytree(directory, directory.with_name("disk-then"))  # for whoever wants to know why
        raise
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def _servers(kind: str, directory: Path) -> Iterator[ZooKeeperEnsemble | KubernetesCluster | None]:
    if kind == "zookeeper":
        with ZooKeeperEnsemble() as ensemble:
            yield ensemble
    elif kind == "kubernetes":
        double = nullcontext() if os.environ.get(REAL) else KubernetesApiServer()
        with double as server, closing(KubernetesCluster(directory, server)) as cluster:
            yield cluster
    else:
        yield None


def _options(kind: str, disk: Path) -> dict[str, str]:
    options = {
        "execution.checkpointing.dir": str(disk / "checkpoints"),
        "execution.trigger": "continuous",
        "execution.checkpointing.tolerable-failed-checkpoints": "3",
        "execution.checkpointing.cleaner.grace-period": "20 s",
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
