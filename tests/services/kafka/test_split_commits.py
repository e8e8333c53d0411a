"""An epoch of a `KafkaSink` that is committed in parts: markers name the files, and readers see each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import ShardProducer
from holdfast.datastream.connectors.kafka.markers import marker_key, marker_value, parse_marker
from holdfast.datastream.sinks.staged_files import name_of
from holdfast.errors import ConfigurationError, StorageError
from holdfast.runtime.function.sink import Sink
from holdfast.testing import KafkaServer, SinkBackend
from holdfast.testing.leader_election_contract import eventually
from holdfast.testing.sink_contract import CommitContract, CommitProcess, SinkStage
from tests.services.kafka.test_kafka_sink_contract import Topic
from tests.services.kafka.test_lost_answers import END, request
from tests.stories.kafka import messages, running_broker
from tests.stories.parts import InParts, one_by_one

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

INCARNATION = "1" * 32
PARTS = 3
"""Files of an epoch: two of subtask 0, whose names are in one marker, and one of subtask 1."""

numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


class TopicInParts(Topic):
    """A topic whose sink commits the files of an epoch one by one."""

    packages = ("holdfast",)

    def new_sink(self) -> Sink:
        return InParts(super().new_sink(), one_by_one)


class Job:
    """A job whose committer gets the files of an epoch in parts."""

    def __init__(self, broker: KafkaServer, place: Path) -> None:
        self.topic = TopicInParts(broker)
        self.place = place
        self.stage = SinkStage(Topic.new_sink(self.topic), place, incarnation=INCARNATION)
        self.stage.prepare()
        self.expected: list[tuple[str, int]] = []

    def write(self, epoch: int) -> list[Any]:
        """Stage an epoch."""
        files = [("kelp", 0, 1), ("rock", 0, 2), ("sand", 1, 1)]
        entries = []
        for word, subtask, attempt in files:
            entries += self.stage.write(epoch, [(word, epoch)], subtask, attempt)
            self.expected.append((word, epoch))
        assert len({entry["value"]["file"] for entry in entries}) == PARTS
        return entries

    def commit(self, entries: Any, hand_on: Callable[..., None] = one_by_one, **settings: Any) -> None:
        stage = SinkStage(InParts(self.topic.new_sink(), hand_on), self.place, incarnation=INCARNATION)
        stage.commit(entries, **settings)

    def require_once(self, entries: Any) -> None:
        """All rows are there once, also after this epoch has been committed again; the markers name its files."""
        for _ in range(2):
            self.commit(entries, is_recovered=True)
            eventually(lambda: sorted(self.topic.rows()) == sorted(self.expected), "each row is there once")
        self.require_names(entries)

    def require_names(self, entries: Any) -> None:
        markers = [parse_marker(m.key(), m.value()) for m in messages(self.topic.direct, self.topic.marker_topic)]
        newest = {marker[0][2]: marker for marker in markers if marker is not None}
        for shard in (0, 1):
            own = [entry for entry in entries if entry["subtask"] == shard]
            assert newest[shard][1] == own[0]["epoch"]
            assert sorted(newest[shard][3]) == sorted(name_of(entry["value"]) for entry in own)


@pytest.fixture
def job(broker: KafkaServer, tmp_path: Path) -> Iterator[Job]:
    yield Job(broker, tmp_path)
    broker.proxy.mend()


def test_files_that_are_committed_one_by_one_are_all_committed(job: Job) -> None:
    for epoch in (1, 2):
        entries = job.write(epoch)
        job.commit(entries)
        job.require_names(entries)
        job.require_once(entries)


def test_a_process_that_dies_between_two_parts_leaves_the_rest_to_the_next_one(job: Job) -> None:
    for part in range(1, PARTS):

        def dying(inner: Any, requests: Any, part: int = part) -> None:
            inner.commit(requests[:part])
            raise StorageError("the process dies")

        entries = job.write(part)
        with pytest.raises(StorageError):
            job.commit(entries, dying)
        assert len(job.topic.rows()) == PARTS * (part - 1) + part
        job.require_once(entries)


class DiedError(BaseException):
    """The end of a process: nothing after it runs."""


@pytest.mark.parametrize("moment", ["dies before", "dies after", "never hears of"])
def test_names_and_rows_of_a_part_are_in_one_transaction(
    job: Job, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    real = ShardProducer.commit
    for part in range(1, PARTS + 1):
        left = [part]

        def commit(producer: ShardProducer, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] or moment != "dies before":
                real(producer)
            if not left[0]:
                raise (StorageError("no answer") if moment == "never hears of" else DiedError)

        entries = job.write(part)
        with monkeypatch.context() as patch, suppress(DiedError):
            patch.setattr(ShardProducer, "commit", commit)
            job.commit(entries)
        assert left[0] <= 0
        if moment != "never hears of":
            committed = PARTS * (part - 1) + (part if moment == "dies after" else part - 1)
            # What a process has begun that died hides what is behind it, until the next one ends it.
            seen = messages(job.topic.direct, job.topic.topic, "read_uncommitted")
            assert len(job.topic.rows()) <= committed <= len(seen)
        job.require_once(entries)


@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_a_process_that_gets_no_answer_to_the_commit_of_a_part_leaves_the_rest_to_the_next_one(
    broker: KafkaServer, job: Job, part: int
) -> None:
    first = job.write(1)
    job.commit(first)
    entries = job.write(2)
    broker.proxy.lose_answer_to(request(END, part), broker.proxy.lose_answers)
    stage = SinkStage(job.topic.new_sink(), job.place, incarnation=INCARNATION)
    with closing(stage.committing(retries=0)) as deaf, pytest.raises(StorageError):
        deaf.commit(1, {"out": entries})
    broker.proxy.mend()
    job.require_once(entries)


def test_a_process_that_is_killed_at_a_line_leaves_the_rest_to_the_next_one(job: Job) -> None:
    """The lines are spread over the commit of all parts."""
    process = CommitProcess(job.topic, job.place, INCARNATION, job.write(1))
    lines = process.answer()
    process.kill()
    assert isinstance(lines, int), lines
    for epoch, line in enumerate(range(lines // 8, lines, lines // 8), start=2):
        entries = job.write(epoch)
        process = CommitProcess(job.topic, job.place, INCARNATION, entries, line)
        process.answer()
        process.kill()
        job.require_once(entries)


def test_a_marker_without_names_is_of_a_whole_epoch(broker: KafkaServer, job: Job) -> None:
    """As releases wrote it that took the files of a shard and epoch in one call."""
    entries = job.write(1)
    job.commit(entries)
    value = entries[0]["value"]
    producer = KafkaConnection({"bootstrap.servers": job.topic.direct}).create_producer({})
    place = value["target"]
    producer.produce(
        place["topic"],
        marker_value(1, value["transactional_id"]),
        marker_key((INCARNATION, "out", 0)),
        place["partition"],
    )
    producer.flush(60)
    job.commit(entries, is_recovered=True)
    assert sorted(job.topic.rows()) == sorted(job.expected)


def test_other_files_of_the_same_epoch_are_refused_as_those_of_a_copy_of_the_job(job: Job) -> None:
    entries = job.write(1)
    job.commit(entries)
    seen = list(job.expected)
    copies = job.stage.write(1, [("other", 1)], 0, 7)
    with pytest.raises(ConfigurationError, match=r"two copies of one job directory.*Nothing was committed"):
        job.commit(copies, is_recovered=True)
    assert sorted(job.topic.rows()) == sorted(seen)


class TestKafkaSinkInParts(CommitContract):
    @pytest.fixture
    def sink_backend(self, broker: KafkaServer) -> SinkBackend:
        return TopicInParts(broker)
