"""What happens to a job: each fault strikes one member, lasts for a while, and is mended."""

from __future__ import annotations

import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.chaos.api_server import ApiServer
from tests.chaos.members import Driver, Member, busiest, one_of, real_api_servers, zookeeper_servers
from tests.chaos.site import LEASE, Site

_LONGER_THAN_THE_LEASE: Final = LEASE * 1.5
_HOURS: Final = 3 * 3600
_MOMENT: Final = 0.05


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
    mend: Callable[[], object] = lambda: None


_Fault = Callable[[], Struck | None]


class Faults:
    """Deals the faults that a site can have: all have struck before any does again, each whom it has struck least.

    Args:
        site: Whom they strike.
        chance: Decides about the rest.
    """

    def __init__(self, site: Site, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        self._to_come: list[_Fault] = []
        self._met: dict[str, Counter[str]] = defaultdict(Counter)

    def strike(self) -> Struck | None:
        """Let one of them strike; None if there was nobody to strike."""
        if not self._to_come:
            self._to_come = self._possible()
            self._chance.shuffle(self._to_come)
        fault = self._to_come.pop()
        struck = fault()
        if struck is None:
            self._to_come.insert(0, fault)
        else:
            self._met[struck.fault][struck.member] += 1
        return struck

    def _possible(self) -> list[_Fault]:
        site = self._site
        faults: list[_Fault] = [self._kill, self._kill, self._stop]
        if site.is_real_time:
            faults.append(self._kill_busy)
        if site.disk.is_mount():
            faults.append(self._fill_disk)
        if site.clocks is not None:
            faults.append(self._move_clock)
        if site.servers is not None:
            faults += [partial(self._cut_off, in_silence=False), partial(self._cut_off, in_silence=True)]
        if _servers_of(site):
            faults += [self._kill_server, self._stop_server]
            if site.clocks is not None:
                faults.append(self._move_clock_of_server)
        if site.is_real and real_api_servers():
            faults += [self._stop_real_server, self._stop_real_server]
        return faults

    def _member(self, fault: str) -> Member | None:
        members = [member for driver in self._site.drivers for member in self._members_of(driver)]
        return one_of([*members, *self._site.replica.members()], self._chance, self._met[fault])

    def _members_of(self, driver: Driver) -> list[Member]:
        return driver.members(self._site.leads(driver))

    def _kill(self) -> Struck | None:
        member = self._member("killed")
        if member is None:
            return None
        member.send(signal.SIGKILL)
        return Struck("killed", member.kind)

    def _kill_busy(self) -> Struck | None:
        """Kill the worker that works most; in real time all workers live as long as the job, and most of them wait."""
        members = [member for driver in self._site.drivers for member in self._members_of(driver)]
        member = busiest([member for member in members if member.kind == "worker"], _MOMENT)
        if member is None:
            return None
        member.send(signal.SIGKILL)
        return Struck("killed", "busy worker")

    def _stop(self) -> Struck | None:
        member = self._member("stopped and continued")
        return None if member is None else _stopped(member)

    def _move_clock(self) -> Struck | None:
        first = self._member("clock moved")
        if first is None:
            return None
        of_drivers = map(self._members_of, self._site.drivers)
        machine = next((members for members in of_drivers if first in members and self._chance.random() < 0.3), None)
        named = f"{machine[0].kind} and its processes" if machine else first.kind
        return self._moved(named, machine or [first])

    def _move_clock_of_server(self) -> Struck:
        double = self._site.api_server
        servers = zookeeper_servers() if double is None else [Member("server", double.pid)]
        return self._moved("server", [self._chance.choice(servers)])

    def _moved(self, named: str, members: Sequence[Member]) -> Struck:
        assert self._site.clocks is not None
        seconds = self._chance.randrange(-_HOURS, _HOURS)
        for member in members:
            self._site.clocks.move(member.pid, seconds)
        return Struck("clock moved", named, 3.0)

    def _cut_off(self, in_silence: bool) -> Struck:
        driver = self._chance.choice(self._site.drivers)
        route = self._site.routes[driver.number]
        for proxy in route:
            if in_silence:
                proxy.stall()
            else:
                proxy.cut()

        def mend() -> None:
            for proxy in route:
                proxy.mend()

        named = "driver" if self._site.leads(driver) else "standby's driver"
        return Struck("data dropped" if in_silence else "connections reset", named, _LONGER_THAN_THE_LEASE, mend)

    def _fill_disk(self) -> Struck:
        ballast = self._site.disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        return Struck("disk full", "all", self._chance.uniform(1, 5), ballast.unlink)

    def _kill_server(self) -> Struck:
        server = self._chance.choice(_servers_of(self._site))
        server.kill()
        return Struck("killed", "server", _LONGER_THAN_THE_LEASE, server.start)

    def _stop_server(self) -> Struck:
        server = self._chance.choice(_servers_of(self._site))
        server.suspend()
        return Struck("stopped and continued", "server", _LONGER_THAN_THE_LEASE, server.resume)

    def _stop_real_server(self) -> Struck:
        return _stopped(self._chance.choice(real_api_servers()))


def _stopped(member: Member) -> Struck:
    member.send(signal.SIGSTOP)
    return Struck("stopped and continued", member.kind, _LONGER_THAN_THE_LEASE, lambda: member.send(signal.SIGCONT))


def _servers_of(site: Site) -> Sequence[ZooKeeperServer | ApiServer]:
    """Those that this process has started."""
    if isinstance(site.servers, ZooKeeperEnsemble):
        return site.servers.servers
    return [] if site.api_server is None else [site.api_server]
