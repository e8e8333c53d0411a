"""A program without types: elements, keys, sums, windows and side outputs are any Python objects."""

from pyflink.common import Time, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, ProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.window import TumblingEventTimeWindows

LONG_WORDS = OutputTag("long words")


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value["at"]


class Split(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        for word in value["text"].split():
            yield {"word": word, "n": 1, "at": value["at"]}
            if len(word) > 4:
                yield LONG_WORDS, ("long", word, {"at": value["at"]})


def add(a, b):
    a["n"] += b["n"]
    return a


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
lines = [{"text": "kelp rock kelp", "at": 1}, {"text": "anemone", "at": 900}, {"text": "kelp anemone", "at": 1001}]
words = env.from_collection(lines).process(Split())
words.get_side_output(LONG_WORDS).print()
words.key_by(lambda word: word["word"]).reduce(add).map(lambda word: f"so-far-{word['word']} {word['n']}").print()
(
    words.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda word: word["word"])
    .window(TumblingEventTimeWindows.of(Time.seconds(1)))
    .reduce(add)
    .map(lambda word: (f"second-{word['word']}", word["n"]))
    .print()
)
words.map(lambda word: (word["word"], 1)).key_by(lambda pair: pair[0]).sum(1).map(
    lambda pair: f"sum-{pair[0]} {pair}"
).print()
env.execute("untyped")
