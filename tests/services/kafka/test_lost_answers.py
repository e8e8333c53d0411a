"""Answers that are lost in the middle of a commit, and a broker that dies there: each row is there once, in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.datastream.connectors.kafka.markers import parse_marker
from holdfast.errors import StorageError
from holdfast.testing import KafkaServer
from holdfast.testing.leader_election_contract import eventually
from holdfast.testing.sink_contract import SinkStage
from tests.services.kafka.test_kafka_sink import INCARNATION, sink
from tests.stories.kafka import PATIENCE, make_topic, messages, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

WORDS: Final = ("kelp", "rock")
"""Of subtask 0 and 1."""

PRODUCE, BEGIN_PRODUCER, OPEN, END = 0, 22, 24, 26
"""Numbers of requests in Kafka's protocol; 24 adds partitions to a transaction, 26 commits it."""

numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture
def output(broker: KafkaServer, tmp_path: Path) -> Iterator[Output]:
    yield Output(broker, tmp_path)
    broker.proxy.mend()


class Output:
    """A sink of two subtasks that reaches its topic, of one partition, through the proxy of the broker."""

    def __init__(self, broker: KafkaServer, place: Path) -> None:
        self._servers = broker.bootstrap_servers
        self._topic = f"lost-{next(numbers)}"
        make_topic(self._servers, self._topic, partitions=1)
        made = sink(broker.proxy.address, self._topic, request_timeout_ms=4000)
        self.job = SinkStage(made, place, incarnation=INCARNATION)
        self.job.prepare()
        self._last = 0

    def stage(self) -> list[Any]:
        """The next epoch: three rows of each subtask."""
        self._last += 1
        rows = [[(word, 10 * self._last + n) for n in range(3)] for word in WORDS]
        return [entry for shard, own in enumerate(rows) for entry in self.job.write(self._last, own, shard)]

    def rows(self) -> list[Any]:
        """What readers of committed records see now."""
        return [json.loads(message.value()) for message in self._committed(self._topic)]

    def require_each_row_once(self) -> None:
        """The rows of each subtask are there in order, and one marker for each of its epochs."""
        epochs = range(1, self._last + 1)
        # A broker answers that a transaction is committed before readers see it.
        eventually(lambda: len(self.rows()) >= 3 * len(WORDS) * self._last, "the rows of the last epoch")
        rows = self.rows()
        markers = [parse_marker(m.key(), m.value()) for m in self._committed(f"commits-{self._topic}")]
        for shard, word in enumerate(WORDS):
            assert [n for seen, n in rows if seen == word] == [10 * epoch + n for epoch in epochs for n in range(3)]
            assert [marker[1] for marker in markers if marker and marker[0][2] == shard] == list(epochs)

    def _committed(self, topic: str) -> Any:
        return messages(self._servers, topic)


def request(key: int, number: int = 1, *, of_markers: bool = False) -> Callable[[bytes], bool]:
    """Finds the request that is the `number`th of its kind."""
    left = iter(range(number - 1, -1, -1))

    def is_said(data: bytes) -> bool:
        while len(data) >= 6:
            size = 4 + int.from_bytes(data[:4], "big")
            is_of_markers = b"commits-" in data[:size]
            if int.from_bytes(data[4:6], "big") == key and (key != PRODUCE or is_of_markers == of_markers):
                return next(left) == 0
            data = data[size:]
        return False

    return is_said


REQUESTS: Final = {
    "the start of a producer": (BEGIN_PRODUCER, 2),
    "the opening of a transaction": (OPEN, 1),
    "rows": (PRODUCE, 1),
    "a marker": (PRODUCE, 2),
    "the first commit": (END, 1),
    "the last commit": (END, 2),
}


def found(name: str) -> Callable[[bytes], bool]:
    return request(*REQUESTS[name], of_markers=name == "a marker")


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_that_is_lost_is_asked_for_again(broker: KafkaServer, output: Output, name: str) -> None:
    lost = threading.Event()
    output.job.commit(output.stage())
    broker.proxy.lose_answer_to(found(name), lost.set)
    committables = output.stage()
    output.job.commit(committables)
    assert lost.is_set()
    output.job.commit(committables, is_recovered=True)
    output.job.commit(output.stage())
    output.require_each_row_once()


@pytest.mark.parametrize(
    ("name", "committed"), [("a marker", (0, 1)), ("the first commit", (0, 1)), ("the last commit", (2,))]
)
def test_a_process_that_never_gets_the_answer_leaves_the_epoch_to_the_next_one(
    broker: KafkaServer, output: Output, name: str, committed: tuple[int, ...]
) -> None:
    """Readers see what is committed up to the first row of a transaction that is open: if that of the other subtask
    began before the one that was committed first, they see nothing of the epoch.
    """
    output.job.commit(output.stage())
    broker.proxy.lose_answer_to(found(name), broker.proxy.lose_answers)
    committables = output.stage()
    with closing(output.job.committing(retries=0)) as deaf, pytest.raises(StorageError):
        deaf.commit(1, {"out": committables})
    broker.proxy.mend()
    eventually(
        lambda: sum([word, 20] in output.rows() for word in WORDS) in committed, "what was done and not told is there"
    )
    output.job.commit(committables, is_recovered=True)
    output.job.commit(output.stage())
    output.require_each_row_once()


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("a marker", "before"),
        ("the first commit", "before"),
        ("the first commit", "after"),
        ("the last commit", "after"),
    ],
)
def test_a_broker_that_is_killed_in_a_transaction_shows_it_once(
    broker: KafkaServer, output: Output, name: str, moment: str
) -> None:
    """Before it knows of the request, or when it has answered and nobody has heard it."""
    serves_again = threading.Event()

    def die() -> None:
        broker.restart()
        serves_again.set()

    with closing(output.job.committing()) as committing:
        committing.commit(1, {"out": output.stage()})
        (broker.proxy.before_request if moment == "before" else broker.proxy.lose_answer_to)(found(name), die)
        committables = output.stage()
        committing.commit(2, {"out": committables})
        assert serves_again.wait(PATIENCE)
        committing.commit(3, {"out": output.stage()})
    output.job.commit(committables, is_recovered=True)
    output.require_each_row_once()


def test_a_broker_that_is_away_for_longer_than_a_request_lasts_costs_tries_and_not_the_job(
    broker: KafkaServer, output: Output
) -> None:
    """A request ends after 4 seconds; nothing answers to the first question, which epoch is the last one, in 13."""
    with closing(output.job.committing()) as committing:
        committing.commit(1, {"out": output.stage()})
        committables = output.stage()
        broker.proxy.cut()
        back = threading.Timer(13, broker.proxy.mend)
        back.start()
        committing.commit(2, {"out": committables})
        back.join()
        committing.commit(3, {"out": output.stage()})
    output.require_each_row_once()
