"""Number the visits of a user without windows: in state, with a new visit after thirty idle minutes."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

PAUSE = 30 * 60


class Numbered(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        visit = Types.TUPLE([Types.INT(), Types.LONG()])
        self.visit = runtime_context.get_state(ValueStateDescriptor("visit", visit))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        number, last = self.visit.value() or (0, None)
        if last is None or value[1] - last > PAUSE:
            number += 1
        self.visit.update((number, value[1]))
        yield f"{value[0]}-{number}", value[1], value[2]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [
    ("u1", 0, "/"),
    ("u1", 100, "/a"),
    ("u2", 200, "/"),
    ("u1", 5000, "/b"),
    ("u2", 2000, "/c"),
    ("u2", 3801, "/"),
]
kind = Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING()])
(
    env.from_collection(clicks, type_info=kind)
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .process(Numbered(), output_type=kind)
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .reduce(lambda a, b: (a[0], b[1], a[2] + " " + b[2]))
    .print()
)
env.execute("sessions by hand")
