"""Fault points: places where a test can make the process die, fail, hang or lose an answer.

The environment sets them, so that processes started by others can fail as well::

    HOLDFAST_FAULT=<before|after|lost>:<point>[:n]=<kill|raise|hang|enospc>[,more]

`before` strikes before the guarded operation, `after` when it has ended. `lost` lets it happen and loses its answer:
`raise` and `enospc` then raise `AnswerLostError`, `kill` and `hang` do what they say. With ``n`` only the n-th arrival
at the point in this process is struck, counted from 1; without it every arrival is. Inert, and nearly free, when
nothing is set.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NoReturn

from holdfast.errors import ConfigurationError, HoldfastError

VARIABLE: Final = "HOLDFAST_FAULT"
POINTS: Final = frozenset(
    {
        "run.write",
        "metadata.write",
        "pointer.write",
        "sink.stage",
        "sink.write",
        "sink.commit",
        "notify",
        "subsume.delete",
        "source.copy",
        "spark.commit",
        "rescale.write",
    }
)
_MOMENTS: Final = ("before", "after", "lost")
_ACTIONS: Final = ("kill", "raise", "hang", "enospc")


class FaultInjectedError(HoldfastError):
    """A fault point was set to fail here."""


class AnswerLostError(FaultInjectedError):
    """The operation happened, and a fault point discarded its answer."""


@dataclass(frozen=True, slots=True)
class _Fault:
    moment: str
    point: str
    arrival: int | None
    action: str

    def strike(self) -> None:
        """Perform the action; return only by raising an error."""
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action in ("kill", "hang"):
            _hang()
        if self.moment == "lost":
            raise AnswerLostError(f"Fault injected: the answer of {self.point!r} was lost ({VARIABLE}).")
        if self.action == "enospc":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise FaultInjectedError(f"Fault injected {self.moment} {self.point!r} ({VARIABLE}).")


class _Inert:
    """The guard while no faults are set."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _Armed:
    """The guard of one arrival while faults are set."""

    __slots__ = ("_faults",)

    def __init__(self, faults: list[_Fault]) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        for fault in self._faults:
            if fault.moment == "before":
                fault.strike()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for fault in self._faults:
                if fault.moment != "before":
                    fault.strike()


_INERT: Final = _Inert()
_lock = threading.Lock()
_faults: list[_Fault] = []
_arrivals: dict[str, int] = {}


def point(name: str) -> _Inert | _Armed:
    """Return the context manager that guards one operation. Arrivals are counted only while faults are set."""
    if not _faults:
        return _INERT
    with _lock:
        count = _arrivals.get(name, 0) + 1
        _arrivals[name] = count
    return _Armed([fault for fault in _faults if fault.point == name and fault.arrival in (None, count)])


def install(spec: str) -> None:
    """Set the faults of this process in place of earlier ones, and restart the count of arrivals.

    Raises:
        ConfigurationError: The text does not have the form in the module's docstring.
    """
    parsed = [_parse(item.strip()) for item in spec.split(",") if item.strip()]
    with _lock:
        _faults[:] = parsed
        _arrivals.clear()


def clear() -> None:
    install("")


def arrivals(name: str) -> int:
    """Return how often this process arrived at a point since faults were set."""
    with _lock:
        return _arrivals.get(name, 0)


def _parse(item: str) -> _Fault:
    head, _, action = item.partition("=")
    moment, _, rest = head.partition(":")
    name, _, number = rest.partition(":")
    if moment not in _MOMENTS or action not in _ACTIONS or name not in POINTS:
        raise ConfigurationError(
            f"{VARIABLE}: {item!r} is not <{'|'.join(_MOMENTS)}>:<point>[:n]=<{'|'.join(_ACTIONS)}> "
            f"with a point of {sorted(POINTS)!r}."
        )
    if number and (not number.isdecimal() or int(number) < 1):
        raise ConfigurationError(f"{VARIABLE}: in {item!r} the arrival must be a whole number from 1, not {number!r}.")
    return _Fault(moment, name, int(number) if number else None, action)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


install(os.environ.get(VARIABLE, ""))
