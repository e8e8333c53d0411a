"""The name under which state can be queried belongs to one state; a second one fails the job before it begins."""

import pytest

from holdfast.datastream.stream.keyed_stream import NoOutput
from holdfast.errors import ConfigurationError
from holdfast.queryable.replica.checkpoint_view import ViewBuilder
from holdfast.queryable.server.server import all_key_groups
from holdfast.runtime.function.user_function import KeyedProcessFunction
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph
from holdfast.runtime.job.control import JobStatus
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.type_parser import parse_schema
from tests.programs.written_job import WrittenJob

ELEMENT = parse_schema("word string, n bigint")


class Keep(KeyedProcessFunction):
    """Keeps the last element of each key in states that are queryable under the given names."""

    def __init__(self, names, late=False):
        self.names, self.late, self.is_last = names, late, True

    def open(self, runtime_context):
        self.context = runtime_context
        self.states = [] if self.late else self.ask()

    def ask(self):
        states = []
        for name, queryable in self.names.items():
            descriptor = ValueStateDescriptor(name, ELEMENT)
            descriptor.set_queryable(queryable)
            states.append(self.context.get_state(descriptor))
        return states

    def process_element(self, value, ctx):
        for state in self.ask() if self.late else self.states:
            state.update(value)
        return () if self.is_last else (value,)


def keep(upstream, uid, function):
    return KeyedNode(
        inputs=(upstream,),
        name=uid,
        uid=uid,
        element_type=ELEMENT,
        operator=OperatorSpec(function, "process", True, ELEMENT, ELEMENT),
        key=KeySpec(columns=("word",)),
    )


def job(directory, *chains):
    """Each chain is a list of functions of keyed operators, one after the other; all read the same words."""
    source = SourceNode(name="words", uid="words", element_type=ELEMENT, is_streaming=True)
    sinks = []
    for i, functions in enumerate(chains):
        node = source
        for j, function in enumerate(functions):
            function.is_last = j == len(functions) - 1
            node = keep(node, f"keep-{i}-{j}", function)
        sinks.append(SinkNode(inputs=(node,), name=f"end-{i}", uid=f"end-{i}", element_type=ELEMENT, sink=NoOutput()))
    inputs = [{"words": [("a", 1), ("b", 2)]} for _ in range(2)]
    return run_job(StreamGraph(sinks), directory, LocalEngine(inputs), name="words")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_two_operators_with_one_name_fail_the_job_before_its_first_checkpoint(tmp_path, beside, late):
    first, second = Keep({"x": "last"}), Keep({"y": "last"}, late)
    master = job(tmp_path, [first], [second]) if beside else job(tmp_path, [first, second])
    with pytest.raises(ConfigurationError, match=r"Registration name clash.*'last'.*'keep-0-0'.*'keep-\d-\d'"):
        master.run()
    assert master.status is JobStatus.FAILED
    assert master.job.register.read().checkpoints == ()


def test_two_states_of_one_operator_with_one_name_fail_the_job(tmp_path):
    master = job(tmp_path, [Keep({"x": "last", "y": "last"})])
    with pytest.raises(ConfigurationError, match=r"States 'x' and 'y' of operator 'keep-0-0' are both"):
        master.run()
    assert master.job.register.read().checkpoints == ()


def test_each_name_once_is_served(tmp_path, bench):
    master = job(tmp_path, [Keep({"x": "x0"}), Keep({"x": "x1", "y": "y1"})], [Keep({"x": "x2"})])
    master.run()
    server = bench.server()
    server.serve_job(master.job.directory, master.job.register)
    client = bench.client(server)
    assert sorted(state.name for state in client.states("words")) == ["x0", "x1", "x2", "y1"]
    assert {client.get_kv_state("words", name, "a").value for name in ("x0", "x1", "x2", "y1")} == {("a", 1)}


def test_a_state_whose_own_name_begins_with_an_underscore_is_queryable_like_any_other(tmp_path):
    total = ValueStateDescriptor("_total", "bigint")
    total.set_queryable("totals")
    written = WrittenJob(tmp_path, [total])
    written.epoch_of([("ada", lambda states: states._total.update(1))])
    view = ViewBuilder(written.directory, all_key_groups).build(written.metadata(1), None)
    assert list(view.states) == ["totals"]
