"""Readers of the job of tests/programs/queried_job.py who know what every completed checkpoint must say."""

import socket
import threading
import time

from tests.programs.queried_job import ACCOUNTS, NAME, balance_after


class Witness(threading.Thread):
    """Reads until it is stopped, and notes what no reader may see.

    Args:
        client: Its own client.
        patient: Whether errors while nobody serves the job are fine.
    """

    def __init__(self, client, read, patient=()):
        super().__init__(daemon=True)
        self.client, self.read, self.patient = client, read, patient
        self.stopping = threading.Event()
        self.seen = []
        self.wrong = []
        self.reads = 0
        self.failure = None

    def run(self):
        while not self.stopping.is_set():
            try:
                origin, epochs = self.read(self.client)
                self.reads += 1
                self.note(origin, epochs)
            except self.patient as error:
                self.failure = error
                time.sleep(0.01)
            except Exception as error:
                self.wrong.append(repr(error))
                return

    def note(self, origin, epochs):
        if self.seen:
            before, epochs_before = self.seen[-1]
            if origin.checkpoint_id < before.checkpoint_id:
                self.wrong.append(("an older checkpoint", before, origin))
            if origin.lineage == before.lineage and epochs < epochs_before:
                self.wrong.append(("back without a new lineage", before, origin, epochs_before, epochs))
            if origin == before:
                if epochs != epochs_before:
                    self.wrong.append(("not what this checkpoint said before", origin, epochs_before, epochs))
                return
        self.seen.append((origin, epochs))

    @property
    def lineages(self):
        return list(dict.fromkeys(origin.lineage for origin, _ in self.seen))

    def end(self):
        self.stopping.set()
        self.join(30)


def contradictions(witnesses):
    """The checkpoints of which not all have seen the same: who saw another value saw one of no completed checkpoint."""
    said = {}
    for witness in witnesses:
        for origin, epochs in witness.seen:
            said.setdefault(origin, set()).add(epochs)
    return {origin: epochs for origin, epochs in said.items() if len(epochs) > 1}


def agreed(rows, origin):
    """All accounts must have seen the same number of epochs, and have exactly the balance of that number."""
    [epochs] = {epochs for epochs, _ in rows.values()}
    for account, (_, balance) in rows.items():
        if balance != balance_after(account, epochs):
            raise AssertionError(f"{account} has {balance} after {epochs} epochs in {origin}")
    return origin, epochs


def read_many(client):
    found = client.get_many(NAME, "balances", ACCOUNTS)
    return agreed(found.as_dict(), found.origin)


def read_one(client):
    found = client.get_kv_state(NAME, "balances", ACCOUNTS[5])
    return agreed({ACCOUNTS[5]: found.value}, found.origin)


def read_by_scan(client):
    scan = client.scan(NAME, "balances", batch_rows=5)
    rows = {row["key"]: tuple(row["value"].values()) for row in scan.to_table().to_pylist()}
    assert len(rows) == len(ACCOUNTS)
    return agreed(rows, scan.origin)


def until(condition, seconds=60, story=lambda: ""):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen. {story()}"
        time.sleep(0.01)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
