"""A shopping cart for each customer: all operations of map state, and the state after clear."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor


class Cart(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.cart = runtime_context.get_map_state(MapStateDescriptor("cart", Types.STRING(), Types.INT()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        customer, what, item, pieces = value
        if what == "add":
            already = self.cart.get(item) if self.cart.contains(item) else 0
            self.cart.put(item, already + pieces)
        elif what == "remove":
            self.cart.remove(item)
        elif what == "gift":
            self.cart.put_all({item: pieces, "card": 1}.items())
        elif what == "pay":
            items = sorted(self.cart.keys())
            yield f"{customer} pays {items}, {sum(self.cart.values())} pieces"
            self.cart.clear()
        yield f"{customer} {what}: {sorted(self.cart.items())} empty={self.cart.is_empty()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
events = [
    ("ada", "add", "kelp", 2),
    ("bob", "add", "rock", 1),
    ("ada", "add", "kelp", 3),
    ("ada", "gift", "sand", 1),
    ("bob", "remove", "rock", 0),
    ("bob", "remove", "nothing", 0),
    ("ada", "pay", "", 0),
    ("ada", "add", "crab", 1),
    ("bob", "pay", "", 0),
]
(
    env.from_collection(events, type_info=Types.TUPLE([Types.STRING(), Types.STRING(), Types.STRING(), Types.INT()]))
    .key_by(lambda event: event[0], key_type=Types.STRING())
    .process(Cart(), output_type=Types.STRING())
    .print()
)
env.execute("shopping cart")
