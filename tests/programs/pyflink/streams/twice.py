"""A stream united with itself, a stream with several consumers, and a printed keyed stream.

Order: none, a union has none.
"""

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
words = env.from_collection(["kelp", "rock"], type_info=Types.STRING())
words.union(words).map(lambda word: f"twice {word}", output_type=Types.STRING()).print()
upper = words.map(lambda word: word.upper(), output_type=Types.STRING())
lower = words.map(lambda word: word.lower(), output_type=Types.STRING())
upper.union(lower, upper).map(lambda word: f"all {word}", output_type=Types.STRING()).print()
upper.key_by(lambda word: word[0], key_type=Types.STRING()).print()
lower.key_by(lambda word: len(word)).map(lambda word: f"keyed {word}", output_type=Types.STRING()).print()
env.execute("twice")
