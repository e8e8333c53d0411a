"""Start a new version of a program, which keeps more for each customer, from the state of the version before."""

import tempfile
from pathlib import Path

from holdfast.common import Row
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Version1(KeyedProcessFunction):
    def open(self, runtime_context):
        self.account = runtime_context.get_state(ValueStateDescriptor("account", "cents int"))

    def process_element(self, order, ctx):
        account = self.account.value() or Row(cents=0)
        self.account.update(Row(cents=account.cents + order.cents))
        yield f"{order.customer}: {self.account.value()}"


class Version2(KeyedProcessFunction):
    def open(self, runtime_context):
        self.account = runtime_context.get_state(ValueStateDescriptor("account", "cents bigint, orders bigint"))

    def process_element(self, order, ctx):
        account = self.account.value() or Row(cents=0, orders=0)
        self.account.update(Row(cents=account.cents + order.cents, orders=(account.orders or 0) + 1))
        yield f"{order.customer}: {self.account.value()}"


with tempfile.TemporaryDirectory() as place:
    options = {"execution.checkpointing.dir": f"{place}/checkpoints", "execution.trigger": "available-now"}
    for version, name, text in ((Version1(), "1.csv", "ada,120\n"), (Version2(), "2.csv", "ada,30\nbob,80\n")):
        Path(place, name).write_text(text)
        env = StreamExecutionEnvironment.get_execution_environment(options)
        files = env.spark.readStream.schema("customer string, cents int").csv(f"{place}/*.csv")
        orders = env.from_dataframe(files).uid("orders").key_by("customer")
        orders.process(version, "string").set_parallelism(1).uid("account").print().uid("out")
        env.execute("accounts")
