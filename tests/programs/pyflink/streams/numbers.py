"""The even numbers of a NumberSequenceSource: from_source with a name and no watermarks."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
even = numbers.filter(lambda n: n % 2 == 0).name("even")
even.map(lambda n: n * n, output_type=Types.LONG()).print("square")
(
    even.key_by(lambda n: n % 4, key_type=Types.LONG())
    .reduce(lambda a, b: a + b)
    .map(lambda n: f"sum{n % 4} {n}", output_type=Types.STRING())
    .print()
)
env.execute("numbers")
