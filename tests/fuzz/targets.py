"""Everything that reads bytes from outside, by name: a new parser is a file in `target` and a line here.

A target takes any bytes. It may raise an error of Holdfast, which names the file if there is one; anything else that
it raises is a defect, and so is a hang, or memory that has no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError

KINDS: Final = {
    "run files": ("run_file", "run_footer", "run_segment", "key_bytes", "stored_type"),
    "`_metadata`": (
        "document", "metadata", "operator_state", "source_positions", "committable", "database_committable",
        "delta_committable", "iceberg_committable", "kafka_committable", "hook_state",
    ),
    "pointers": ("state_pointer", "entry_map"),
    "register entries": ("register_entry", "register_marker"),
    "plans and results of jobs": ("execution_plan", "job_result"),
    "lease records": ("lease_file", "lease_record", "leader_information", "watch_line"),
    "wire frames": ("frame", "query_answer", "query_registration"),
    "REST": ("rest_request", "rest_address", "rest_head", "rest_answer", "job_manager_request"),
    "queries": ("query_request", "query_key"),
    "reports and staged output of tasks": ("barrier_row", "split_record", "staged_rows", "staged_upload"),
    "files of job managers, messages of job processes": (
        "cluster_marker", "ended_job", "job_manager_address", "process_line", "process_start",
    ),
    "epochs recorded in tables, topics and directories": ("delta_log", "ledger", "marker_record", "table_marker"),
    "messages": ("avro_message", "confluent_message", "csv_message", "debezium_message", "json_message"),
    "files of inputs": (
        "arrow_file", "compressed_lines", "csv_agreement", "csv_lines", "json_agreement", "json_lines", "parquet_file",
        "text_lines",
    ),
    "savepoints of Flink, checkpoints of Spark": ("flink_savepoint", "spark_log", "spark_operator"),
    "options and types": ("option", "type_text"),
}  # fmt: skip
"""The targets by what they read."""
NAMES: Final = tuple(sorted(name for names in KINDS.values() for name in names))
CORPUS: Final = Path(__file__).with_name("corpus")


class Target:
    """One parser.

    Args:
        name: See `NAMES`.

    Attributes:
        corpus: Its inputs that are kept; at least one of them is read to its end.
    """

    def __init__(self, name: str) -> None:
        module = import_module(f"tests.fuzz.target.{name}")
        self._parse: Callable[[bytes], None] = module.parse
        self._path: str | None = getattr(module, "PATH", None)
        self.corpus = sorted((CORPUS / name).iterdir())

    def accepts(self, data: bytes) -> bool:
        """Whether an input is read to its end.

        Raises:
            AssertionError: What is refused does not name its file.
            Exception: Any error but one of Holdfast: a defect.
        """
        try:
            self._parse(data)
        except HoldfastError as error:
            assert self._path is None or self._path in str(error), f"{error!r} does not name {self._path!r}"
            assert len(str(error)) < 20_000, "the whole input stands in the message"
            return False
        return True
