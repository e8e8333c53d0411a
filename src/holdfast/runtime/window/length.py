"""Lengths of time, as programs give them to windows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.errors import ConfigurationError


def milliseconds(length: Any, what: str, *, least: int | None = None) -> int:
    """Whole milliseconds of a length of time.

    Args:
        length: `Time.seconds(5)`, a `timedelta`, or a number of milliseconds.
        what: Whose length it is, for the message.
        least: The least that it can be; None for any.

    Raises:
        ConfigurationError: It is no length of time, or less.
    """
    found: Any = length
    if isinstance(length, timedelta):
        found = length // timedelta(milliseconds=1)
    elif hasattr(length, "to_milliseconds"):
        found = length.to_milliseconds()
    if isinstance(found, bool) or not isinstance(found, int):
        raise ConfigurationError(
            f"{what} is a length of time, for instance Time.seconds(10), or whole milliseconds, not {length!r}."
        )
    if least is not None and found < least:
        raise ConfigurationError(f"{what} is at least {least} ms, not {found} ms.")
    return found
