"""The process of one engine: it reads a number of epochs from its input and answers with the seconds of each.

python -m benchmarks.harness.engine_process ENGINE WORKLOAD_AS_JSON
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.harness.workload import Workload, engine_module


def main() -> int:
    name, workload = sys.argv[1], Workload.from_json(sys.argv[2])
    # The engines' own chatter, the JVM's included, must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = engine_module(name).make_engine(workload)
    try:
        for line in sys.stdin:
            answers.write(json.dumps(list(engine.run(int(line)))) + "\n")
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
