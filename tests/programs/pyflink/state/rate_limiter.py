"""At most two requests of a client in any ten seconds; the others go to a side output with a reason.

Order: none, two outputs meet in a union.
"""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor

REFUSED = OutputTag("refused", Types.STRING())


class RateLimiter(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.accepted = runtime_context.get_list_state(ListStateDescriptor("accepted", Types.LONG()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        client, at = value
        recent = [before for before in self.accepted.get() if before > at - 10]
        if len(recent) < 2:
            self.accepted.update([*recent, at])
            yield f"{client} accepted at {at}"
        else:
            yield REFUSED, f"{client} refused at {at}, again from {recent[0] + 10}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
requests = [("a", 1), ("a", 2), ("a", 3), ("b", 3), ("a", 9), ("a", 11), ("a", 11), ("b", 12), ("b", 13), ("a", 12)]
accepted = (
    env.from_collection(requests, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .key_by(lambda request: request[0], key_type=Types.STRING())
    .process(RateLimiter(), output_type=Types.STRING())
)
accepted.get_side_output(REFUSED).union(accepted).map(lambda line: line, output_type=Types.STRING()).print()
env.execute("rate limiter")
