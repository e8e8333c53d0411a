"""Keys of several fields: a tuple, a row with names, a KeySelector, and a key without a type."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, KeySelector, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class Place(KeySelector):
    def get_key(self, value):
        return Row(value[0], value[1])


class Numbered(KeyedProcessFunction):
    def __init__(self, name):
        self.name = name

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        self.count.update((self.count.value() or 0) + 1)
        key = ctx.get_current_key()
        yield f"{self.name}/{'/'.join(map(str, key))} {value[2]} is number {self.count.value()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
text, pair = Types.STRING(), [Types.STRING(), Types.STRING()]
people = [
    ("de", "bonn", "ada"),
    ("de", "kiel", "bob"),
    ("us", "bonn", "eve"),
    ("de", "bonn", "dan"),
    ("us", "bonn", "ida"),
]
people = env.from_collection(people, type_info=Types.TUPLE([text, text, text]))
by_tuple = people.key_by(lambda person: (person[0], person[1]), key_type=Types.TUPLE(pair))
by_tuple.process(Numbered("tuple"), output_type=text).print()
people.key_by(Place(), key_type=Types.ROW(pair)).process(Numbered("row"), output_type=text).print()
people.key_by(lambda person: person[:2]).process(Numbered("untyped"), output_type=text).print()
env.execute("key by several")
