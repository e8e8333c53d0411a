"""Schemas for the state of checkpoints and savepoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.rest.route import (
    ANY,
    FLAG,
    INTEGER,
    STRING,
    Schema,
    any_of,
    array,
    choice,
    component,
    described,
    integer,
    mapping,
    nullable,
    record,
)

_SNAPSHOT: Final[Mapping[str, Schema]] = {
    "id": integer(1),
    "type": choice("CHECKPOINT", "SAVEPOINT"),
    "path": STRING,
    "timestamp": nullable(INTEGER),
    "state_size": nullable(integer(0)),
}
_SNAPSHOT_RECORD: Final = component("Snapshot", record(_SNAPSHOT))
SNAPSHOTS: Final = component("Snapshots", record({"snapshots": array(_SNAPSHOT_RECORD)}))
STATES: Final = component(
    "States",
    record(
        {
            **_SNAPSHOT,
            "epoch": integer(0),
            "counted": FLAG,
            "states": described("Operator, name, kind, type and sizes of each state.", array(mapping(ANY))),
        }
    ),
)
STATES_QUERY: Final = record(
    None, {"count": described("Whether entries are counted, which reads all rows.", choice("true", "false"))}
)
DIFFERENCE: Final = component(
    "StateDifference",
    record({"before": _SNAPSHOT_RECORD, "after": _SNAPSHOT_RECORD, "differences": array(mapping(ANY))}),
)
ROWS: Final = component(
    "StateRows",
    record(
        {
            "checkpoint": integer(1),
            "columns": array(record({"name": STRING, "type": STRING})),
            "rows": array(mapping(STRING)),
            "read": integer(0),
            "cut": described("Whether there are more rows than returned.", FLAG),
            "next": described("The key group to continue from.", nullable(integer(0))),
        }
    ),
)
_COUNT: Final = integer(0, 999_999_999)
ROWS_QUERY: Final = record(
    None,
    {
        "key": described("Only the rows of this key.", STRING),
        "where": described("Conditions on columns, such as value > 100.", STRING),
        "contains": described("Text that a column contains.", STRING),
        "start": described("First key group.", _COUNT),
        "limit": described("Approximate number of rows.", _COUNT),
    },
)
_LARGE: Final = mapping(any_of(STRING, INTEGER))
LARGEST: Final = component(
    "LargestKeys",
    record(
        {
            "checkpoint": integer(1),
            "keys": integer(0),
            "rows": integer(0),
            "bytes": integer(0),
            "groups": integer(1),
            "stopped_at": described(
                "The key group at which the time was over, null if all were read.", nullable(integer(0))
            ),
            "largest_keys": array(_LARGE),
            "largest_groups": array(_LARGE),
        }
    ),
)
