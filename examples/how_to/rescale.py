"""Change the parallelism of a job while it runs; its state moves along."""

import tempfile
from pathlib import Path

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.context = runtime_context
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, word, ctx):
        self.count.update(self.count.value() + 1)
        yield word.value, self.count.value(), self.context.get_number_of_parallel_subtasks()


def add_file(name, text):
    Path(place, f".{name}").write_text(text)
    Path(place, f".{name}").rename(Path(place, name))  # a file is complete when it gets its name
    client.process_all_available()


with tempfile.TemporaryDirectory() as place:
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 1})
    words = env.from_dataframe(env.spark.readStream.text(place)).uid("words")
    counts = words.key_by("value").process(Count(), "word string, n bigint, subtasks int").uid("counts")
    counts.for_each_epoch(lambda df, epoch: df.orderBy("word", "n").show()).uid("show")
    client = env.execute_async("counts")

    add_file("1.txt", "kelp\nrock\nkelp\n")
    client.rescale(2).result()
    add_file("2.txt", "kelp\nsand\nrock\n")
    client.cancel()
    client.await_termination()
