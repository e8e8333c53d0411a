"""Queryable state: reading a job's keyed state from outside, committed, while it runs or after.

Every answer is from one completed checkpoint and says from which. Servers are read replicas of checkpoints; they load
nothing onto the job and answer while it fails over. `QueryableStateClient` and `AsyncQueryableStateClient` ask them.
"""

from __future__ import annotations

from holdfast.queryable.client.async_client import AsyncQueryableStateClient
from holdfast.queryable.client.client import QueryableStateClient, Scan
from holdfast.queryable.client.result import ManyResult, Origin, StateResult
from holdfast.queryable.server.proxy import KvStateClientProxy, KvStateRegistry, KvStateRegistryListener, KvStateServer
from holdfast.queryable.server.server import KvStateClientProxyImpl, StateServer
from holdfast.queryable.server.server_connection import ServerSettings
from holdfast.queryable.wire.description import OpaqueValue, StateDescription
from holdfast.queryable.wire.location import (
    KvStateID,
    KvStateLocation,
    KvStateLocationOracle,
    KvStateLocationRegistry,
)
from holdfast.queryable.wire.request import Consistency, at_least, exactly, newest

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
