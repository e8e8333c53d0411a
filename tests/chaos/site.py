"""Where a job runs: its directories, the options of its kind of high availability, its drivers and servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import yaml

from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble
from tests.chaos.clocks import Clocks
from tests.chaos.members import Driver

KINDS: Final = ("none", "filesystem", "zookeeper", "kubernetes")
LEASE: Final = 4.0
"""Seconds for which a leader that is silent still leads."""
_DISK: Final = "192m"


class Site:
    """A job with its drivers.

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
        servers: ZooKeeperEnsemble | KubernetesApiServer | None,
        clocks: Clocks | None,
    ) -> None:
        self.kind = kind
        self.inputs, self.disk = directory / "inputs", directory / "disk"
        self.servers = servers
        self.clocks = clocks
        self.options = options | _direct(directory, servers)
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

    def supervise(self) -> None:
        """Start every driver that has ended."""
        for driver in self.drivers:
            driver.supervise()

    def close(self) -> None:
        """End the drivers and what they reach the servers through."""
        for driver in self.drivers:
            driver.end()
        for proxy in (proxy for route in self.routes for proxy in route):
            proxy.close()


@contextmanager
def a_site(kind: str, directory: Path) -> Iterator[Site]:
    """A job of its own, on a disk of its own where this process may mount one."""
    clocks = Clocks.in_directory(directory)
    with ExitStack() as stack:
        disk = stack.enter_context(_disk(directory / "disk"))
        stack.enter_context(patch.dict(os.environ, {} if clocks is None else clocks.variables))
        servers = stack.enter_context(_servers(kind))
        site = Site(kind, directory, _options(kind, disk), _routes(kind, directory, servers), servers, clocks)
        stack.callback(site.close)
        yield site


@contextmanager
def _disk(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(directory)]
    is_mounted = subprocess.run(mounted, capture_output=True).returncode == 0
    try:
        yield directory
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def _servers(kind: str) -> Iterator[ZooKeeperEnsemble | KubernetesApiServer | None]:
    if kind == "zookeeper":
        with ZooKeeperEnsemble() as ensemble:
            yield ensemble
    elif kind == "kubernetes":
        with KubernetesApiServer() as server:
            yield server
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
        **({"kubernetes.cluster-id": "chaos", "kubernetes.namespace": "default"} if kind == "kubernetes" else {}),
    }


def _direct(directory: Path, servers: ZooKeeperEnsemble | KubernetesApiServer | None) -> dict[str, str]:
    if isinstance(servers, ZooKeeperEnsemble):
        return {"high-availability.zookeeper.quorum": servers.connect_string}
    if servers is None:
        return {}
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(servers.kubeconfig()))
    return {"kubernetes.config.file": str(path)}


def _routes(kind: str, directory: Path, servers: Any) -> list[tuple[list[TcpProxy], dict[str, str]]]:
    """One for each driver: a job without high availability has one driver, the others two."""
    if kind == "none":
        return [([], {})]
    if kind == "filesystem":
        return [([], {}), ([], {})]
    return [_route(kind, directory, servers, number) for number in range(2)]


def _route(kind: str, directory: Path, servers: Any, number: int) -> tuple[list[TcpProxy], dict[str, str]]:
    if kind == "zookeeper":
        proxies = [TcpProxy("127.0.0.1", server.port) for server in servers.servers]
        return proxies, {"high-availability.zookeeper.quorum": ",".join(proxy.address for proxy in proxies)}
    port = int(servers.url.rpartition(":")[2])
    proxy = TcpProxy("127.0.0.1", port)
    config = servers.kubeconfig()
    config["clusters"][0]["cluster"]["server"] = f"http://{proxy.address}"
    path = directory / f"kubeconfig-{number}"
    path.write_text(yaml.safe_dump(config))
    return [proxy], {"kubernetes.config.file": str(path)}
