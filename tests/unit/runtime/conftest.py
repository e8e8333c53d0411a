"""Where the jobs of these stories live."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel import fault
from holdfast.runtime.task import worker_process
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: these jobs die by exceptions only, so fsync proves nothing here."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-story-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def _a_process_that_knows_nothing() -> Iterator[None]:
    """Each story begins as in a new process and leaves no fault behind."""
    yield
    fault.clear()
    worker_process.unload_all()
    STATE_CACHE.clear()
    forget_runs()
