"""What goes wrong, and when: drawn at each call of the simulated system."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.simulation.world import World

_DECISIVE = frozenset({"link", "rename", "swap"})
"""Calls by which something becomes true; they meet more than their share."""
_WEIGHT = 4
_WHILE_IT_WAITS = 10
_ARRIVAL = 0.05
_OUTAGE = 0.5
_OUTAGE_STEPS = 8
_KINDS = (
    (re.compile(r"quorum"), "quorum"),
    (re.compile(r"/register/\.?v-"), "register"),
    (re.compile(r"/register"), "register directory"),
    (re.compile(r"_metadata"), "document"),
    (re.compile(r"\.nonce"), "nonce"),
    (re.compile(r"\.run"), "run"),
    (re.compile(r"\.staged"), "staged file"),
    (re.compile(r"/part-"), "output file"),
    (re.compile(r"\.(begun|done)"), "ledger"),
    (re.compile(r"/identity"), "identity"),
    (re.compile(r"^target"), "target"),
    (re.compile(r"/savepoints"), "savepoint"),
)
UNKNOWN_ERRORS = (errno.EIO, errno.ETIMEDOUT, errno.ESTALE)
REPEATED = {
    "link": errno.EEXIST,
    "mkdir": errno.EEXIST,
    "unlink": errno.ENOENT,
    "rmdir": errno.ENOENT,
    "swap": errno.EEXIST,
}
"""What a call is answered that is asked twice because its first answer was lost."""


def kind_of(path: str) -> str:
    """What a file is, by its path."""
    return next((kind for pattern, kind in _KINDS if pattern.search(path)), "directory" if path else "file")


@dataclass
class Climate:
    """How often something goes wrong in a history, by call; zero is never.

    Attributes:
        switch: Another actor goes on.
        error: A call fails, and nothing has happened.
        full: A write finds the disk full.
        lost: A call happens, and its answer is lost.
        late: A call is answered with an error, and happens later.
        repeated: A call is asked twice; the answer is that to the second.
        crash: The process dies, before or after the call.
        power: The power fails for everybody.
        pause: The process stops for a while.
        jump: The clock of the process jumps.
    """

    switch: float = 0.0
    error: float = 0.0
    full: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    crash: float = 0.0
    power: float = 0.0
    pause: float = 0.0
    jump: float = 0.0

    @cached_property
    def total(self) -> float:
        """How often anything happens."""
        return float(sum(getattr(self, name) for name in EVENTS))


EVENTS = ("switch", "error", "full", "lost", "late", "repeated", "crash", "power", "pause", "jump")


@dataclass
class Weather:
    """The weather of a history.

    Args:
        world: The world.
        climate: How often what happens.
        lose_power: Called when the power fails.
    """

    world: World
    climate: Climate
    lose_power: Callable[[], None]
    is_calm: bool = False
    late: list[Callable[[], None]] = field(default_factory=list)
    _outage_of: Any = None
    _outage_ends: int = 0

    def before_read(self, call: str, path: str) -> None:
        """A call that changes nothing."""
        event = self._event(call, path)
        if event in ("error", "lost", "late"):
            self._meet("read error", call, path)
            raise self._unknown()

    def around(self, call: str, path: str, do: Callable[[], Any], seen: Callable[[], None]) -> Any:
        """A call that changes something.

        Args:
            call: Its name.
            path: Of what.
            do: Does it.
            seen: Called when it was done.
        """
        event = self._event(call, path, _WEIGHT if call in _DECISIVE else 1)
        if event == "error":
            self._meet("error", call, path)
            raise self._unknown()
        if event == "full" and call in ("create", "fsync", "mkdir", "link"):
            self._meet("disk full", call, path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if event == "late" and call != "create" and not call.startswith("fsync"):
            self._meet("late", call, path)
            self.late.append(self._later(do, seen, f"{call} {path}"))
            if self.world.choices.below(2):
                self._crash("crash before a late arrival", call, path)
            raise self._unknown()
        result = do()
        seen()
        if event == "lost" and call != "create":
            self._meet("lost answer", call, path)
            raise self._unknown()
        if event == "repeated" and call in REPEATED:
            self._meet("repeated", call, path)
            raise OSError(REPEATED[call], os.strerror(REPEATED[call]))
        if event == "crash after":
            self._crash("crash after", call, path)
        return result

    def at(self, point: str) -> None:
        """A point where an actor waits for something else than a file."""
        if self._event(point, "") in ("error", "lost", "late"):
            self._meet("error", point, "")
            raise self._unknown()

    def slow_target(self) -> None:
        """A sink waits for its target for so long that others go on, and that its process may die meanwhile."""
        world = self.world
        world.note("slow target: sink")
        world.block(None, (0.1, 0.03, 0.5, 3.0)[world.choices.below(4)])
        if not self.is_calm and world.choices.chance(_WHILE_IT_WAITS * self.climate.crash):
            self._crash("crash before", "wait", "target")

    def _event(self, call: str, path: str, weight: int = 1) -> str:
        world = self.world
        what = f"{call} {path}"
        world.tick(what)
        actor = world.current
        assert actor is not None
        if self.late and world.choices.chance(_ARRIVAL):
            self.late.pop(world.choices.below(len(self.late)))()
        if self.is_calm:
            if world.choices.chance(self.climate.switch):
                world.switch()
            return ""
        climate = self.climate
        if world.steps < self._outage_ends and actor.process is self._outage_of and world.choices.chance(_OUTAGE):
            return "error"
        if not world.choices.chance(weight * climate.total):
            return ""
        event = self._which()
        if event in ("error", "lost", "late") and world.choices.below(3):
            world.met["outage: process"] += 1
            self._outage_of, self._outage_ends = actor.process, world.steps + _OUTAGE_STEPS
        if event == "switch" or (actor.process.is_safe and event != "power"):
            world.switch()
            return ""
        if event == "power":
            self._meet("power failure", call, path)
            self.lose_power()
            world.require_life()
        elif event == "crash":
            if world.choices.below(2):
                return "crash after"
            self._crash("crash before", call, path)
        elif event == "pause":
            self._meet("pause", call, path)
            actor.process.paused_until = int(world.now) + 10 ** (1 + world.choices.below(4)) * 3
            world.switch()
            return ""
        elif event == "jump":
            self._meet("clock jump", call, path)
            actor.process.wall_offset += (1, -1)[world.choices.below(2)] * 10 ** (2 + world.choices.below(6))
            return ""
        return event

    def _which(self) -> str:
        draw = self.world.choices.below(1000) / 1000 * self.climate.total
        for name in EVENTS:
            draw -= getattr(self.climate, name)
            if draw < 0:
                return name
        return "switch"

    def _crash(self, moment: str, call: str, path: str) -> None:
        self._meet(moment, call, path)
        actor = self.world.current
        assert actor is not None
        actor.process.kill()
        self.world.require_life()

    def _meet(self, what: str, call: str, path: str) -> None:
        self.world.note(f"{what}: {call} {kind_of(path)} @ {path}")

    def _unknown(self) -> OSError:
        number = UNKNOWN_ERRORS[self.world.choices.below(len(UNKNOWN_ERRORS))]
        return OSError(number, os.strerror(number))

    def _later(self, do: Callable[[], Any], seen: Callable[[], None], what: str) -> Callable[[], None]:
        sender = self.world.current

        def happen() -> None:
            self.world.on_behalf = sender
            try:
                do()
                self.world.note(f"late arrival @ {what}")
                seen()
            except OSError:
                return
            finally:
                self.world.on_behalf = None

        return happen
