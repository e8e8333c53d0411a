"""What topics refuse of single records, as the cluster says when an attempt begins; and whether they may be written.

Where topics are chosen element by element, it is asked about all that the job may see. What cannot be learned, because
a topic is not there yet or the job may not ask, is found out when the records are published: then the commit waits, and
says so.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from holdfast.datastream.connectors.kafka.client import KafkaConnection, told
from holdfast.datastream.connectors.kafka.record.record_limits import AS_IT_COMES, RecordLimits
from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger

logger = get_logger(__name__)

_MOST: Final = 1000
"""Topics that are asked about: their answers are some kilobytes each."""

_ANY: Final = 2**63 - 1
_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def limits_of(connection: KafkaConnection, topic: str | None) -> dict[str, RecordLimits]:
    """What topics refuse, as far as the cluster says so. Blocks.

    Args:
        connection: To the cluster.
        topic: The one that all records go to; None if they are chosen.

    Raises:
        StorageError: The cluster does not answer.
        ConfigurationError: The topic may not be written.
    """
    admin = connection.admin()
    with told("asking Kafka about topics", connection):
        partitions = _visible(admin, connection) if topic is None else _writable(admin, connection, topic)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in partitions]
        asked = admin.describe_configs(resources, request_timeout=connection.patience) if resources else {}
        limits = {}
        for resource, answer in asked.items():
            try:
                said = {name: entry.value for name, entry in connection.answer(admin, answer).items()}
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    raise
                logger.info("what %r refuses is not known: %s", resource.name, error.args[0].str())
            else:
                limits[resource.name] = _limits(said, partitions[resource.name])
        return limits


def _limits(said: dict[str, Any], partitions: int) -> RecordLimits:
    is_timed = said.get("message.timestamp.type") != "LogAppendTime"
    compression = str(said.get("compression.type") or AS_IT_COMES)
    # What brokers call level 9 of lz4 is its fastest one, and -1 of gzip the usual one; zstd has levels below 0.
    asked = said.get(f"compression.{compression}.level") if compression != "lz4" else None
    level = int(asked) if asked and (compression, asked) != ("gzip", "-1") else None
    ahead, behind = (int(said.get(f"message.timestamp.{side}.max.ms", _ANY)) for side in ("after", "before"))
    return RecordLimits(
        int(said["max.message.bytes"]),
        partitions,
        needs_key="compact" in str(said["cleanup.policy"]).split(","),
        ahead=ahead if is_timed and ahead < _ANY else None,
        behind=behind if is_timed and behind < _ANY else None,
        compression=compression,
        level=level,
    )


def _visible(admin: AdminClient, connection: KafkaConnection) -> dict[str, int]:
    """Partitions of all topics but Kafka's own."""
    found = connection.metadata(admin).topics
    names = [name for name in found if not name.startswith("__")]
    if len(names) > _MOST:
        logger.warning(
            "records are published to topics that are chosen one by one, and there are %d, of which at most %d are "
            "asked what they refuse: a record that its topic refuses holds up the commit",
            len(names), _MOST,
        )  # fmt: skip
        return {}
    return {name: len(found[name].partitions) for name in names}


def _writable(admin: AdminClient, connection: KafkaConnection, topic: str) -> dict[str, int]:
    """Partitions of one topic; nothing if it is not there."""
    asked = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=connection.patience
    )
    try:
        found = connection.answer(admin, asked[topic])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        raise
    if found.authorized_operations and AclOperation.WRITE not in found.authorized_operations:
        raise ConfigurationError(
            f"The Kafka cluster at {connection.servers!r} does not let the job write to the topic {topic!r}: grant it "
            "the operation WRITE on it. What is staged is in the checkpoint, and is published when the job runs again."
        )
    return {topic: len(found.partitions)}
