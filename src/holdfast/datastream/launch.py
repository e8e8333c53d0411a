"""Options from outside the program: what `holdfast run -D key=value` sets reaches every environment through here.

They win over what the program sets, and the log names what they replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.option import is_secret

logger = logging.getLogger(__name__)

_from_outside = Configuration()


@contextmanager
def launching(options: Configuration) -> Iterator[None]:
    """Runs a program with options that win over its own."""
    global _from_outside
    before, _from_outside = _from_outside, options.clone()
    try:
        yield
    finally:
        _from_outside = before


def with_options_from_outside(program: Configuration) -> Configuration:
    """The program's configuration with the options from outside over it; logs each value that was replaced."""
    combined, replaced = _from_outside.overriding(program)
    for key, value in sorted(replaced.items()):
        shown = "..." if is_secret(key) else value
        logger.info("option %s: the program's value %r is replaced from the command line", key, shown)
    return combined
