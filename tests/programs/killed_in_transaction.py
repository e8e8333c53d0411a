"""Runs a program whose driver dies in a transaction of Kafka, when rows and marker are there and nothing is committed.

python -m tests.programs.killed_in_transaction NUMBER_OF_THE_TRANSACTION PROGRAM ARGUMENTS...
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from holdfast.datastream.connectors.kafka.kafka_committer import ShardProducer


def main() -> None:
    last, program, *arguments = sys.argv[1:]
    commit, seen = ShardProducer.commit, 0

    def commit_or_die(producer: ShardProducer) -> None:
        nonlocal seen
        seen += 1
        if seen == int(last):
            producer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(producer)

    ShardProducer.commit = commit_or_die  # type: ignore[method-assign]
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
