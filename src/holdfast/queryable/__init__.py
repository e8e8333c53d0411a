"""Queryable state: read the keyed state of a job from outside, while it runs or after it has ended.

Every answer is read from one completed checkpoint and names it. Servers are read replicas of checkpoints: they put no
load on the job, and answer while it fails over. `QueryableStateClient` and `AsyncQueryableStateClient` query them.
"""

from __future__ import annotations

from holdfast.queryable.client.async_client import AsyncQueryableStateClient
from holdfast.queryable.client.client import QueryableStateClient, Scan
from holdfast.queryable.client.result import ManyResult, Origin, StateResult
from holdfast.queryable.server.proxy import KvStateClientProxy, KvStateRegistry, KvStateRegistryListener, KvStateServer
from holdfast.queryable.server.server import KvStateClientProxyImpl, StateServer
from holdfast.queryable.server.server_connection import ServerSettings
from holdfast.queryable.wire.location import (
    KvStateID,
    KvStateLocation,
    KvStateLocationOracle,
    KvStateLocationRegistry,
)
from holdfast.queryable.wire.request import Consistency, OpaqueValue, StateDescription, at_least, exactly, newest

__all__ = [
    "AsyncQueryableStateClient",
    "Consistency",
    "KvStateClientProxy",
    "KvStateClientProxyImpl",
    "KvStateID",
    "KvStateLocation",
    "KvStateLocationOracle",
    "KvStateLocationRegistry",
    "KvStateRegistry",
    "KvStateRegistryListener",
    "KvStateServer",
    "ManyResult",
    "OpaqueValue",
    "Origin",
    "QueryableStateClient",
    "Scan",
    "ServerSettings",
    "StateDescription",
    "StateResult",
    "StateServer",
    "at_least",
    "exactly",
    "newest",
]
