"""The process that compacts: plans come in as lines of JSON, results go out as lines of JSON.

Two plans of each priority run at a time, so that small merges do not wait for a large one. Urgent plans have the
priority of the driver; on a busy host the others may take minutes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, Final

import pyarrow as pa

from holdfast.errors import HoldfastError, MissingClassError
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import CompactionPlan
from holdfast.state.run_file import forget_runs
from holdfast.storage.object_store import REQUESTS
from holdfast.storage.scheme import file_system_for

_NICE: Final = 10
_AT_ONCE: Final = 2


def main() -> None:
    """Run plans until the input ends; the argument is the file descriptor of the results."""
    with os.fdopen(int(sys.argv[1]), "wb") as answers:
        # Arrow's own allocator takes several milliseconds now and then, which is as long as most merges.
        pa.set_memory_pool(pa.system_memory_pool())
        urgent = ThreadPoolExecutor(_AT_ONCE, "holdfast-compaction")
        others = ThreadPoolExecutor(_AT_ONCE, "holdfast-compaction-low", _lower_priority)
        lock = threading.Lock()
        for line in sys.stdin.buffer:
            request = json.loads(line)
            pool = urgent if request["plan"].get("is_urgent") else others
            pool.submit(_carry_out, request, answers, lock)
        for pool in (urgent, others):
            pool.shutdown(cancel_futures=True)


def _lower_priority() -> None:
    """Lower the priority of this thread; only on Linux, where each thread has its own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _carry_out(request: dict[str, Any], answers: BinaryIO, lock: threading.Lock) -> None:
    answer = {"id": request["id"], **_answer(request["plan"]), "requests": REQUESTS.take()}
    with lock, suppress(BrokenPipeError):  # the driver has ended
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _answer(described: dict[str, Any]) -> dict[str, Any]:
    try:
        plan = CompactionPlan.from_json(described)
        runs = compact(plan, file_system_for(plan.root))
    except MissingClassError as error:
        # Classes of the user's script exist only in the driver.
        return {"error": str(error), "missing": True}
    except HoldfastError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001 - the driver gets it; the process serves further compactions
        return {"error": repr(error)}
    finally:
        # Inputs are deleted soon, and a mapped file keeps its disk space.
        forget_runs()
    return {"runs": [run.to_json() for run in runs]}


if __name__ == "__main__":
    main()
