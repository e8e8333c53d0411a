"""Bugs that are put into the real code, one at a time: the simulator must find each of them.

Each is a function that says what to patch, and its docstring what is wrong then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.bugs import epochs, files, leftovers, real_time, register

BUGS: Final[dict[str, Callable[[], Iterator[tuple[Any, str, Any]]]]] = {
    name.replace("_", " "): function
    for module in (register, epochs, files, leftovers, real_time)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__
}

WITH_REAL_TASKS: Final = frozenset({"replica keeps what it has"})
"""Bugs in code that only histories with the real tasks run."""
IN_REAL_TIME: Final = frozenset(name for name, function in BUGS.items() if function.__module__ == real_time.__name__)
"""Bugs in code that only histories in real time run."""


@contextmanager
def bug(name: str) -> Iterator[None]:
    """The code with one bug."""
    with ExitStack() as stack:
        for place, attribute, value in BUGS[name]():
            stack.enter_context(patch.object(place, attribute, value))
        yield


def descriptions() -> dict[str, str]:
    """What each bug does."""
    return {name: (inspect.getdoc(function) or "").splitlines()[0] for name, function in BUGS.items()}
