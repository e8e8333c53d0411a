"""The log of a program that does not configure logging: lines on standard error, in the form of Spark's own log."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, TextIO

from holdfast.errors import ConfigurationError

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_LEVEL: Final = "HOLDFAST_LOG_LEVEL"
_OURS: Final = "holdfast"


def log_level() -> str:
    """Return the level of the package's log: HOLDFAST_LOG_LEVEL, by default INFO.

    Raises:
        ConfigurationError: There is no such level.
    """
    level = os.environ.get(LOG_LEVEL, "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigurationError(f"HOLDFAST_LOG_LEVEL: {level!r} is not one of DEBUG, INFO, WARNING, ERROR.")
    return level


class DefaultHandler(logging.StreamHandler[TextIO]):
    """Writes to the current standard error. Removes itself once the program configures logging."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            remove_default_handler()
            return
        self.stream = sys.stderr
        super().emit(record)


def install_default_handler() -> None:
    """Show the package's log, unless the program has configured logging. Other loggers are not changed.

    Raises:
        ConfigurationError: HOLDFAST_LOG_LEVEL is not a level.
    """
    level = log_level()
    if not _is_configured():
        logger = logging.getLogger(_OURS)
        logger.addHandler(DefaultHandler())
        logger.setLevel(level)


def remove_default_handler() -> None:
    logger = logging.getLogger(_OURS)
    for handler in [handler for handler in logger.handlers if isinstance(handler, DefaultHandler)]:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def _is_configured() -> bool:
    """Return whether the root logger has a handler, or one of our loggers a handler (also our own) or a level."""
    root = logging.getLogger()
    known = [(name, logger) for name, logger in root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    ours = [logger for name, logger in known if name == _OURS or name.startswith(f"{_OURS}.")]
    return bool(root.handlers) or any(logger.handlers or logger.level != logging.NOTSET for logger in ours)
