"""Real-time jobs from topic to topic of a real broker: tasks fail, the process dies, the broker goes and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.connectors.kafka import DeliveryGuarantee
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing import KafkaServer
from tests.programs import real_time_topics_job
from tests.stories.kafka import running_broker
from tests.stories.process import run
from tests.stories.topics import Topics
from tests.unit.runtime.realtime.test_failed_checkpoints import failures, same
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Failing, FailingCount, until

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

AT_LEAST_ONCE, EXACTLY_ONCE = DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.EXACTLY_ONCE
PATIENCE = 120
OPTIONS = {
    **RESTARTS,
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "web.checkpoints.history": "1000",
}
OUT = pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, EXACTLY_ONCE], ids=lambda guarantee: guarantee.value)
names = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture
def topics(broker: KafkaServer, guarantee: DeliveryGuarantee) -> Iterator[Topics]:
    yield Topics(broker.bootstrap_servers, f"numbers-{next(names)}", guarantee).create()
    broker.proxy.mend()


def completed(master: Any) -> int:
    return int(master.statistics.create_snapshot().counts.completed)


def declined(master: Any) -> int:
    return failures(master).get("CHECKPOINT_DECLINED", 0)


@OUT
def test_tasks_that_fail_before_and_behind_the_exchange(topics: Topics, tmp_path: Path) -> None:
    before, behind = Failing(tmp_path / "before", 400), Failing(tmp_path / "behind", 800)
    master = topics.job(before, count=FailingCount(behind)).master(tmp_path / "job", OPTIONS)
    client = JobClient(master)
    for _ in range(12):
        topics.put(100)
        time.sleep(0.05)  # so that there are checkpoints between them
    until(topics.has_all, PATIENCE)
    client.stop()
    client.await_termination()
    assert len(master.history.failures) == 2
    topics.require()


@OUT
def test_a_task_that_fails_before_the_broker_has_acknowledged_its_records(
    topics: Topics, broker: KafkaServer, tmp_path: Path
) -> None:
    failing = Failing(tmp_path / "failed", 400)
    job = topics.job(failing, sink=broker.proxy.address, timeout_ms=1500)
    master = job.master(tmp_path / "job", OPTIONS)
    client = JobClient(master)
    topics.put(200)
    until(topics.has_all, PATIENCE)
    broker.proxy.stall()
    topics.put(200)
    if topics.guarantee is AT_LEAST_ONCE:  # with exactly-once output the first commit that fails ends the attempt
        until(held_up(topics, master), PATIENCE)
    topics.put(1)
    until(failing.place.exists, PATIENCE)
    until(lambda: bool(master.history.failures), PATIENCE)
    broker.proxy.mend()
    topics.put(100)
    until(topics.has_all, PATIENCE)
    client.stop()
    client.await_termination()
    topics.require()


def held_up(topics: Topics, master: Any) -> Callable[[], bool]:
    """Return what says whether output waits for the broker: checkpoints are declined, or a commit has failed."""
    before = declined(master), master.history.failure_count
    if topics.guarantee is AT_LEAST_ONCE:
        return lambda: declined(master) >= before[0] + 2
    return lambda: master.history.failure_count > before[1]


@pytest.mark.parametrize(
    ("guarantee", "fault"),
    [
        (AT_LEAST_ONCE, "before:metadata.write:2=kill"),
        (AT_LEAST_ONCE, "after:pointer.write:2=kill"),
        (EXACTLY_ONCE, "after:sink.stage:3=kill"),
        (EXACTLY_ONCE, "before:sink.commit:2=kill"),
        (EXACTLY_ONCE, "after:sink.commit:2=kill"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_a_process_that_dies_after_its_records_were_sent(topics: Topics, fault: str, tmp_path: Path) -> None:
    topics.put(real_time_topics_job.ROWS)
    arguments = (tmp_path, topics.servers, topics.name, topics.guarantee.value)
    first = run("real_time_topics_job.py", *arguments, fault=fault)
    assert first.was_killed, first.output
    second = run("real_time_topics_job.py", *arguments)
    assert second.code == 0, second.output
    repeated = topics.require()
    if fault.startswith("before:metadata"):
        assert repeated, "they were sent, and no checkpoint knows"


@OUT
@pytest.mark.parametrize("is_all", [False, True], ids=["the sink", "source and sink"])
def test_a_broker_that_is_cut_off_and_comes_back(
    topics: Topics, is_all: bool, broker: KafkaServer, tmp_path: Path
) -> None:
    proxy = broker.proxy.address
    job = topics.job(same, source=proxy if is_all else "", sink=proxy, timeout_ms=1500)
    master = job.master(tmp_path / "job", OPTIONS)
    client = JobClient(master)
    for _ in range(2):
        topics.put(300)
        until(topics.has_all, PATIENCE)
        broker.proxy.cut()
        topics.put(300)
        if is_all:
            before = completed(master)
            until(lambda before=before: completed(master) >= before + 3)  # type: ignore[misc]
        else:
            until(held_up(topics, master), PATIENCE)
        assert not client.get_job_status().is_terminal_state()
        assert len(topics.counts()) < topics.numbers
        broker.proxy.mend()
        until(topics.has_all, PATIENCE)
    client.stop()
    client.await_termination()
    if topics.guarantee is AT_LEAST_ONCE:
        assert master.history.failures == [], "no task was started again"
    topics.require()


@OUT
def test_a_broker_that_is_killed_and_started_again(topics: Topics, broker: KafkaServer, tmp_path: Path) -> None:
    master = topics.job(same, timeout_ms=3000).master(tmp_path / "job", OPTIONS)
    client = JobClient(master)
    topics.put(300)
    until(lambda: len(topics.counts()) > 50, PATIENCE)
    broker.restart()
    topics.put(300)
    until(topics.has_all, PATIENCE)
    client.stop()
    client.await_termination()
    topics.require()
