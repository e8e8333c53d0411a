"""What a program logs that says nothing about logging: as Spark's own log, lines on standard error."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, TextIO

from holdfast.errors import ConfigurationError

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OURS: Final = "holdfast"


def log_level() -> str:
    """The level at which the package logs: HOLDFAST_LOG_LEVEL, INFO if it is not set.

    Raises:
        ConfigurationError: There is no such level.
    """
    level = os.environ.get("HOLDFAST_LOG_LEVEL", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigurationError(f"HOLDFAST_LOG_LEVEL: {level!r} is none of DEBUG, INFO, WARNING, ERROR.")
    return level


class DefaultHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time, until the program configures logging itself; then it goes."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless the program has handlers by now."""
        if logging.getLogger().handlers:
            remove_default_handler()
            return
        self.stream = sys.stderr
        super().emit(record)


def install_default_handler() -> None:
    """Show the log of the package, unless the program has configured anything; nothing else is touched.

    Raises:
        ConfigurationError: HOLDFAST_LOG_LEVEL is no level.
    """
    level = log_level()
    if not _is_configured():
        logger = logging.getLogger(_OURS)
        logger.addHandler(DefaultHandler())
        logger.setLevel(level)


def remove_default_handler() -> None:
    """Leave the log of the package to the program."""
    logger = logging.getLogger(_OURS)
    for handler in [handler for handler in logger.handlers if isinstance(handler, DefaultHandler)]:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def _is_configured() -> bool:
    """Whether there are handlers, or levels, of anybody for what we log; our own handler counts too."""
    root = logging.getLogger()
    known = [(name, logger) for name, logger in root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    ours = [logger for name, logger in known if name == _OURS or name.startswith(f"{_OURS}.")]
    return bool(root.handlers) or any(logger.handlers or logger.level != logging.NOTSET for logger in ours)
