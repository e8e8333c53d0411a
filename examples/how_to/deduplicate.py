"""Pass each payment once, and forget its id two seconds after it was first seen."""

import tempfile
import time
from pathlib import Path

from holdfast.datastream import StreamExecutionEnvironment

with tempfile.TemporaryDirectory() as place:
    for name, text in {"1.csv": "p1,500\np2,80\np1,500\n", "2.csv": "p3,20\np1,500\n"}.items():
        Path(place, name).write_text(text)
        env = StreamExecutionEnvironment.get_execution_environment(
            {"execution.checkpointing.dir": f"{place}/checkpoints", "execution.trigger": "available-now"}
        )
        files = env.spark.readStream.schema("id string, cents bigint").csv(f"{place}/*.csv")
        payments = env.from_dataframe(files).uid("payments").key_by("id")
        payments.deduplicate(ttl="2 s").set_parallelism(1).uid("first").print(name).uid("out")
        env.execute("payments")
        time.sleep(2)  # longer than the time to live
