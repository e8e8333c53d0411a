"""Results in the program: execute_and_collect, and a function that counts in open, map and close."""

from pyflink.common import Row, Types
from pyflink.datastream import FlatMapFunction, RuntimeContext, StreamExecutionEnvironment


class Letters(FlatMapFunction):
    def __init__(self, least):
        self.least = least
        self.alphabet = None

    def open(self, runtime_context: RuntimeContext):
        self.alphabet = {letter: n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}

    def flat_map(self, value):
        for letter in value:
            if self.alphabet[letter] >= self.least:
                yield Row(letter=letter, n=self.alphabet[letter])


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.ROW_NAMED(["letter", "n"], [Types.STRING(), Types.INT()])
letters = env.from_collection(["kelp", "rock"], type_info=Types.STRING()).flat_map(Letters(10), output_type=kind)
with letters.execute_and_collect("collected") as results:
    for row in results:
        print(row.letter, row["n"], row[1] + 1, row)
print("first two:", [row.letter for row in letters.execute_and_collect("limited", limit=2)])
