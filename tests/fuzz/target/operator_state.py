"""Operator state in `_metadata`, and the payloads in it, as a function of the next run reads them."""

import json
from typing import Any

from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator_snapshot import OperatorSnapshot, snapshot_size
from holdfast.state.operator_state import OperatorStateBackend, RoundRobinOperatorStateRepartitioner


def parse(data: bytes) -> None:
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        return  # it was JSON when its checkpoint was read
    snapshot = OperatorSnapshot.from_json(document)
    snapshot_size(document)
    snapshot.paths()
    for part in RoundRobinOperatorStateRepartitioner().repartition_state([snapshot], 1, 2):
        if part is None:
            continue
        backend = OperatorStateBackend("operator")
        backend.restore(part)
        backend.get_list_state(ListStateDescriptor("list", "bigint")).get()
        backend.get_union_list_state(ListStateDescriptor("union", "string")).get()
        backend.get_broadcast_state(MapStateDescriptor("rules", "string", "double")).items()
        backend.snapshot()
