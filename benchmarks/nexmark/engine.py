"""What every engine of Nexmark answers to, and the process that each of them has: it stays warm from query to query.

python -m benchmarks.nexmark.engine ENGINE SETTINGS_AS_JSON

Only the standard library is imported here: engines that live in an environment of their own read it too.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Protocol

PARALLELISM = 2
CHECKPOINTS = "10 s"
"""Between two of them, of each engine that makes them by time."""


@dataclass(frozen=True)
class Settings:
    """Where an engine reads and writes.

    Attributes:
        folder: The events, as `files.events_on_disk` makes them.
        workspace: Directory of this engine alone.
        cache: Directory that is kept, with the environments of engines that need one.
        results: Directory to which an engine writes what a query finds, as Parquet, one directory a query; dropped
            unless given.
    """

    folder: str
    workspace: str
    cache: str
    results: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Engine(Protocol):
    """Runs queries, one after the other."""

    def run(self, query: str) -> None:
        """Runs a query over all events; blocks until its last row is out."""

    def close(self) -> None:
        """Ends everything that it started."""


def engine_module(name: str) -> ModuleType:
    """The module of an engine: `make_engine(settings)`, `QUERIES`, and perhaps `interpreter(cache)`."""
    return importlib.import_module(f"benchmarks.nexmark.engines.{name.replace('-', '_')}")


def main() -> int:
    name, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    # The engines' own chatter, the JVM's included, must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = engine_module(name).make_engine(settings)
    try:
        for line in sys.stdin:
            started = time.monotonic()
            try:
                engine.run(line.strip())
                answer: dict[str, object] = {"seconds": time.monotonic() - started}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
            answers.write(json.dumps(answer) + "\n")
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
