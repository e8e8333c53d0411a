"""What happens to a job: each fault strikes one member, lasts for a while, and is mended."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.testing.server.zookeeper import ZooKeeperEnsemble
from tests.chaos.members import Driver, Member, one_of, real_api_servers, servers
from tests.chaos.site import LEASE, Site

_LONGER_THAN_THE_LEASE: Final = LEASE * 1.5
_HOURS: Final = 3 * 3600


@dataclass(frozen=True)
class Struck:
    """A fault that has struck.

    Attributes:
        fault: What happened, in a word or two.
        member: To whom.
        seconds: How long it lasts.
        mend: Undoes it.
    """

    fault: str
    member: str
    seconds: float = 0.0
    mend: Callable[[], None] = lambda: None


def strike(site: Site, chance: random.Random) -> Struck | None:
    """Let one fault strike; None if there was nobody to strike."""
    return chance.choice(_faults_of(site))(site, chance)


def _faults_of(site: Site) -> list[Callable[[Site, random.Random], Struck | None]]:
    faults = [_kill, _kill, _stop]
    if site.clocks is not None:
        faults.append(_move_clock)
    if site.disk.is_mount():
        faults.append(_fill_disk)
    if site.servers is not None:
        faults.append(_cut_off)
    if _servers_of(site):
        faults += [_end_server, _stop_server]
    if site.is_real and real_api_servers():
        faults += [_stop_api_server, _stop_api_server]
    return faults


def _member(site: Site, chance: random.Random) -> Member | None:
    members = [member for driver in site.drivers for member in _members_of(site, driver)]
    return one_of([*members, *site.replica.members()], chance)


def _members_of(site: Site, driver: Driver) -> list[Member]:
    return driver.members(site.kind == "none" or driver.says_it_leads())


def _kill(site: Site, chance: random.Random) -> Struck | None:
    member = _member(site, chance)
    if member is None:
        return None
    member.send(signal.SIGKILL)
    return Struck("killed", member.kind)


def _stop(site: Site, chance: random.Random) -> Struck | None:
    member = _member(site, chance)
    if member is None:
        return None
    member.send(signal.SIGSTOP)
    return Struck("stopped and went on", member.kind, _LONGER_THAN_THE_LEASE, lambda: member.send(signal.SIGCONT))


def _name_of(site: Site, driver: Driver) -> str:
    return "driver" if site.kind == "none" or driver.says_it_leads() else "standby's driver"


def _move_clock(site: Site, chance: random.Random) -> Struck | None:
    of_drivers = [_members_of(site, driver) for driver in site.drivers]
    others = [*site.replica.members(), *servers()]
    first = one_of([*(member for members in of_drivers for member in members), *others], chance)
    if first is None or site.clocks is None:
        return None
    machine = next((members for members in of_drivers if first in members and chance.random() < 0.3), None)
    seconds = chance.randrange(-_HOURS, _HOURS)
    for member in machine or [first]:
        site.clocks.move(member.pid, seconds)
    return Struck("clock moved", f"{machine[0].kind} and all it started" if machine else first.kind, 3.0)


def _cut_off(site: Site, chance: random.Random) -> Struck:
    driver = chance.choice(site.drivers)
    name, route = _name_of(site, driver), site.routes[driver.number]
    is_silent = chance.random() < 0.5
    for proxy in route:
        if is_silent:
            proxy.stall()
        else:
            proxy.cut()

    def mend() -> None:
        for proxy in route:
            proxy.mend()

    return Struck("cut off in silence" if is_silent else "cut off", name, _LONGER_THAN_THE_LEASE, mend)


def _fill_disk(site: Site, chance: random.Random) -> Struck:
    ballast = site.disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return Struck("disk full", "all", chance.uniform(1, 5), lambda: Path.unlink(ballast))


def _servers_of(site: Site) -> list[Any]:
    """Those that this process has started."""
    if isinstance(site.servers, ZooKeeperEnsemble):
        return list(site.servers.servers)
    return [] if site.servers is None or site.servers.server is None else [site.servers.server]


def _end_server(site: Site, chance: random.Random) -> Struck:
    server = chance.choice(_servers_of(site))
    if isinstance(site.servers, ZooKeeperEnsemble):
        server.kill()
        return Struck("killed", "server", _LONGER_THAN_THE_LEASE, server.start)
    server.stop()
    return Struck("killed", "server", _LONGER_THAN_THE_LEASE, server.restart)


def _stop_server(site: Site, chance: random.Random) -> Struck:
    server = chance.choice(_servers_of(site))
    if isinstance(site.servers, ZooKeeperEnsemble):
        server.suspend()
    else:
        server.pause()
    return Struck("stopped and went on", "server", _LONGER_THAN_THE_LEASE, server.resume)


def _stop_api_server(site: Site, chance: random.Random) -> Struck:
    server = chance.choice(real_api_servers())
    server.send(signal.SIGSTOP)
    seconds = _LONGER_THAN_THE_LEASE
    return Struck("stopped and went on", server.kind, seconds, lambda: server.send(signal.SIGCONT))
