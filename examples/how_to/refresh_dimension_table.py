"""Add the price of its item to each order, and refresh the table of prices while the job runs."""

import os
import tempfile
from pathlib import Path

from holdfast.datastream import BroadcastProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import MapStateDescriptor

PRICES = MapStateDescriptor("prices", "string", "double")
ITEMS = ["kelp,1.50\nsand,0.20\n", "kelp,1.75\nrock,3.00\nsand,\n"]  # each text is a file, and an epoch
ORDERS = ["1,kelp\n2,rock\n", "3,kelp\n4,rock\n5,sand\n"]


class AddPrice(BroadcastProcessFunction):
    def process_broadcast_element(self, row, ctx):
        prices = ctx.get_broadcast_state(PRICES)
        if row.price is None:
            prices.remove(row.item)
        else:
            prices.put(row.item, row.price)

    def process_element(self, order, ctx):
        yield order.id, order.item, ctx.get_broadcast_state(PRICES).get(order.item)


def read(name, texts, schema):
    for number, text in enumerate(texts, 1):
        Path(place, f"{name}-{number}.csv").write_text(text)
        os.utime(Path(place, f"{name}-{number}.csv"), (number, number))  # Spark reads the oldest file first
    frame = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(f"{place}/{name}-*.csv")
    return env.from_dataframe(frame).uid(name)


with tempfile.TemporaryDirectory() as place:
    env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "available-now"})
    items, orders = read("items", ITEMS, "item string, price double"), read("orders", ORDERS, "id int, item string")
    priced = orders.connect(items.broadcast(PRICES)).process(AddPrice(), "id int, item string, price double")
    priced.uid("priced").for_each_epoch(lambda df, epoch: df.orderBy("id").show()).uid("show")
    env.execute("orders")
