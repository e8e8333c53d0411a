"""`make chaos`: rounds with a job under one kind of high availability, and a table of what they met.

The API server of Kubernetes is a double, unless HOLDFAST_TEST_KUBECONFIG names a real one: `scripts/real_api_server.py`
makes one, and runs a command beside it.
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

from tests.chaos.rounds import run_rounds
from tests.chaos.site import KINDS


def main() -> int:
    """What is typed on a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after how many no round begins")
    parser.add_argument("--seed", type=int, default=None, help="by default a random one, which is printed")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end all that was started
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    for kind in KINDS if arguments.kind == "all" else (arguments.kind,):
        print(f"{kind}: seed {seed}", file=sys.stderr, flush=True)
        directory = Path(mkdtemp(prefix="chaos-"))  # which stays when something is wrong
        print(f"in {directory}", file=sys.stderr, flush=True)
        print(run_rounds(kind, arguments.rounds, seed, directory, arguments.minutes), flush=True)
        rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
