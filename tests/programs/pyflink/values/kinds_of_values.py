"""The values that state returns, for several declared types and for a pickled one."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

PLACE = Types.ROW_NAMED(["city", "zip"], [Types.STRING(), Types.INT()])


class Kinds(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.place = runtime_context.get_state(ValueStateDescriptor("place", PLACE))
        self.pair = runtime_context.get_state(
            ValueStateDescriptor("pair", Types.TUPLE([Types.LONG(), Types.LIST(Types.STRING())]))
        )
        self.by_name = runtime_context.get_state(
            ValueStateDescriptor("by name", Types.MAP(Types.STRING(), Types.DOUBLE()))
        )
        self.anything = runtime_context.get_state(ValueStateDescriptor("anything", Types.PICKLED_BYTE_ARRAY()))
        self.places = runtime_context.get_list_state(ListStateDescriptor("places", PLACE))
        self.nested = runtime_context.get_map_state(MapStateDescriptor("nested", Types.INT(), PLACE))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        if self.place.value() is not None:
            city, names = self.place.value().city, sorted(self.by_name.value().items())
            yield f"{value[0]} {city} {self.place.value()['zip']} {self.pair.value()} {names} {self.anything.value()}"
            yield f"{value[0]} {[place.zip for place in self.places.get()]} {self.nested[1].city}"
        self.place.update(Row(city="Bonn", zip=value[1]))
        self.pair.update((value[1], ["a", "b"]))
        self.by_name.update({"x": value[1] / 4})
        self.anything.update({"any": (value[1], None), "complex": 1j})
        self.places.add_all([Row(city="Rome", zip=value[1]), Row(city="Oslo", zip=2)])
        self.nested[1] = Row(city="Kiel", zip=3)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
(
    env.from_collection([("a", 1), ("a", 2), ("b", 3), ("a", 5)], type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    .key_by(lambda pair: pair[0], key_type=Types.STRING())
    .process(Kinds(), output_type=Types.STRING())
    .print()
)
env.execute("kinds of values")
