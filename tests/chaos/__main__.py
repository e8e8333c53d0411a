"""`make chaos`: rounds with a job under each kind of high availability, and the tables of what they met.

    python -m tests.chaos --rounds 48 --seed 71 --results runs.jsonl
    python -m tests.chaos --kind zookeeper --rounds 24 --results runs.jsonl
    python -m tests.chaos --real-time --kind none --rounds 50 --seed 1 --results runs.jsonl
    python -m tests.chaos --one-worker --kind none --rounds 50 --seed 1 --results runs.jsonl
    python -m tests.chaos --tables runs.jsonl

The first runs 48 rounds of each kind by epochs, the second 24 more of one, the third 50 of a job in real time, and the
fourth 50 of one whose tasks share a worker. All add what they have met to a file, of which the last prints the tables
as benchmarks/results/chaos.md has them. What
cannot be done here (filling a disk takes the right to mount one, and moving clocks a C compiler) is said at the start,
and below the tables.

The API server of Kubernetes is a double, in a process of its own, unless HOLDFAST_TEST_KUBECONFIG names a real one:
`scripts/real_api_server.py` makes one, and runs a command beside it.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from tests.chaos.rounds import Report, run_rounds, tables
from tests.chaos.site import EPOCHS, KINDS, ONE_WORKER, REAL_TIME


def main() -> int:
    """What is typed on a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all", help="by default all, one after the other")
    parser.add_argument("--rounds", type=int, default=50, help="of each kind, 50 by default")
    parser.add_argument("--real-time", action="store_true", help="the job runs in real time, and not by epochs")
    parser.add_argument("--one-worker", action="store_true", help="in real time, with one task of each stage")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after how many no round of a kind begins")
    parser.add_argument("--seed", type=int, default=None, help="by default a random one, which is printed")
    parser.add_argument("--results", type=Path, metavar="FILE", help="to which a line is added after each kind")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="run nothing, and print the tables of such a file")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(tables([Report.from_json(line) for line in arguments.tables.read_text().splitlines()]))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end all that was started
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    engine = ONE_WORKER if arguments.one_worker else REAL_TIME if arguments.real_time else EPOCHS
    reports = []
    for kind in KINDS if arguments.kind == "all" else (arguments.kind,):
        print(f"{kind}, {engine}: seed {seed}", file=sys.stderr, flush=True)
        directory = Path(mkdtemp(prefix="chaos-"))  # which stays when something is wrong
        print(f"in {directory}", file=sys.stderr, flush=True)
        reports.append(run_rounds(kind, arguments.rounds, seed, directory, arguments.minutes, engine))
        print(reports[-1], file=sys.stderr, flush=True)
        if arguments.results is not None:
            with arguments.results.open("a") as results:
                results.write(f"{reports[-1].to_json()}\n")
        rmtree(directory)
    print(tables(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
