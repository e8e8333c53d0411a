"""A state machine for each order; an invalid transition goes to a side output and changes nothing."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

STEPS = {(None, "placed"), ("placed", "paid"), ("paid", "sent"), ("placed", "cancelled"), ("sent", "returned")}
STEP = Types.ROW_NAMED(["id", "before", "after"], [Types.INT(), Types.STRING(), Types.STRING()])
ILLEGAL = OutputTag("illegal", STEP)


class Machine(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.state = runtime_context.get_state(ValueStateDescriptor("state", Types.STRING()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        step = Row(id=value.id, before=self.state.value(), after=value.state)
        if (step.before, step.after) in STEPS:
            self.state.update(step.after)
            yield step
        else:
            yield ILLEGAL, step


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
events = [(1, "placed"), (2, "paid"), (1, "paid"), (2, "placed"), (1, "placed"), (1, "sent"), (2, "cancelled")]
steps = (
    env.from_collection(events, type_info=Types.ROW_NAMED(["id", "state"], [Types.INT(), Types.STRING()]))
    .key_by(lambda event: event.id, key_type=Types.INT())
    .process(Machine(), output_type=STEP)
)
steps.map(lambda step: f"legal {step.id}: {step.before} to {step.after}", output_type=Types.STRING()).print()
steps.get_side_output(ILLEGAL).map(
    lambda step: f"illegal {step.id}: {step.before} to {step.after}", output_type=Types.STRING()
).print()
env.execute("order states")
