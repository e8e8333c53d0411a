import errno
import os
import signal
import subprocess
import sys

import pytest

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.fault import AnswerLostError, FaultInjectedError


@pytest.fixture(autouse=True)
def no_faults_left_behind():
    fault.clear()
    yield
    fault.clear()


def run(point: str = "run.write") -> list[str]:
    done = []
    with fault.point(point):
        done.append("wrote")
    return done


def test_nothing_happens_unless_set():
    assert run() == ["wrote"]
    assert fault.arrivals("run.write") == 0


def test_before_strikes_before_and_after_strikes_after_the_operation():
    for moment, expected in [("before", []), ("after", ["wrote"])]:
        fault.install(f"{moment}:run.write=raise")
        done = []
        with pytest.raises(FaultInjectedError), fault.point("run.write"):
            done.append("wrote")
        assert done == expected


def test_a_lost_answer_comes_after_the_operation_and_is_told_apart():
    fault.install("lost:pointer.write=raise")
    done = []
    with pytest.raises(AnswerLostError), fault.point("pointer.write"):
        done.append("wrote")
    assert done == ["wrote"]
    assert issubclass(AnswerLostError, FaultInjectedError) and issubclass(FaultInjectedError, HoldfastError)


def test_only_the_nth_arrival_is_struck():
    fault.install("before:run.write:2=raise")
    assert run() == ["wrote"]
    with pytest.raises(FaultInjectedError):
        run()
    assert run() == ["wrote"]
    assert fault.arrivals("run.write") == 3


def test_faults_of_other_points_do_not_strike():
    fault.install("before:notify=raise, after:sink.commit:1=enospc")
    assert run() == ["wrote"]
    with pytest.raises(OSError) as caught:
        run("sink.commit")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(FaultInjectedError):
        run("notify")


def test_the_operations_own_error_is_not_hidden():
    fault.install("after:run.write=raise")
    with pytest.raises(ZeroDivisionError), fault.point("run.write"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "spec",
    ["run.write=kill", "before:run.write", "before:nowhere=raise", "before:run.write:0=raise", "x:run.write=kill"],
)
def test_a_wrong_specification_is_refused(spec):
    with pytest.raises(ConfigurationError, match="HOLDFAST_FAULT"):
        fault.install(spec)


def test_kill_ends_the_process_at_once():
    program = """
from holdfast.kernel import fault
for n in range(3):
    print("arrived", n, flush=True)
    with fault.point("run.write"):
        print("wrote", n, flush=True)
"""
    environment = os.environ | {"HOLDFAST_FAULT": "before:run.write:2=kill"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split("\n")[:3] == ["arrived 0", "wrote 0", "arrived 1"]
