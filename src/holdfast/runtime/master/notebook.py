"""Jobs in the kernel of a notebook: where we are, how something is shown that changes, and which job a cell means.

IPython is looked at where it runs, and never imported: it is no dependency.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
_REFRESH_SECONDS: Final = 1.0
_SESSION: Final = "JPY_SESSION_NAME"


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return hasattr(_shell(), "kernel")


class NotebookNames:
    """The names of jobs that were given none: a cell that is run again means the job that it meant before.

    A cell is known by the id that the notebook sends, else by what is in it.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._execution: Any = None
        self._number = 0

    def next(self, base: str | None = None) -> str:
        """Return the name of the next job of the cell that runs now.

        Args:
            base: What names are made of; None for the name of the notebook's file.
        """
        shell = _shell()
        execution = getattr(shell, "execution_count", None)
        self._number = self._number + 1 if execution == self._execution else 1
        self._execution = execution
        key = (_cell(shell), self._number)
        if key not in self._names:
            base = base or Path(os.environ.get(_SESSION, "")).stem or "notebook"
            taken = set(self._names.values())
            number, name = 1, base
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            self._names[key] = name
        return self._names[key]


def show(bundle: Callable[[], Mapping[str, str]], over: threading.Event) -> None:
    """Show something in the cell that runs now, and again every second until it is over. Does not block.

    Args:
        bundle: What is shown, by media type.
        over: Set when it changes no more.
    """
    display = sys.modules["IPython"].display.display
    handle = display(bundle(), raw=True, display_id=True)

    def refresh() -> None:
        shown = bundle()
        while True:
            is_over = over.wait(_REFRESH_SECONDS)
            current = bundle()
            if current != shown:
                shown = current
                try:
                    handle.update(shown, raw=True)
                except Exception as error:  # the notebook is gone; the job is not
                    _log.debug("a job is not shown any more: %r", error)
                    return
            if is_over:
                return

    threading.Thread(target=refresh, name="holdfast-notebook", daemon=True).start()


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _cell(shell: Any) -> str:
    try:
        told = shell.get_parent().get("metadata", {})
        found = told.get("cellId") or told.get("cell_id")
    except (AttributeError, TypeError):
        found = None
    if found:
        return f"id {found}"
    history = getattr(shell, "history_manager", None)
    inputs = getattr(history, "input_hist_raw", None) or [""]
    return f"text {str(inputs[-1]).strip()}"
