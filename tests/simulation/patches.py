"""Puts the simulated system under the real code, for as long as one history runs."""

from __future__ import annotations

import logging
import sys
import time as real_time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from holdfast.checkpoint import retention
from holdfast.datastream.sinks import output_directory
from holdfast.kernel import ids
from holdfast.runtime import compaction
from holdfast.runtime.commit import checkpointing, commit_manager
from holdfast.runtime.job import control
from holdfast.storage import local, register, versioned_document
from holdfast.storage import local as regular_file
from tests.simulation import primitives
from tests.simulation.compaction import Merge, SimulatedCompaction
from tests.simulation.posix import Posix
from tests.simulation.world import World


@contextmanager
def simulated(
    world: World,
    posix: Posix,
    merge: Merge,
    max_parallelism: int,
    sweep_every: int,
    window: int,
    before_commit: Callable[[], object],
) -> Iterator[None]:
    """The real code, with nothing of this machine under it.

    Args:
        world: The world.
        posix: Its operating system.
        merge: What the process that compacts does.
        max_parallelism: Of all operators.
        sweep_every: Checkpoints between two sweeps.
        window: How many versions of the register are kept, so that old ones are deleted in a short history too.
        before_commit: Called by a sink before it does something with its target.
    """
    threading, time = primitives.threading_of(world), primitives.time_of(world)
    with ExitStack() as stack:

        def put(place: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(place, name, value, create=True))

        for name, module in list(sys.modules.items()):
            if name.startswith("holdfast.") and getattr(module, "time", None) is real_time:
                put(module, "time", time)
        for module in (local, regular_file):
            put(module, "os", posix)
            put(module, "open", posix.open_file)
        put(local.LocalFileSystem, "mmap", lambda self, path: posix.map(path))
        put(ids, "secrets", SimpleNamespace(token_hex=lambda count: world.nonce(2 * count)))
        put(output_directory, "uuid", SimpleNamespace(uuid4=lambda: world.nonce(32)))
        put(retention, "threading", threading)
        put(retention, "ThreadPoolExecutor", lambda workers, name: primitives.SimulatedPool(world, workers))
        put(control, "threading", threading)
        put(control, "Future", Future)
        put(commit_manager, "SinkCommitThread", lambda name: primitives.SimulatedCommitThread(world, before_commit))
        put(commit_manager, "Future", lambda: primitives.SimulatedFuture(world))
        put(register, "threading", threading)
        put(compaction, "create_compaction_executor", lambda name: SimulatedCompaction(world, merge, max_parallelism))
        put(checkpointing, "SWEEP_EVERY", sweep_every)
        for module in (register, versioned_document):
            put(module, "WINDOW", window)
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
