"""Real processes on one register, killed at random: what was answered is never lost, and nobody writes deposed."""

import random
import signal
import subprocess
import sys
import time

from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister

LEADER = """
import sys, random
from dataclasses import replace
from holdfast.errors import FencedError, ConflictError
from holdfast.storage.register import FileRegister
from holdfast.storage.scheme import LocalFileSystem
from holdfast.storage.register import CheckpointPointer

directory, name = sys.argv[1:]
register = FileRegister(LocalFileSystem(), directory)
rng = random.Random(name)
while True:
    try:
        writer = register.raise_token(name)
        for _ in range(rng.randrange(1, 100)):
            number = writer.state.next_checkpoint_id
            def change(state):
                pointer = CheckpointPointer(number, f"chk-{number}", 1, name, writer.token)
                return replace(state, checkpoints=(*state.checkpoints, pointer), next_checkpoint_id=number + 1)
            writer.write(change)
            print(number, writer.token, flush=True)
    except FencedError:
        pass
    except ConflictError:
        pass
"""


def answers(logs):
    """How many writes were answered."""
    return sum(log.read_bytes().count(b"\n") for log in logs)


WRITES_A_LIFE = 15
"""So many answers come between two kills, however long they take: what is judged is the register, not the machine."""


def test_processes_that_fight_and_die_lose_nothing(tmp_path):
    directory = str(tmp_path / "register")
    rng = random.Random(7)
    logs, running = [], []

    def start(number):
        log = tmp_path / f"log-{number}"
        logs.append(log)
        with log.open("wb") as out:
            running.append(subprocess.Popen([sys.executable, "-c", LEADER, directory, f"p{number}"], stdout=out))

    def let_them_write():
        wanted = answers(logs) + rng.randrange(1, 2 * WRITES_A_LIFE)
        until = time.monotonic() + 240
        while answers(logs) < wanted:
            assert time.monotonic() < until and all(process.poll() is None for process in running), "nobody writes"
            time.sleep(0.01)

    for number in range(3):
        start(number)
    for number in range(3, 9):
        let_them_write()
        victim = running.pop(rng.randrange(len(running)))
        victim.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        victim.wait()
        start(number)
    for process in running:
        process.send_signal(signal.SIGSTOP)
    woken = running.pop()
    woken.send_signal(signal.SIGCONT)
    running, asleep = [woken], running
    let_them_write()
    for process in (*asleep, woken):
        process.kill()
        process.wait()

    state = FileRegister(LocalFileSystem(), directory).read()
    recorded = {pointer.checkpoint_id: pointer.token for pointer in state.checkpoints}
    answered = {}
    for log in logs:
        for line in log.read_text().split("\n")[:-1]:
            number, token = line.split()
            assert int(number) not in answered, "two writers were answered for one id"
            answered[int(number)] = int(token)
    assert answered.items() <= recorded.items()
    unanswered = recorded.keys() - answered.keys()
    assert len(unanswered) <= 9, "only a write that was cut off by a kill may be recorded without an answer"
    tokens = [pointer.token for pointer in state.checkpoints]
    assert tokens == sorted(tokens)
    assert [pointer.checkpoint_id for pointer in state.checkpoints] == list(range(1, len(recorded) + 1))
    writer = FileRegister(LocalFileSystem(), directory).raise_token("after")
    assert writer.token == state.token + 1
    versions = list((tmp_path / "register").glob("v-*"))
    assert len(versions) <= 65, versions
