"""Options of a job as a whole: its name, its parallelism, when epochs start, how it starts."""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.kernel.option import ConfigOption
from holdfast.runtime.graph.input_fitting import ANEW, KEEP

JOB_NAME: Final = ConfigOption[str | None](
    "pipeline.name",
    str,
    None,
    "Name of the job where execute() is given none; the default is the script's name. The second such job of a "
    "process has `-2` after it, and so on.",
)

JOB_ID: Final = ConfigOption[str | None](
    "pipeline.job-id",
    str,
    None,
    "Id of the job, 32 hexadecimal digits; it names the job's directory. The default is derived from the job's "
    "name, so a job that is run again under its name resumes.",
)

AUTO_GENERATE_UIDS: Final = ConfigOption(
    "pipeline.auto-generate-uids",
    bool,
    True,
    "Whether operators without a uid get one that is derived from the structure of the program; false makes a missing "
    "uid an error.",
)

DEFAULT_PARALLELISM: Final = ConfigOption[int | None](
    "parallelism.default",
    int,
    None,
    "Subtasks of keyed operators that set no parallelism of their own; the default is Spark's default parallelism.",
)

MAX_PARALLELISM: Final = ConfigOption[int | None](
    "pipeline.max-parallelism",
    int,
    None,
    "Number of key groups of operators that set no max parallelism of their own; fixed for the life of their state. "
    "The default is derived from the parallelism.",
)


class RuntimeExecutionMode(Enum):
    """When reductions of a keyed stream emit: after each element, or once a key, at the end of bounded inputs."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2


RUNTIME_MODE: Final = ConfigOption(
    "execution.runtime-mode",
    RuntimeExecutionMode,
    RuntimeExecutionMode.STREAMING,
    "Whether reductions of keyed streams emit their result after each element ('STREAMING'), or once a key, at the end "
    "of bounded inputs ('BATCH'); 'AUTOMATIC' is 'BATCH' where all inputs of a stream are bounded.",
)

EXECUTION_TRIGGER: Final = ConfigOption(
    "execution.trigger",
    str,
    "continuous",
    "When epochs start: 'continuous' (as soon as there is input), 'available-now' (process what is there now, then "
    "stop), or an interval such as '10 s'.",
)

PACKED_EXCHANGE: Final = ConfigOption(
    "execution.exchange.packed",
    bool,
    True,
    "Whether elements go from one Python stage to the next in columns, many in one message, and not as rows of Spark. "
    "Elements are rows in any case before Spark 4.1, out of inputs that Spark reads, on their way to operators that "
    "order them, and where `spark.sql.execution.arrow.maxRecordsPerBatch` is 0 or above 200000.",
)

PYTHON_FILES: Final = ConfigOption[list[str]](
    "python.files",
    list,
    [],
    "Modules (.py) and packages (.zip, .egg, .whl) that the job's functions import, by their paths on the host of the "
    "driver: they are sent to all Python workers. `holdfast submit --files` sets it.",
)

START_FRESH: Final = ConfigOption(
    "execution.state-recovery.fresh",
    bool,
    False,
    "Whether the job starts without state although there are checkpoints of it, which are kept until newer ones "
    "subsume them.",
)

KEEP_INPUTS: Final = ConfigOption[list[str]](
    KEEP,
    list,
    [],
    "Uids of inputs that read something else than when the checkpoint was taken (another path, topic, format or "
    "schema), and whose positions hold there. Without effect on inputs that read the same.",
)

RENEW_INPUTS: Final = ConfigOption[list[str]](
    ANEW,
    list,
    [],
    "Uids of inputs that read something else than when the checkpoint was taken, and are to begin at their start "
    "there. Without effect on inputs that read the same, so it may stay set.",
)

START_REQUEST: Final = ConfigOption(
    "execution.state-recovery.request",
    str,
    "",
    "A name of your own for the start that --fresh or -s asks for. Each start happens once: a process that has died "
    "and is started again in the same way goes on. Another name makes it another start.",
)

IDENTICAL_FAILURES: Final = ConfigOption(
    "restart-strategy.identical-failures",
    int,
    3,
    "How often in a row, without a completed checkpoint between, the same error of the program's own making (a "
    "function that raises, a value of a wrong type, a null key, all at the same operator), or an input that cannot be "
    "read, may end an attempt before the job fails, whatever the strategy says. 0 leaves it to the strategy, as in "
    "Flink.",
)

IDENTICAL_UNKNOWN_FAILURES: Final = ConfigOption(
    "restart-strategy.identical-unknown-failures",
    int,
    10,
    "How often in a row, without a completed checkpoint between, an attempt may end with the same error that is known "
    "neither as the program's nor as that of a machine before the job fails, whatever the strategy says. Numbers in "
    "the text of an error make no difference. 0 leaves it to the strategy, as in Flink.",
)
