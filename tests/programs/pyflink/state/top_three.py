"""The three best scores of each player, emitted on each change: a list in value state."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class TopThree(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.best = runtime_context.get_state(ValueStateDescriptor("best", Types.LIST(Types.LONG())))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        before = list(self.best.value() or [])
        now = sorted([*before, value[1]], reverse=True)[:3]
        if now != before:
            self.best.update(now)
            yield f"{ctx.get_current_key()} {now}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
scores = [("ada", 5), ("bob", 9), ("ada", 7), ("ada", 1), ("ada", 3), ("bob", 2), ("ada", 2), ("ada", 9), ("bob", 9)]
(
    env.from_collection(scores, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .key_by(lambda score: score[0], key_type=Types.STRING())
    .process(TopThree(), output_type=Types.STRING())
    .print()
)
env.execute("top three")
