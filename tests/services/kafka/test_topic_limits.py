"""Rows that only their topic would refuse: a task tells before it stages them, or else the commit waits and says so."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from holdfast.common import WatermarkStrategy
from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from holdfast.errors import JobExecutionError, StorageError
from holdfast.runtime.function.sink import RefusedElementError
from holdfast.testing import EpochProgram, KafkaServer
from holdfast.testing.sink_contract import SinkStage
from tests.stories.kafka import PATIENCE, make_topic, messages, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

REFUSED = OutputTag("refused")
HOUR = 3_600_000
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def topic(broker: KafkaServer, partitions: int = 2, **settings: str) -> str:
    """A new one, whose settings the broker knows."""
    name = f"limited-{next(numbers)}"
    make_topic(broker.bootstrap_servers, name, partitions, **settings)
    configure(broker, name, {})
    return name


def configure(broker: KafkaServer, topic: str, settings: dict[str, str]) -> None:
    """Changes settings, and waits until the broker has them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    if settings:
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline
        try:
            said = admin.describe_configs([resource])[resource].result(PATIENCE)
        except KafkaException:
            continue
        if all(said[key].value == value for key, value in settings.items()):
            return


def word(row: Any) -> str | None:
    return row[0] or None


def number(row: Any) -> str:
    return str(row[1])


def digits(row: Any) -> bytes:
    """As many as the number says, of which no two records have the same."""
    return random.Random(row[1]).randbytes(row[1])


def same(row: Any) -> bytes:
    return b"x" * int(row[1])


def headers(row: Any) -> dict[str, bytes | None]:
    return {"h": b"1", "nothing": None}


class Chosen:
    """Topics by the words that go there; others go to the topic of their name."""

    def __init__(self, topics: dict[str, str], other: str = "") -> None:
        self._topics = topics
        self._other = other

    def __call__(self, row: Any) -> str:
        return self._topics.get(row[0], self._other or row[0])


def place(row: Any) -> int:
    return 2 if row[1] == 9 else -1


def sink(broker: KafkaServer, chosen: str | Callable[[Any], str], value: Any = number, **settings: Any) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_key_serialization_schema(word)
    schema = schema.set_topic(chosen) if isinstance(chosen, str) else schema.set_topic_selector(chosen)
    schema.set_value_serialization_schema(value).set_partitioner(place)
    builder = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers)
    builder.set_delivery_guarantee(settings.pop("guarantee", DeliveryGuarantee.EXACTLY_ONCE))
    if settings.pop("with_headers", False):
        schema.set_header_provider(headers)
    builder.set_record_serializer(schema.build()).set_marker_topic("commits").set_property("request.timeout.ms", 5000)
    for key, said in settings.items():
        builder.set_property(key.replace("_", "."), said)
    return builder.build()


def stage(made: KafkaSink, place: Path, incarnation: str = "") -> SinkStage:
    found = SinkStage(made, place, incarnation=incarnation or f"{next(numbers):032x}")
    found.prepare()
    return found


def seen(broker: KafkaServer, topic: str) -> list[bytes]:
    return [message.value() for message in messages(broker.bootstrap_servers, topic)]  # type: ignore[attr-defined]


def after(row: Any, stamp: int) -> int:
    """The event time of a row: that of a row with 7 is two hours ahead."""
    return int(time.time() * 1000) + (2 * HOUR if row[1] == 7 else 0)


@pytest.mark.parametrize(
    ("settings", "row", "words"),
    [
        (
            {"cleanup_policy": "compact,delete"},
            ("", 5),
            "has no key, but the topic .* is compacted",
        ),
        ({}, ("kelp", 9), "is for partition 2, but the topic .* has 2"),
        ({}, ("kelp", 7), r"rejects those more than 1:00:00 ahead: .* raise message\.timestamp\.after\.max\.ms"),
        (
            {"max_message_bytes": "100"},
            ("k" * 40, 5),
            r"109 bytes when it is sent, but the topic .* accepts 100: make",
        ),
    ],
)
def test_a_row_that_its_topic_refuses_goes_aside_or_stops_the_job_with_the_same_words(
    broker: KafkaServer, tmp_path: Path, settings: dict[str, str], row: Any, words: str
) -> None:
    name = topic(broker, **settings)
    refused: list[Any] = []

    def run(place: Path, *, is_strict: bool) -> None:
        program = EpochProgram()
        rows = program.source("in", "word string, n bigint").assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(after)
        )
        out = rows.uid("timed").sink_to(sink(broker, name)).uid("out")
        if not is_strict:
            letters = out.set_dead_letter_output(REFUSED).get_side_output(REFUSED)
            letters.for_each_epoch(lambda rows, epoch: refused.extend(rows.to_pylist())).uid("refused")
        program.run(place, [{"in": [("kelp", 1), row]}, {"in": [("rock", 2)]}])

    run(tmp_path / "aside", is_strict=False)
    assert sorted(seen(broker, name)) == [b"1", b"2"]
    [letter] = refused
    assert (tuple(letter["row"].values()), letter["sink"], letter["epoch"]) == (row, "out", 1)
    with pytest.raises(JobExecutionError, match=words) as caught:
        run(tmp_path / "strict", is_strict=True)
    if row[1] != 7:  # whose time is another one each time
        assert letter["reason"] in str(caught.value)
    assert sorted(seen(broker, name)) == [b"1", b"2"]


