"""Processing-time windows on a bounded input: windows that have not fired at the end emit nothing."""

from pyflink.common import Time, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.window import ProcessingTimeSessionWindows, TumblingProcessingTimeWindows

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
words = env.from_collection(["kelp", "rock", "kelp"], type_info=Types.STRING())
keyed = words.map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()])).key_by(
    lambda pair: pair[0], key_type=Types.STRING()
)
for assigner in (TumblingProcessingTimeWindows.of(Time.days(365)), ProcessingTimeSessionWindows.with_gap(Time.days(9))):
    keyed.window(assigner).reduce(lambda a, b: (a[0], a[1] + b[1])).print()
words.map(lambda word: f"there was {word}", output_type=Types.STRING()).print()
env.execute("windows of now")
