"""Counts words as they come, in 25 lines; run it again and it goes on where it stopped.

python examples/word_count.py IN_DIRECTORY_OF_TEXT_FILES OUT_DIRECTORY CHECKPOINTS
"""

import sys

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        count = self.count.value() + 1
        self.count.update(count)
        yield row.word, count


texts, output, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now"}
)
words = env.from_dataframe(env.spark.readStream.text(texts)).flat_map(
    lambda row: [(word,) for word in row.value.split()], output_type="word string"
)
words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count").sink_to(ParquetFileSink(output))
env.execute("word count")
