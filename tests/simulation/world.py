"""The world of a simulation: actors of which one runs at a time, and a time that nobody else moves.

Each actor is a thread, because the code that is judged blocks; but a thread runs only while it has the baton, and hands
it on at switch points alone: each call of the simulated system, each wait. Who gets it is drawn. So a seed owns every
interleaving, and no lock of the operating system decides anything.
"""

from __future__ import annotations

import atexit
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from tests.simulation.choices import Choices

START_MS = 1_700_000_000_000
_STEP_LIMIT = 30_000
_WAIT_LIMIT = 100_000


class Killed(BaseException):
    """Raised in an actor whose process is dead, at whatever it calls."""


class Process:
    """What dies together: the threads and the memory of one process.

    Attributes:
        wall_offset: How far its clock is from the time of the world, in milliseconds.
        paused_until: Until when it is stopped, as by SIGSTOP.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.wall_offset = 0
        self.paused_until = 0
        self.memory: dict[str, Any] = {}
        self.is_safe = False

    def kill(self) -> None:
        """The process is dead; its actors learn of it at their next call."""
        self.is_dead = True


class Actor:
    """One thread of a process."""

    def __init__(self, world: World, process: Process, name: str, body: Callable[[], Any]) -> None:
        self.world, self.process, self.name, self.body = world, process, name, body
        self.baton = threading.Lock()
        self.baton.acquire()
        self.until: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def is_ready(self) -> bool:
        """Whether it could run now."""
        process = self.process
        if process.is_dead:
            return True
        now = self.world.now
        if process.paused_until > now:
            return False
        if self.until is None and self.deadline is None:
            return True
        if self.deadline is not None and self.deadline <= now:
            return True
        return self.until is not None and self.until()


class World:
    """All that there is.

    Args:
        choices: What decides.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = START_MS
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.on_behalf: Actor | None = None
        self.failure: str | None = None
        self.is_over = False
        self.steps = self.waits = 0
        self.met: Counter[str] = Counter()
        self.events: list[tuple[float, str, str]] = []
        self.signature = 0
        self.outside = Process(self, "outside")
        self.outside.is_safe = True
        self._home = threading.Lock()
        self._home.acquire()
        self._nonces = 0
        self.memory: dict[str, Any] = {}

    # Actors

    def spawn(self, process: Process, name: str, body: Callable[[], Any]) -> Actor:
        """A new actor; it runs when it is chosen."""
        actor = Actor(self, process, name, body)
        self.actors.append(actor)
        _carriers.carry(lambda: self._live(actor))
        return actor

    def run(self) -> None:
        """Runs until no actor is left."""
        if self.actors:
            self._choose().baton.release()
            self._home.acquire()

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        self.current = actor
        try:
            if not actor.process.is_dead and not self.is_over:
                actor.result = actor.body()
        except BaseException as error:  # whatever it was, the next one runs
            actor.error = error
        actor.is_done = True
        self.actors.remove(actor)
        # Frames of the dead keep everything alive.
        if actor.error is not None:
            actor.error.__traceback__ = None
        if self.actors:
            self._choose().baton.release()
        else:
            self.current = None
            self._home.release()

    def _choose(self) -> Actor:
        """Who runs next."""
        if self.is_over:
            return self.actors[0]
        while True:
            dead = next((one for one in self.actors if one.process.is_dead), None)
            if dead is not None:
                return dead
            ready = [one for one in self.actors if one.is_ready()]
            if ready:
                return ready[self.choices.below(len(ready)) if len(ready) > 1 else 0]
            times = [max(one.deadline, one.process.paused_until) for one in self.actors if one.deadline is not None] + [
                one.process.paused_until for one in self.actors if one.process.paused_until > self.now
            ]
            if not times:
                names = [f"{one.process.name}/{one.name}" for one in self.actors]
                self.failure = self.failure or f"nobody can go on: {names}"
                self.is_over = True
                return self.actors[0]
            self.now = max(self.now, min(times))

    def switch(self) -> None:
        """Hands the baton to whoever is drawn, perhaps to the caller again."""
        me = self.current
        assert me is not None
        chosen = self._choose()
        if chosen is not me:
            chosen.baton.release()
            me.baton.acquire()
            self.current = me
        self.require_life()

    def require_life(self) -> None:
        """Ends the current actor if its process is dead, or the world.

        Raises:
            Killed: It is.
        """
        if self.is_over or (self.current is not None and self.current.process.is_dead):
            raise Killed

    def block(self, until: Callable[[], bool] | None, seconds: float | None) -> bool:
        """Lets others run until something holds, or some time has passed; returns whether it holds."""
        me = self.current
        if me is None:
            return until is None or until()
        self.require_life()
        self.count_wait()
        me.until = until
        me.deadline = None if seconds is None else self.now + max(0.0, 1000 * seconds)
        try:
            self.switch()
        finally:
            me.until = me.deadline = None
        return until is None or until()

    def count_wait(self) -> None:
        """Counts a wait.

        Raises:
            Killed: There were too many.
        """
        self.waits += 1
        if self.waits > _WAIT_LIMIT:
            self.fail(f"after {self.waits} waits there is no end")

    # What happens

    def tick(self, what: str) -> None:
        """Counts a step; time goes on a little.

        Raises:
            Killed: Whoever does this is dead.
        """
        self.require_life()
        self.steps += 1
        self.now += 1
        actor = self.current
        self.signature = hash_of(self.signature, what)
        self.events.append((self.now, "" if actor is None else actor.process.name, what))
        if self.steps > _STEP_LIMIT:
            self.fail(f"after {self.steps} steps there is no end")

    def note(self, what: str) -> None:
        """Remembers that something special has happened."""
        self.met[what.partition(" @ ")[0]] += 1
        self.signature = hash_of(self.signature, what)
        actor = self.current
        self.events.append((self.now, "" if actor is None else actor.process.name, f"*** {what}"))

    def fail(self, what: str) -> NoReturn:
        """An auditor has found something: the world ends.

        Raises:
            Killed: Always.
        """
        if self.failure is None:
            self.failure = what
            self.events.append((self.now, "", f"!!! {what}"))
        self.is_over = True
        raise Killed

    def nonce(self, digits: int) -> str:
        """What nobody else draws; the same in each run of a seed."""
        self._nonces += 1
        mixed = (self._nonces * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128)
        return f"{mixed:032x}"[:digits]


def hash_of(before: int, what: str) -> int:
    """A hash that is the same in every process."""
    return zlib.crc32(what.encode(), before)


class _Carriers:
    """Threads that carry one actor after the other, because making them costs."""

    def __init__(self) -> None:
        self._idle: list[_Carrier] = []

    def carry(self, body: Callable[[], None]) -> None:
        carrier = self._idle.pop() if self._idle else _Carrier(self)
        carrier.load(body)

    def rest(self, carrier: _Carrier) -> None:
        self._idle.append(carrier)

    def end(self) -> None:
        """End the threads, so that none is left when the interpreter ends."""
        while self._idle:
            self._idle.pop().end()


class _Carrier:
    def __init__(self, home: _Carriers) -> None:
        self._home = home
        self._loaded = threading.Lock()
        self._loaded.acquire()
        self._body: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="simulation")
        self._thread.start()

    def load(self, body: Callable[[], None]) -> None:
        self._body = body
        self._loaded.release()

    def end(self) -> None:
        self._loaded.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._loaded.acquire()
            body, self._body = self._body, None
            if body is None:
                return
            body()
            self._home.rest(self)


_carriers = _Carriers()
atexit.register(_carriers.end)
