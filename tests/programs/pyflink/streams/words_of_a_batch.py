"""Word count in batch mode: the input ends, and only the final counts are emitted."""

from pyflink.common import Types
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

TEXT = ["to be or not to be", "that is the question", "to sleep", ""]

env = StreamExecutionEnvironment.get_execution_environment()
env.set_runtime_mode(RuntimeExecutionMode.BATCH)
env.set_parallelism(1)
(
    env.from_collection(TEXT, type_info=Types.STRING())
    .flat_map(lambda line: line.split(), output_type=Types.STRING())
    .filter(lambda word: len(word) > 1)
    .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
    .key_by(lambda pair: pair[0], key_type=Types.STRING())
    .reduce(lambda a, b: (a[0], a[1] + b[1]))
    .print()
)
env.execute("words of a batch")
