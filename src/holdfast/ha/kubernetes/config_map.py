"""ConfigMaps as values, and the lease in the annotation of one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from holdfast.ha.lease import LeaseForm
from holdfast.kernel.clock import Clock
from holdfast.kernel.parsing import PARSE_ERRORS

LEADER_ANNOTATION: Final = "control-plane.alpha.kubernetes.io/leader"


@dataclass(frozen=True)
class LeaseRecord:
    """The content of the annotation. An empty holder means that the lease was released.

    It has the form of client-go's leader election, so that people and tools can read it. Its times are for people only:
    `holdfast.ha.lease` decides who leads.

    The number of renewals makes each record differ from the one before: an update that changes nothing is no update,
    and a wall clock that stands still must not make a renewal invisible.
    """

    holder: str
    duration: float
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0
    renewals: int = 0

    @property
    def term(self) -> int:
        """Counts the leaders."""
        return self.transitions

    @property
    def released(self) -> bool:
        """Whether it has no holder."""
        return not self.holder

    @classmethod
    def parse(cls, text: str | None) -> LeaseRecord | None:
        """Read an annotation; one that cannot be read counts as none."""
        if not text:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            duration = float(fields.get("leaseDurationSeconds") or 0)
            if not math.isfinite(duration):
                return None
            return cls(
                str(fields.get("holderIdentity") or ""),
                duration,
                str(fields.get("acquireTime") or ""),
                str(fields.get("renewTime") or ""),
                int(fields.get("leaderTransitions") or 0),
                int(fields.get("renewals") or 0),
            )
        except PARSE_ERRORS:
            return None

    def encode(self) -> str:
        """Return the text of the annotation."""
        fields = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, math.ceil(self.duration)),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaderTransitions": self.transitions,
            "renewals": self.renewals,
        }
        return json.dumps(fields)


class LeaseRecordForm(LeaseForm[LeaseRecord]):
    """Counts transitions from one holder to another, and renewals by the same one.

    Args:
        clock: The time of day, for people.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def acquired(self, identity: str, before: LeaseRecord | None, duration: float) -> LeaseRecord:
        """Return the record of a new holder; a record of its own is renewed."""
        if before is not None and before.holder == identity:
            return self.renewed(before, duration)
        transitions = before.transitions + 1 if before is not None else 0
        now = self._now()
        return LeaseRecord(identity, duration, now, now, transitions)

    def renewed(self, lease: LeaseRecord, duration: float) -> LeaseRecord:
        return replace(lease, duration=duration, renewed=self._now(), renewals=lease.renewals + 1)

    def given_up(self, lease: LeaseRecord) -> LeaseRecord:
        return LeaseRecord("", 1.0, transitions=lease.transitions)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


@dataclass(frozen=True)
class KubernetesConfigMap:
    """One version of a ConfigMap; changes are made on copies.

    Attributes:
        name: Its name.
        data: Its entries. Do not change them in place; `with_entries` and `without` make copies.
        annotations: Its annotations.
        labels: Its labels.
        source: The object of the API server, so that fields of others are kept in an update; None for a ConfigMap that
            was not read from a server.
    """

    name: str
    data: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    source: ConfigMap | None = field(default=None, compare=False, repr=False)

    @property
    def resource_version(self) -> str | None:
        """The opaque version of the whole ConfigMap; None if it was not read from a server."""
        metadata = self.source.metadata if self.source is not None else None
        return metadata.resourceVersion if metadata is not None else None

    @property
    def uid(self) -> str | None:
        """The id, which differs from that of a later ConfigMap of the same name."""
        metadata = self.source.metadata if self.source is not None else None
        return metadata.uid if metadata is not None else None

    def is_led_by(self, lock_identity: str) -> bool:
        """Return whether this version says that this process leads."""
        text = self.annotations.get(LEADER_ANNOTATION, "")
        record = LeaseRecord.parse(text)
        # Whatever else writes the annotation counts as the holder that it mentions.
        return lock_identity in text if record is None else record.holder == lock_identity

    def with_entries(self, entries: dict[str, str]) -> KubernetesConfigMap:
        return replace(self, data={**self.data, **entries})

    def without(self, *keys: str) -> KubernetesConfigMap:
        return replace(self, data={key: value for key, value in self.data.items() if key not in keys})

    def with_annotation(self, key: str, value: str) -> KubernetesConfigMap:
        return replace(self, annotations={**self.annotations, key: value})

    @classmethod
    def of(cls, source: ConfigMap) -> KubernetesConfigMap:
        metadata = source.metadata or ObjectMeta()
        return cls(
            name=metadata.name or "",
            data=dict(source.data or {}),
            annotations=dict(metadata.annotations or {}),
            labels=dict(metadata.labels or {}),
            source=source,
        )

    def to_object(self) -> ConfigMap:
        """Return the object for the API, with the resource version that was read as an optimistic lock."""
        if self.source is None:
            metadata = ObjectMeta(name=self.name, labels=self.labels, annotations=self.annotations)
            return ConfigMap(metadata=metadata, data=self.data)
        old = self.source.metadata or ObjectMeta()
        metadata = ObjectMeta(
            name=self.name,
            namespace=old.namespace,
            uid=old.uid,
            resourceVersion=old.resourceVersion,
            labels=self.labels,
            annotations=self.annotations,
            finalizers=old.finalizers,
            ownerReferences=old.ownerReferences,
        )
        return ConfigMap(
            metadata=metadata, data=self.data, binaryData=self.source.binaryData, immutable=self.source.immutable
        )
