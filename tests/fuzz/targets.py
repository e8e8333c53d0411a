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

NAMES: Final = (
    "arrow_file",
    "avro_message",
    "barrier_row",
    "committable",
    "compressed_lines",
    "confluent_message",
    "csv_lines",
    "csv_message",
    "database_committable",
    "debezium_message",
    "delta_committable",
    "delta_log",
    "document",
    "entry_map",
    "execution_plan",
    "flink_savepoint",
    "frame",
    "iceberg_committable",
    "job_manager_request",
    "job_result",
    "json_lines",
    "json_message",
    "kafka_committable",
    "key_bytes",
    "leader_information",
    "lease_file",
    "lease_record",
    "ledger",
    "marker_record",
    "metadata",
    "operator_state",
    "option",
    "parquet_file",
    "query_answer",
    "query_key",
    "query_request",
    "register_entry",
    "register_marker",
    "rest_address",
    "rest_request",
    "run_file",
    "run_footer",
    "run_segment",
    "source_positions",
    "spark_log",
    "spark_operator",
    "split_record",
    "staged_rows",
    "state_pointer",
    "stored_type",
    "table_marker",
    "text_lines",
    "type_text",
    "watch_line",
)
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
