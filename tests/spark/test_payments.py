"""`make demo-kafka` and `make demo-realtime`, small: payments through Kafka, a kill, and plain Python judges."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.kafka import require_jars
from tests.stories.process import ROOT
from tests.stories.spark import needs_real_time

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(900)]


def run_demo(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / "payments" / name, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def test_the_demo_is_killed_in_the_middle_and_each_payment_is_written_once(tmp_path: Path) -> None:
    require_jars()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    small = ["--payments", "4000", "--query-port", str(port), "--work", str(tmp_path / "work")]
    done = run_demo("demo.py", *small)
    assert done.returncode == 0, done.stdout
    assert "was killed with SIGKILL" in done.stdout and "5. Everything against plain Python\n  equal: " in done.stdout


@needs_real_time
def test_the_demo_in_real_time_loses_no_payment_when_a_worker_is_killed(tmp_path: Path) -> None:
    require_jars()
    small = ["--payments", "1500", "--rate", "200", "--work", str(tmp_path / "work")]
    done = run_demo("demo_realtime.py", *small)
    assert done.returncode == 0, done.stdout
    assert "was killed with SIGKILL" in done.stdout and "  nothing was lost: " in done.stdout
    assert "restarts in" in (tmp_path / "work" / "job.log").read_text(), "it was a worker of the job"
    assert "before the kill: " in done.stdout and " ms" in done.stdout
