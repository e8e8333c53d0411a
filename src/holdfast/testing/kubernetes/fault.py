"""What may go wrong between a client and the API server double, on order.

A fault waits for the requests that it describes and hits the next `times` of them. What a client sees in each case is
what it sees of a real cluster: a connection that breaks, an answer that never comes, a 5xx of a proxy.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass


class FaultKind(enum.Enum):
    """Where the fault strikes."""

    DROP_BEFORE = "drop-before"
    """The connection breaks and nothing has happened."""
    DROP_AFTER = "drop-after"
    """The connection breaks after the write was applied."""
    HANG_BEFORE = "hang-before"
    """No answer ever comes and nothing has happened."""
    HANG_AFTER = "hang-after"
    """No answer ever comes although the write was applied."""
    LATE = "late"
    """The connection breaks at once, and the request is carried out `seconds` later."""
    DELAY = "delay"
    """Everything works, `seconds` late."""
    ERROR_BEFORE = "error-before"
    """The status `code` is answered and nothing has happened."""
    ERROR_AFTER = "error-after"
    """The status `code` is answered although the write was applied."""


@dataclass
class Fault:
    """One order.

    Attributes:
        kind: what happens.
        verb: get, list, watch, create, update, patch, delete, deletecollection; any if empty.
        resource: the plural of a type; any if empty.
        name: the name of an object; any if empty.
        times: how many requests are hit.
        skip: how many are let pass before.
        seconds: the length of a delay.
        code: the status code of an error.
    """

    kind: FaultKind
    verb: str = ""
    resource: str = ""
    name: str = ""
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    code: int = 503

    def wants(self, verb: str, resource: str, name: str) -> bool:
        """Whether this request is one of those described."""
        return self.verb in ("", verb) and self.resource in ("", resource) and self.name in ("", name)


class Faults:
    """The orders that are open. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Order a fault."""
        with self._lock:
            self._orders.append(fault)

    def clear(self) -> None:
        """Forget all orders."""
        with self._lock:
            self._orders.clear()

    @property
    def pending(self) -> int:
        """How many orders have not been used up."""
        with self._lock:
            return len(self._orders)

    def take(self, verb: str, resource: str, name: str) -> Fault | None:
        """The fault that hits this request, if one does."""
        with self._lock:
            for fault in self._orders:
                if fault.wants(verb, resource, name):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    if fault.times <= 0:
                        self._orders.remove(fault)
                    return fault
        return None
