"""Pass each payment once, and forget its id two seconds after it was first seen."""

import tempfile
import time
from pathlib import Path

from holdfast.datastream import RichFilterFunction, StreamExecutionEnvironment
from holdfast.datastream.state import StateTtlConfig, ValueStateDescriptor


class IsFirst(RichFilterFunction):
    def open(self, runtime_context):
        seen = ValueStateDescriptor("seen", "boolean")
        seen.enable_time_to_live(StateTtlConfig.new_builder("2 s").build())
        self.seen = runtime_context.get_state(seen)

    def filter(self, payment):
        is_first = self.seen.value() is None
        if is_first:
            self.seen.update(True)
        return is_first


with tempfile.TemporaryDirectory() as place:
    for name, text in {"1.csv": "p1,500\np2,80\np1,500\n", "2.csv": "p3,20\np1,500\n"}.items():
        Path(place, name).write_text(text)
        env = StreamExecutionEnvironment.get_execution_environment(
            {"execution.checkpointing.dir": f"{place}/checkpoints", "execution.trigger": "available-now"}
        )
        files = env.spark.readStream.schema("id string, cents bigint").csv(f"{place}/*.csv")
        payments = env.from_dataframe(files).uid("payments").key_by("id")
        payments.filter(IsFirst()).set_parallelism(1).uid("first").print(name).uid("out")
        env.execute("payments")
        time.sleep(2)  # longer than the time to live
