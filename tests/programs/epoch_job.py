"""The ledger on the epoch runner: a whole job in one process without a JVM, for stories that kill it."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.testing.epoch_runner import LocalEngine, run_job
from tests.stories import ledger


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--accounts", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    payments = ledger.payments(arguments.epochs, arguments.rows, arguments.accounts, arguments.seed)
    options = {"restart-strategy.type": "none", "execution.checkpointing.cleaner.grace-period": "0 ms"}
    options.update(dict(option.split("=", 1) for option in arguments.options))
    graph = ledger.graph(arguments.output, two_stages=arguments.stages == 2)
    engine = LocalEngine(ledger.inputs(payments))
    parallelism = arguments.parallelism
    master = run_job(graph, arguments.checkpoints, engine, options, name="ledger", parallelism=parallelism)
    print(master.run().value)


if __name__ == "__main__":
    main()
