"""Queries of state of which a run has more than one Arrow array can hold, on a small scale: the bound is lowered."""

import pytest

from holdfast.queryable import at_least
from holdfast.state import batch
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.programs.written_job import WrittenJob

BOUND = 1500
KEYS = [f"k{at}" for at in range(60)]


def write(n):
    def of(states):
        states.text.update("x" * n)
        states.texts.add("y" * n)
        states.entries.put(f"m{n % 3}", "z" * n)

    return of


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "BATCH_BYTES", BOUND)
    descriptors = (
        ValueStateDescriptor("text", "string"),
        ListStateDescriptor("texts", "string"),
        MapStateDescriptor("entries", "string", "string"),
    )
    for descriptor in descriptors:
        descriptor.set_queryable(descriptor.name)
    return WrittenJob(tmp_path, descriptors, retained=20)


def test_each_checkpoint_answers_with_all_that_it_has(job, bench):
    model = {}
    job.checkpoint([("before", write(1))])  # a server knows of a state when it has seen it, and does not wait for one
    client = bench.client(bench.server(job))
    for epoch in range(12):  # more runs than a server keeps layers
        n = 20 + epoch
        keys = KEYS if epoch % 4 == 0 else KEYS[epoch::9]
        completed = at_least(job.checkpoint([(key, write(n)) for key in keys]))
        for key in keys:
            _, texts, entries = model.get(key, ("", [], {}))
            model[key] = ("x" * n, [*texts, "y" * n], entries | {f"m{n % 3}": "z" * n})
        for at, name in enumerate(("text", "texts", "entries")):
            found = client.get_many("job", name, KEYS, consistency=completed).values
            assert found == [model[key][at] for key in KEYS]
        scanned = client.scan("job", "text", consistency=completed).to_table().to_pylist()
        assert {row["key"]: row["value"] for row in scanned} == {"before": "x"} | {key: model[key][0] for key in KEYS}
