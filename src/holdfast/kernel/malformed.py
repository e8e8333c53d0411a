"""What it raises in Python to read something that has not the form that it should have."""

from __future__ import annotations

import struct
from typing import Any, Final

MALFORMED: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""A field that is missing, of another type, without bounds, or nested too deeply: readers of what came from outside
turn these into an error that names where it came from."""

DEEPEST: Final = 100


def require_shallow(document: Any) -> None:
    """Make sure that JSON is not nested so deeply that going through it would end the stack.

    Raises:
        ValueError: It is.
    """
    level, depth = [document], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} times")
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level, depth = [part for parts in inner for part in parts], depth + 1
