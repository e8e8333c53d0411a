"""A query of Nexmark on the epoch runner, in a process of its own, for stories that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.nexmark.queries import QUERIES
from holdfast.kernel.clock import ManualClock
from tests.stories import nexmark


def main() -> None:
    name, folder, checkpoints, output = sys.argv[1:]
    query = QUERIES[name]
    program = nexmark.program_of(query, Path(output))
    inputs, clock = nexmark.inputs_of(query, Path(folder)), ManualClock(0)
    program.run(checkpoints, inputs, clock=clock)
    clock.advance(10_000)  # windows of processing time end here, those of event time with the last event
    print(program.run(checkpoints, [*inputs, dict.fromkeys(query.inputs, ())], clock=clock, is_bounded=True).value)


if __name__ == "__main__":
    main()
