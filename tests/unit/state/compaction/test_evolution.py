"""Compaction finishes what a change of a type began, also where only the script knows the classes."""

import sys
from decimal import Decimal

import pytest

from holdfast.errors import MissingClassError
from holdfast.runtime.compaction import ProcessCompactionExecutor
from holdfast.state import HashMapStateBackend
from holdfast.state.compaction_plan import CompactionOutput, CompactionPlan
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.run_file import open_run
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from holdfast.testing.state_contract.state_evolution_contract import PriceSerializer, PriceSnapshot
from holdfast.types.row import Row
from holdfast.types.type_parser import to_type


@pytest.fixture
def epochs(tmp_path):
    STATE_CACHE.clear()
    return StateEpochs(HashMapStateBackend(), str(tmp_path), after=STATE_CACHE.clear)


def plan_for(epochs):
    output = CompactionOutput("shared/merged.run", epochs.range_of(0))
    return CompactionPlan(epochs.directory, epochs.version.runs, (output,), True, 0, 1)


def two_versions(epochs, old, new, before, after):
    with epochs.epoch() as task:
        task.state("a", ValueStateDescriptor("v", old)).update(before)
        task.state("b", ValueStateDescriptor("v", old)).update(before)
    with epochs.epoch() as task:
        task.state("b", ValueStateDescriptor("v", new)).update(after)


def test_a_merged_run_has_all_rows_in_the_new_form(epochs):
    old, new = to_type("struct<x: int, gone: int>"), to_type("struct<x: bigint, y: string>")
    two_versions(epochs, old, new, Row(1, 2), Row(2**40, "y"))
    merger = ProcessCompactionExecutor()
    try:
        [run] = merger.submit(plan_for(epochs)).result(60)
    finally:
        merger.close()
    segment = open_run(epochs.files, epochs.directory, run).segment("v")
    assert segment.table.column("value").type == new.arrow_type
    assert sorted(map(str, segment.table.column("value").to_pylist())) == [
        "{'x': 1, 'y': None}",
        f"{{'x': {2**40}, 'y': 'y'}}",
    ]


def test_classes_of_the_script_are_used_where_the_script_runs(epochs, monkeypatch):
    main = sys.modules["__main__"]
    own = type("OwnPrice", (PriceSerializer,), {"__module__": "__main__"})

    class OwnSnapshot(PriceSnapshot):
        def restore_serializer(self):
            return own(self.version)

    OwnSnapshot.__module__, OwnSnapshot.__qualname__ = "__main__", "OwnSnapshot"
    own.snapshot_configuration = lambda self: OwnSnapshot(self.version)
    monkeypatch.setattr(main, "OwnPrice", own, raising=False)
    monkeypatch.setattr(main, "OwnSnapshot", OwnSnapshot, raising=False)
    two_versions(epochs, own(1), own(2), Decimal("1.50"), Decimal(3))
    merger = ProcessCompactionExecutor()
    try:
        [run] = merger.submit(plan_for(epochs)).result(60)
        segment = open_run(epochs.files, epochs.directory, run).segment("v")
        found = [int.from_bytes(data, "big") for data in segment.table.column("value").to_pylist()]
        assert sorted(found) == [150, 300]
        # Where nobody has the class the runs stay as they are, and the reason is told.
        monkeypatch.delattr(main, "OwnSnapshot")
        with pytest.raises(MissingClassError, match="OwnSnapshot"):
            merger.submit(plan_for(epochs)).result(60)
    finally:
        merger.close()
