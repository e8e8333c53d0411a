"""Options of Flink about parts that are not here: refused unless set to their defaults, or harmless."""

from __future__ import annotations

from typing import Any, Final

from holdfast.checkpoint.config.options import HarmlessOption, RefusedOption
from holdfast.kernel.option import DurationType, MemorySize

_NO_ROCKSDB: Final = (
    "there is no RocksDB backend; for state larger than memory there is 'columnar' (state.backend.type)."
)
_NO_FORST: Final = (
    "there is no ForSt backend; state is in checkpoint storage anyway, and 'columnar' maps it from there."
)
_NO_TRACKING: Final = (
    "single accesses are not measured, because that would cost more than they do; JobClient.last_progress, REST and "
    "`holdfast inspect` tell the time of epochs and the size of each state."
)


def _refused(key: str, kind: Any, default: Any, reason: str, *deprecated: str) -> RefusedOption[Any]:
    return RefusedOption(key, kind, default, "Of a part that is not here.", deprecated_keys=deprecated, reason=reason)


def _tracking(group: str) -> tuple[RefusedOption[Any], ...]:
    names = (
        ("keyed-state-enabled", bool, False),
        ("sample-interval", int, 100),
        ("history-size", int, 128),
        ("state-name-as-variable", bool, True),
    )
    return tuple(
        _refused(f"state.{group}.{name}", kind, default, _NO_TRACKING, f"state.backend.{group}.{name}")
        for name, kind, default in names
    )


def _rocksdb(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    return _refused(f"state.backend.rocksdb.{name}", kind, default, _NO_ROCKSDB)


def _forst(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    return _refused(f"state.backend.forst.{name}", kind, default, _NO_FORST)


REFUSED: Final = (
    *_tracking("latency-track"),
    *_tracking("size-track"),
    _rocksdb("localdir", str, None),
    _rocksdb("timer-service.factory", str, "ROCKSDB"),
    _rocksdb("timer-service.cache-size", int, 128),
    _rocksdb("checkpoint.transfer.thread.num", int, 4),
    _rocksdb("predefined-options", str, "DEFAULT"),
    _rocksdb("options-factory", str, None),
    _rocksdb("memory.managed", bool, True),
    _rocksdb("memory.fixed-per-slot", MemorySize, None),
    _rocksdb("memory.fixed-per-tm", MemorySize, None),
    _rocksdb("memory.write-buffer-ratio", float, 0.5),
    _rocksdb("memory.high-prio-pool-ratio", float, 0.1),
    _rocksdb("memory.partitioned-index-filters", bool, False),
    _forst("primary-dir", str, "checkpoint-dir"),
    _forst("local-dir", str, None),
    _forst("cache.size-based-limit", MemorySize, 0),
    _forst("cache.reserve-size", MemorySize, 256 << 20),
    _forst("sync.enforce-local", bool, True),
    _forst("executor.read-io-parallelism", int, 3),
    _forst("executor.write-io-parallelism", int, 1),
)


def _harmless(
    key: str, kind: Any, default: Any, description: str, reason: str, *deprecated: str
) -> HarmlessOption[Any]:
    return HarmlessOption(key, kind, default, description, deprecated_keys=deprecated, reason=reason)


_NO_QUEUES: Final = "What shares a task shares it without queues, and hands on the same objects."
_PYTHON: Final = "Functions run in Spark's Python workers, which take whole batches."

HARMLESS: Final = (
    _harmless("pipeline.object-reuse", bool, False, "Whether chained operators share objects.", _NO_QUEUES),
    _harmless(
        "pipeline.operator-chaining.enabled",
        bool,
        True,
        "Whether operators share tasks.",
        _NO_QUEUES,
        "pipeline.operator-chaining",
    ),
    _harmless(
        "pipeline.auto-watermark-interval",
        DurationType,
        200,
        "How often watermarks are made.",
        "Watermarks advance at the end of each epoch.",
    ),
    _harmless(
        "execution.buffer-timeout.interval",
        DurationType,
        100,
        "How long a buffer waits.",
        "Elements cross an exchange when the stage above it has ended.",
        "execution.buffer-timeout",
    ),
    _harmless(
        "execution.buffer-timeout.enabled",
        bool,
        True,
        "Whether buffers wait.",
        "Elements cross an exchange when the stage above it has ended.",
    ),
    _harmless("python.execution-mode", str, "process", "Where functions run.", _PYTHON),
    _harmless("python.fn-execution.bundle.size", int, 1000, "Elements a bundle.", _PYTHON),
    _harmless("python.fn-execution.bundle.time", int, 1000, "Milliseconds a bundle.", _PYTHON),
    _harmless("python.fn-execution.arrow.batch.size", int, 1000, "Rows a batch.", _PYTHON),
    _harmless("python.fn-execution.memory.managed", bool, True, "Whose memory functions use.", _PYTHON),
    _harmless("python.operator-chaining.enabled", bool, True, "Whether functions share workers.", _NO_QUEUES),
)