def test_a_topic_takes_what_a_task_lets_pass_to_the_byte(broker: KafkaServer, tmp_path: Path) -> None:
    for with_headers in (False, True):
        name = topic(broker, max_message_bytes="2000")
        made = sink(broker, name, digits, with_headers=with_headers)
        job = stage(made, tmp_path)
        with pytest.raises(RefusedElementError) as caught:
            job.write(1, [("kelp", 1990)])
        fits = 1990 - (int(str(caught.value).split()[3]) - 2000)
        job.commit(job.write(1, [("kelp", fits)]))
        assert [len(value) for value in seen(broker, name)] == [fits]
        job.target = {key: said for key, said in job.target.items() if key != "limits"}
        more = job.write(2, [("kelp", fits + 1)])
        with pytest.raises(StorageError, match=rf"topic '{name}' rejects a staged record.*: raise its max\.message\."):
            job.committing(retries=1).commit(2, {"out": more})


def test_what_is_compressed_is_measured_as_it_is_sent(broker: KafkaServer, tmp_path: Path) -> None:
    name = topic(broker, max_message_bytes="2000")
    for epoch, codec in enumerate(("gzip", "snappy", "lz4", "zstd"), start=1):
        job = stage(sink(broker, name, same, compression_type=codec), tmp_path)
        job.commit(job.write(epoch, [("kelp", 10_000)]))
        with pytest.raises(RefusedElementError, match=r"has 20.. bytes when it is sent, but the topic .* accepts 2000"):
            stage(sink(broker, name, digits, compression_type=codec), tmp_path).write(9, [("kelp", 2000)])
    assert [len(value) for value in seen(broker, name)] == [10_000] * 4


@pytest.mark.parametrize("guarantee", DeliveryGuarantee)
@pytest.mark.parametrize("chosen", [False, True])
def test_many_small_rows_of_an_epoch_come_in_batches_that_the_topic_takes(
    broker: KafkaServer, tmp_path: Path, chosen: bool, guarantee: DeliveryGuarantee
) -> None:
    """Whoever knows the topic makes such batches at once; of many he learns which of them takes so little.

    Exactly once, that is so while records are still handed over: the client holds twenty.
    """
    name = topic(broker, 1, max_message_bytes="2000")
    few = {"queue_buffering_max_messages": 20} if guarantee is DeliveryGuarantee.EXACTLY_ONCE else {}
    made = sink(broker, Chosen({}, name) if chosen else name, guarantee=guarantee, **few)
    job = stage(made, tmp_path)
    job.commit(job.write(1, [(f"{n:0500}", n) for n in range(100, 200)]))
    values = [int(value) for value in seen(broker, name)]
    assert values[-100:] == list(range(100, 200))
    assert len(values) == 100 or guarantee is DeliveryGuarantee.AT_LEAST_ONCE


def test_a_limit_that_is_lowered_while_the_job_runs_holds_up_what_is_staged_and_loses_nothing(
    broker: KafkaServer, tmp_path: Path
) -> None:
    name = topic(broker, max_message_bytes="2000")
    job = stage(sink(broker, name, digits), tmp_path)
    committing = job.committing(retries=1)
    small, large = job.write(1, [("kelp", n) for n in range(200, 230)]), job.write(2, [("kelp", 1500), ("kelp", 230)])
    configure(broker, name, {"max.message.bytes": "1000"})
    committing.commit(1, {"out": small})
    with pytest.raises(StorageError, match=rf"topic '{name}' rejects .*TOO_LARGE.*: raise its max\.message\."):
        committing.commit(2, {"out": large})
    committing.close()
    again = stage(sink(broker, name, digits), tmp_path, job.incarnation)
    with pytest.raises(RefusedElementError, match="accepts 1000"):
        again.write(3, [("kelp", 1500)])
    with pytest.raises(StorageError, match="raise its"):
        again.committing(retries=1).commit(2, {"out": large}, is_recovered=True)
    assert len(seen(broker, name)) == 30
    configure(broker, name, {"max.message.bytes": "2000"})
    for _ in range(2):
        job.commit(large, is_recovered=True)
    assert sorted(map(len, seen(broker, name))) == [*range(200, 231), 1500]


def test_rows_choose_among_topics_that_refuse_different_things(broker: KafkaServer, tmp_path: Path) -> None:
    names = {"small": topic(broker, max_message_bytes="1000"), "large": topic(broker)}
    made = sink(broker, Chosen(names), digits)
    job = stage(made, tmp_path)
    with pytest.raises(RefusedElementError, match=rf"'{names['small']}' accepts 1000"):
        job.write(1, [("small", 5000)])
    late = f"late-{next(numbers)}"
    staged = job.write(1, [("small", 500), ("large", 5000), (late, 600)])
    configured = json.dumps(job.target["limits"])
    assert all(name in configured for name in names.values()) and late not in configured
    make_topic(broker.bootstrap_servers, late)
    job.commit(staged)
    assert [len(*seen(broker, name)) for name in (*names.values(), late)] == [500, 5000, 600]
