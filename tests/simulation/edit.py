"""Puts another line into a method."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any


def edited(owner: type, name: str, before: str, after: str) -> tuple[type, str, Any]:
    """Return what is to be patched: the class, the name, and the method with other text in it.

    Raises:
        AssertionError: The method does not have the text.
    """
    found = vars(owner)[name]
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function))
    assert before in source, f"{owner.__name__}.{name} has no {before!r} any more: the bug has to follow"
    made: dict[str, Any] = {}
    program = f"from __future__ import annotations\n{source.replace(before, after, 1)}"
    exec(program, vars(sys.modules[owner.__module__]), made)
    return owner, name, made[name]
