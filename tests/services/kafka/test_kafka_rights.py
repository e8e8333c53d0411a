"""`KafkaSink` in a cluster that does not let everybody do everything: what is missing is told by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from holdfast.errors import ConfigurationError
from holdfast.testing import KafkaServer
from holdfast.testing.sink_contract.sink_stage import JOB, SinkStage
from tests.services.kafka.test_kafka_sink import INCARNATION, sink
from tests.stories.kafka import PATIENCE, make_topic, messages, require_jars

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS: Final = {
    "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxied.plain.sasl.jaas.config": f'{PLAIN} required user_ada="s3cret";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ADA: Final = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "ada",
    "sasl_password": "s3cret",
}


class Cluster:
    """A broker that asks Ada who she is, and tests who come in by the other door nothing."""

    def __init__(self, server: KafkaServer) -> None:
        self.servers = server.bootstrap_servers
        self.adas = server.proxy.address
        self._admin = AdminClient({"bootstrap.servers": self.servers})

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Lets Ada do something."""
        self._say(kind, name, operations, AclPermissionType.ALLOW)

    def deny(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Does not let her, whatever else is said."""
        self._say(kind, name, operations, AclPermissionType.DENY)

    def take_back_denials(self) -> None:
        """Forgets them."""
        of_all = (ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY)
        denials = AclBindingFilter(*of_all, AclPermissionType.DENY)
        self._admin.delete_acls([denials])[denials].result(PATIENCE)

    def _say(
        self, kind: ResourceType, name: str, operations: tuple[AclOperation, ...], permission: AclPermissionType
    ) -> None:
        pattern = ResourcePatternType.PREFIXED if name.endswith("-") else ResourcePatternType.LITERAL
        said = [AclBinding(kind, name, pattern, "User:ada", "*", operation, permission) for operation in operations]
        for answer in self._admin.create_acls(said).values():
            answer.result(PATIENCE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_jars()
    with KafkaServer(settings=SETTINGS) as server:
        yield Cluster(server)


def test_what_the_cluster_does_not_allow_stops_the_job_by_name_and_loses_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    make_topic(cluster.servers, "words")
    job = SinkStage(sink(cluster.adas, "words", **ADA), tmp_path, incarnation=INCARNATION)
    with pytest.raises(ConfigurationError, match=r"asking Kafka about topics has failed.*Topic authorization failed"):
        job.prepare()
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.DESCRIBE)
    with pytest.raises(ConfigurationError, match="does not let the job write to the topic 'words': grant it the opera"):
        job.prepare()
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.WRITE)
    with pytest.raises(ConfigurationError, match=r"its topic of commits, 'commits-words', has failed.*authorization"):
        job.prepare()
    rights = (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    cluster.grant(ResourceType.TOPIC, "commits-words", *rights)
    job.prepare()
    assert job.target["limits"] == [], "who may not ask knows nothing, and that is all"
    staged = job.write(1, [("kelp", 1)])
    with pytest.raises(ConfigurationError, match=rf"'holdfast-{JOB}-out-0' has failed.*Id authorization failed"):
        job.commit(staged)
    cluster.grant(ResourceType.TRANSACTIONAL_ID, "holdfast-", AclOperation.WRITE, AclOperation.DESCRIBE)
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.DESCRIBE_CONFIGS)
    job.commit(staged, is_recovered=True)
    job.prepare()
    assert job.target["limits"][0]["topics"] == ["words"]

    committing = job.committing()
    committing.commit(2, {"out": job.write(2, [("kelp", 2)])})
    cluster.deny(ResourceType.TOPIC, "words", AclOperation.WRITE)
    taken = job.write(3, [("kelp", 3)])
    with pytest.raises(ConfigurationError, match=r"(?s)words.*authorization failed"):
        committing.commit(3, {"out": taken})
    committing.close()
    cluster.take_back_denials()
    for _ in range(2):
        job.commit(taken, is_recovered=True)
    assert len(messages(cluster.servers, "words")) == 3
