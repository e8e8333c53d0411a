"""`make chaos`: rounds with a job under one kind of high availability, and a table of what they met."""

from __future__ import annotations

import argparse
import random
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.rounds import run_rounds
from tests.chaos.site import KINDS


def main() -> int:
    """What is typed on a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="by default a random one, which is printed")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end all that was started
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    for kind in KINDS if arguments.kind == "all" else (arguments.kind,):
        print(f"{kind}: seed {seed}", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="chaos-") as directory:
            print(run_rounds(kind, arguments.rounds, seed, Path(directory)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
