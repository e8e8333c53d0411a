"""Reads are of completed checkpoints, all_key_groups and in order, while checkpoints complete and a job is restored."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.kernel.clock import ManualClock
from holdfast.queryable import at_least, exactly, newest
from holdfast.queryable.replica import checkpoint_view
from holdfast.queryable.replica.follower import CheckpointFollower
from holdfast.queryable.server.server import all_key_groups
from holdfast.queryable.wire.errors import (
    BadRequestError,
    CheckpointNotAvailableError,
    QueryTimeoutError,
    ServerFailureError,
    UnknownKvStateLocationError,
)
from holdfast.state.descriptor import ListStateDescriptor, ValueStateDescriptor
from tests.programs.written_job import WrittenJob
from tests.unit.queryable.live_job import until

KEYS = [f"account-{i}" for i in range(20)]
TOTAL = 1000 * len(KEYS)


def bank(root, **more):
    """Accounts whose sum never changes between two epochs, and a list of all epochs for each."""
    balance, history = ValueStateDescriptor("balance", "bigint"), ListStateDescriptor("history", "bigint")
    balance.set_queryable("balance")
    history.set_queryable("history")
    return WrittenJob(root, [balance, history], name="bank", **more)


class Books:
    """Writes epochs of transfers, and remembers what each checkpoint must say."""

    def __init__(self, job, seed=0):
        self.job = job
        self.random = random.Random(seed)
        self.accounts = dict.fromkeys(KEYS, 1000)
        self.of = {}
        self.lineages = []

    def write(self, transfers=30):
        for _ in range(transfers):
            a, b = self.random.sample(KEYS, 2)
            amount = self.random.randint(1, 50)
            self.accounts[a] -= amount
            self.accounts[b] += amount
        epoch = self.job.epoch + 1

        def of(amount):
            def write(states):
                states.balance.update(amount)
                states.history.add(epoch)

            return write

        self.job.epoch_of([(key, of(amount)) for key, amount in self.accounts.items()])
        # Remembered before anybody can see it.
        self.of[self.job.writer.state.next_checkpoint_id] = (self.job.incarnation, dict(self.accounts))
        return self.job.complete()


class Reader(threading.Thread):
    """Reads until it is stopped, and notes what no reader may see."""

    def __init__(self, client, books, read):
        super().__init__(daemon=True)
        self.client, self.books, self.read = client, books, read
        self.stopping = threading.Event()
        self.reads, self.wrong, self.lineages = 0, [], []
        self.last = 0

    def run(self):
        try:
            while not self.stopping.is_set():
                self.check(*self.read(self.client))
        except Exception as error:
            self.wrong.append(repr(error))

    def check(self, checkpoint_id, lineage, found):
        self.reads += 1
        expected_lineage, accounts = self.books.of[checkpoint_id]
        if found != {key: accounts[key] for key in found} or lineage != expected_lineage:
            self.wrong.append(("not that checkpoint", checkpoint_id, found))
        if checkpoint_id < self.last:
            self.wrong.append(("went back", self.last, checkpoint_id))
        self.last = checkpoint_id
        if lineage not in self.lineages:
            self.lineages.append(lineage)

    def end(self):
        self.stopping.set()
        self.join()


def read_many(client):
    found = client.get_many("bank", "balance", KEYS)
    if sum(found.values) != TOTAL:
        return found.checkpoint_id, found.lineage, {"sum": sum(found.values)}
    return found.checkpoint_id, found.lineage, found.as_dict()


def read_one(client):
    key = random.choice(KEYS)
    found = client.get_kv_state("bank", "balance", key)
    return found.checkpoint_id, found.lineage, {key: found.value}


def read_by_scan(client):
    scan = client.scan("bank", "balance", batch_rows=3)
    rows = scan.to_table().to_pylist()
    assert len(rows) == len(KEYS)
    return scan.origin.checkpoint_id, scan.origin.lineage, {row["key"]: row["value"] for row in rows}


def test_readers_see_exactly_completed_checkpoints_while_they_complete_and_after_a_restore(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    server = bench.server(books.job)
    readers = [Reader(bench.client(server), books, read) for read in (read_many, read_one, read_by_scan, read_many)]
    for reader in readers:
        reader.start()

    for _ in range(15):
        earlier = books.job.runs, dict(books.accounts)
        last = books.write()
    for _ in range(3):
        books.write()
    # Another leader goes back to what was before the last four.
    runs, books.accounts = earlier
    books.job.restore(runs)
    for _ in range(15):
        last = books.write()
    until(lambda: all(reader.wrong or (reader.reads > 10 and reader.last == last) for reader in readers))
    for reader in readers:
        reader.end()

    assert [reader.wrong for reader in readers] == [[], [], [], []]
    assert all(len(reader.lineages) <= 2 and reader.lineages[-1] == books.job.incarnation for reader in readers)


def test_runs_that_the_restored_job_left_behind_are_never_seen(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    kept = books.job.runs
    books.write()
    client = bench.client(bench.server(books.job))
    books.job.restore(kept)
    last = books.write()
    history = client.get_kv_state("bank", "history", KEYS[3], consistency=at_least(last)).value
    assert history == [1, 3]


def test_one_reads_ones_own_writes_with_at_least(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    client = bench.client(bench.server(books.job))
    for _ in range(5):
        number = books.write()
        found = client.get_many("bank", "balance", KEYS, consistency=at_least(number))
        assert found.checkpoint_id == number
        assert found.as_dict() == books.accounts


def test_at_least_waits_for_the_first_checkpoint_too(tmp_path, bench):
    books = Books(bank(tmp_path))
    server = bench.server(books.job)
    with ThreadPoolExecutor(3) as pool:
        one, other = bench.client(server), bench.client(server)
        asked = [
            pool.submit(one.get_many, "bank", "balance", KEYS, consistency=at_least(1)),
            pool.submit(lambda: list(other.scan("bank", "balance", consistency=at_least(1)))),
        ]
        time.sleep(0.2)
        assert not any(answer.done() for answer in asked)
        books.write()
        assert asked[0].result(10).as_dict() == books.accounts
        assert sum(batch.num_rows for batch in asked[1].result(10)) == len(KEYS)
    with pytest.raises(UnknownKvStateLocationError, match="Registered are: 'balance', 'history'"):
        bench.client(server).get_kv_state("bank", "nobody", KEYS[0], consistency=at_least(1))


def test_waiting_for_the_first_checkpoint_ends_with_the_deadline(tmp_path, bench):
    client = bench.client(bench.server(Books(bank(tmp_path)).job))
    with pytest.raises(QueryTimeoutError, match="the newest is none"):
        client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(1), deadline=0.05)


def test_waiting_ends_with_the_deadline(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    client = bench.client(bench.server(books.job))
    with pytest.raises(QueryTimeoutError, match=r"Checkpoint 50 of job .* the newest is 1"):
        client.get_many("bank", "balance", KEYS, consistency=at_least(50), deadline=0.05)
    assert client.get_kv_state("bank", "balance", KEYS[0], consistency=newest()).checkpoint_id == 1


def test_exactly_reads_what_is_retained_and_says_what_is_not(tmp_path, bench):
    books = Books(bank(tmp_path, retained=2))
    for _ in range(4):
        last = books.write()
    client = bench.client(bench.server(books.job))
    for number in (3, 4):
        found = client.get_many("bank", "balance", KEYS, consistency=exactly(number))
        assert found.as_dict() == books.of[number][1]
    for number in (2, 5):
        with pytest.raises(CheckpointNotAvailableError, match=r"Available are: \[3, 4\]"):
            client.get_many("bank", "balance", KEYS, consistency=exactly(number))
    client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(books.write()))
    with pytest.raises(CheckpointNotAvailableError):
        client.get_many("bank", "balance", KEYS, consistency=exactly(last - 1))


def test_a_checkpoint_that_is_held_can_be_read_though_the_job_has_dropped_it_and_its_files(tmp_path, bench):
    books = Books(bank(tmp_path, retained=1))
    first = books.write()
    server = bench.server(books.job)
    client = bench.client(server)
    clock = ManualClock()
    server.follower(books.job.job_id).replica._clock = clock
    assert client.hold("bank", "balance", 60).checkpoint_id == first
    runs = books.job.runs
    books.job.runs = ()  # another beginning, so that the files of the first checkpoint are nobody's
    last = books.write()
    client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(last))
    for run in runs:
        Path(books.job.directory.absolute(run.path)).unlink()
    for _ in range(2):
        last = books.write()
        client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(last))
        assert client.get_many("bank", "balance", KEYS, consistency=exactly(first)).as_dict() == books.of[first][1]
        rows = client.scan("bank", "balance", consistency=exactly(first)).to_table().to_pylist()
        assert {row["key"]: row["value"] for row in rows} == books.of[first][1]
    clock.advance(61_000)
    last = books.write()
    client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(last))
    for ask in (client.get_many, lambda *_, **more: client.hold("bank", "balance", 1, **more)):
        with pytest.raises(CheckpointNotAvailableError):
            ask("bank", "balance", KEYS, consistency=exactly(first))
    with pytest.raises(BadRequestError, match="is held for 0 to 3600 seconds"):
        client.hold("bank", "balance", 1e9)


def test_a_job_without_a_checkpoint_is_not_ready_and_then_it_is(tmp_path, bench):
    books = Books(bank(tmp_path))
    client = bench.client(bench.server(books.job))
    with pytest.raises(UnknownKvStateLocationError, match=r"No KvStateLocation found .* Registered are: none"):
        client.get_kv_state("bank", "balance", KEYS[0])
    number = books.write()
    until(lambda: client.jobs() != [])
    assert client.get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == number


def test_many_epochs_are_merged_without_a_change_for_readers(tmp_path, bench):
    books = Books(bank(tmp_path))
    server = bench.server(books.job)
    for _ in range(30):
        last = books.write(transfers=3)
    client = bench.client(server)
    until(lambda: client.jobs() != [])
    found = client.get_many("bank", "balance", KEYS, consistency=at_least(last), deadline=60)
    assert found.as_dict() == books.accounts
    follower = server.follower(books.job.job_id)
    follower.merge()
    assert all(len(state.layers) <= 6 for state in follower.replica.newest.states.values())
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
    assert client.get_kv_state("bank", "history", KEYS[0]).value == list(range(1, 31))


def test_only_files_that_are_new_in_a_checkpoint_are_opened(tmp_path, bench, monkeypatch):
    opened, open_run = set(), checkpoint_view.open_run

    def counted(fs, root, handle):
        opened.add(handle.path)
        return open_run(fs, root, handle)

    monkeypatch.setattr(checkpoint_view, "open_run", counted)
    books = Books(bank(tmp_path))
    books.write()
    client = bench.client(bench.server(books.job))
    known = {run.path for run in books.job.runs}
    assert opened == known
    for _ in range(12):  # layers are merged meanwhile
        opened.clear()
        client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(books.write()))
        new = {run.path for run in books.job.runs} - known
        assert new and opened == new
        known |= new


def damage(path, position=200):
    with Path(path).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def test_readers_stay_with_the_checkpoint_before_a_damaged_one(tmp_path, bench, caplog):
    books = Books(bank(tmp_path))
    good = books.write()
    server = bench.server(books.job, poll=3600)
    client = bench.client(server)
    bad = books.write()
    damage(books.job.directory.metadata_path(bad))
    follower = server.follower(books.job.job_id)
    follower.notify()
    with pytest.raises(QueryTimeoutError):
        client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(bad), deadline=0.3)
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.of[good][1]
    assert "still answered from the checkpoint before" in caplog.text


def test_a_state_in_a_damaged_run_fails_by_name_and_never_answers_something_else(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    server = bench.server(books.job, poll=3600)
    client = bench.client(server)
    bad = books.write()
    for run in books.job.runs[2:]:
        path = books.job.directory.absolute(run.path)
        damage(path, Path(path).stat().st_size // 2 - 300)
    server.follower(books.job.job_id).notify()
    for state in ("balance", "history"):
        with pytest.raises(ServerFailureError, match=r"checkpoint 2 cannot be read: .* is damaged"):
            client.get_many("bank", state, KEYS, consistency=at_least(bad))


def test_a_job_that_has_ended_long_ago_is_looked_at_less_often(tmp_path):
    """A directory may hold hundreds of them."""
    books, clock = Books(bank(tmp_path)), ManualClock()
    books.write()
    follower = CheckpointFollower(books.job.directory, books.job.register, all_key_groups, poll=0.05, clock=clock)
    pauses = []
    for _ in range(3):
        follower.refresh()
        clock.advance(500_000)
        pauses.append(follower.poll_seconds)
    books.write()
    follower.refresh()
    assert [*pauses, follower.poll_seconds] == [0.05, 1.0, 1.0, 0.05]
    slow = CheckpointFollower(books.job.directory, books.job.register, all_key_groups, poll=5, clock=clock)
    clock.advance(700_000)
    assert slow.poll_seconds == 5


def test_a_notification_makes_a_checkpoint_visible_without_polling(tmp_path, bench):
    books = Books(bank(tmp_path))
    books.write()
    server = bench.server(books.job, poll=3600)
    client = bench.client(server)
    number = books.write()
    server.follower(books.job.job_id).notify()
    assert client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(number)).checkpoint_id == number
