"""A cluster that does not let everybody do everything: Ada says who she is, and tests come in by another door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from holdfast.testing import KafkaServer
from tests.stories.kafka import PATIENCE, require_jars

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


def guarded_cluster() -> Iterator[Cluster]:
    """One that runs."""
    require_jars()
    with KafkaServer(settings=SETTINGS) as server:
        yield Cluster(server)
