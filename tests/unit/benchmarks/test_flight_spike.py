"""The spike of Arrow Flight still fits the code that it measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# In a process of its own: who forks after gRPC was used may hang, and other tests fork.
BOTH = """
import os
import sys
from pathlib import Path
import benchmarks.flight.spike, benchmarks.flight.stories
from benchmarks.flight.wire import JOB, STATE, FlightServer, FlightWire, our_server, value_of, write_state
from holdfast.queryable import QueryableStateClient

keys = [f"key-{number:08d}" for number in range(300)]
write_state(Path(sys.argv[1]), keys)
server, directory, register = our_server(sys.argv[1])
flying = FlightServer(server.serve_job(directory, register), None, None)
theirs = FlightWire(flying.port)
exchanged = theirs.exchange()
with QueryableStateClient(*server.get_server_address()) as ours:
    for key in keys[::50]:
        own = ours.get_kv_state(JOB, STATE, key).value
        assert own == theirs.get(key) == exchanged(key)
        assert {name: own[name] for name in value_of(key)} == value_of(key)
    assert list(ours.get_many(JOB, STATE, keys).values) == list(theirs.many(keys))
    assert ours.scan(JOB, STATE).to_table().num_rows == theirs.scan() == 300
print("the same answers", flush=True)
os._exit(0)  # a server of Flight does not let its process end while an exchange is open
"""


def test_both_wires_give_the_same_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOTH, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "the same answers", done.stderr
