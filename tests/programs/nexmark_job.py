"""A query of Nexmark on the epoch runner, in a process of its own, for stories that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.nexmark.queries import QUERIES
from tests.stories import nexmark


def main() -> None:
    name, folder, checkpoints, output = sys.argv[1:]
    query = QUERIES[name]
    program = nexmark.program_of(query, Path(output))
    print(program.run(checkpoints, nexmark.inputs_of(query, Path(folder)), is_bounded=True).value)


if __name__ == "__main__":
    main()
