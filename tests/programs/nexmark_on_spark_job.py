"""A query of Nexmark on Spark, in a process of its own, for stories that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.nexmark.engines.holdfast import start
from benchmarks.nexmark.queries import QUERIES
from holdfast.datastream import ParquetFileSink
from tests.programs.session import session_of


def main() -> None:
    name, folder, checkpoints, output = sys.argv[1:]
    every_epoch = {"execution.checkpointing.interval": "0 ms"}
    start(session_of(), QUERIES[name], Path(folder), Path(checkpoints), ParquetFileSink(output), every_epoch)


if __name__ == "__main__":
    main()
