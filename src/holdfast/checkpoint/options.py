"""Options of checkpoints: keys, types, defaults and deprecated keys.

Besides options with an effect there are two kinds: a `HarmlessOption` is accepted without effect, because the behaviour
it asks for is always on or cannot be observed; a `RefusedOption` accepts only its default.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import (
    ConfigOption,
    DurationType,
    HarmlessOption,
    MemoryLimit,
    MemorySize,
    RefusedOption,
)


class CheckpointingMode(Enum):
    """Guarantee of checkpoints."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class ExternalizedCheckpointRetention(Enum):
    """Whether checkpoints are kept when the job ends."""

    DELETE_ON_CANCELLATION = "deleted if the job is cancelled, kept if it fails"
    RETAIN_ON_CANCELLATION = "kept if the job is cancelled, fails or is suspended"
    NO_EXTERNALIZED_CHECKPOINTS = "never kept after the job has ended"


ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention


class RecoveryClaimMode(Enum):
    """Owner of the snapshot that a job is started from."""

    NO_CLAIM = "the user: the job never deletes it, and soon no longer needs it"
    CLAIM = "the job: it is deleted like the job's own checkpoints"
    LEGACY = "nobody: the job never deletes it, but may need it for ever"


class ClaimModeOption(ConfigOption[RecoveryClaimMode]):
    """Option of a claim mode; LEGACY is not supported."""

    def parse(self, value: Any, key: str | None = None) -> RecoveryClaimMode:
        """Return the mode.

        Raises:
            ConfigurationError: It is LEGACY, or unknown.
        """
        parsed = super().parse(value, key)
        if parsed is RecoveryClaimMode.LEGACY:
            raise ConfigurationError(
                f"Option {key or self.key!r} cannot be {value!r}: a job copies what it needs of the snapshot that it "
                "starts from, and never needs it for ever. Use NO_CLAIM or CLAIM."
            )
        return parsed


_PREFIX: Final = "execution.checkpointing."
_NO_CHANNELS: Final = "barriers never overtake elements, and checkpoints contain no elements in flight."
_NO_CHANGELOG: Final = "the changes of every epoch are durable as run files, so no changelog is needed."
_NO_MERGING: Final = "an epoch writes one run a subtask, and compaction merges them."

CHECKPOINT_STORAGE: Final = ConfigOption[str | None](
    "execution.checkpointing.storage",
    str,
    None,
    "Storage of checkpoints: filesystem or jobmanager (a temporary directory, deleted with the process). Unset: "
    "filesystem if execution.checkpointing.dir is set, otherwise jobmanager. The class path of a "
    "CheckpointStorageFactory is only for a CheckpointCoordinator that a program creates itself; jobs reject it.",
    deprecated_keys=("state.checkpoint-storage",),
)
CHECKPOINTS_DIRECTORY: Final = ConfigOption[str | None](
    "execution.checkpointing.dir",
    str,
    None,
    "Directory of checkpoints, under the same path for the driver and all executors, or an s3:// URI. Unset: a "
    "temporary directory, from which the job cannot resume.",
    deprecated_keys=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
)
SAVEPOINT_DIRECTORY: Final = ConfigOption[str | None](
    "execution.checkpointing.savepoint-dir",
    str,
    None,
    "Directory of savepoints that are requested without a directory.",
    deprecated_keys=("state.savepoints.dir", "savepoints.state.backend.fs.dir"),
)
CREATE_CHECKPOINT_SUBDIR: Final = ConfigOption(
    "execution.checkpointing.create-subdir",
    bool,
    True,
    "Whether each job has a directory of its own, named by its id, in execution.checkpointing.dir. If not, jobs must "
    "not share that directory.",
    deprecated_keys=("state.checkpoints.create-subdir",),
)
NUM_RETAINED: Final = ConfigOption(
    "execution.checkpointing.num-retained",
    int,
    3,
    "How many completed checkpoints are kept. Values below 1 mean the default. With 1 there is no older checkpoint to "
    "restore if a file is damaged.",
    deprecated_keys=("state.checkpoints.num-retained",),
)
GRACE_PERIOD: Final = ConfigOption(
    "execution.checkpointing.cleaner.grace-period",
    DurationType,
    10 * 60 * 1000,
    "How long a file is kept after the last checkpoint that refers to it was removed. Within this time queries, "
    "replays and copies can still read it. The files need space meanwhile.",
)
CLEANER_PARALLEL_MODE: Final = ConfigOption(
    "execution.checkpointing.cleaner.parallel-mode",
    bool,
    True,
    "Whether several files are deleted at a time.",
    deprecated_keys=("state.checkpoint.cleaner.parallel-mode",),
)
FS_SMALL_FILE_THRESHOLD: Final = ConfigOption(
    "execution.checkpointing.data-inline-threshold",
    MemorySize,
    20 * 1024,
    "Operator state of a subtask up to this size is stored in the checkpoint's document, larger state in a file. The "
    "report of one task contains at most 24 kb of it, whatever this threshold is.",
    deprecated_keys=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
)
FS_WRITE_BUFFER_SIZE: Final = HarmlessOption(
    "execution.checkpointing.write-buffer-size",
    int,
    4096,
    "How many bytes of an operator's stream are collected before they are written.",
    deprecated_keys=("state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
    reason="A stream is buffered as a whole and written at once, because its size decides where it is stored.",
)
CHECKPOINTING_INTERVAL: Final = ConfigOption(
    "execution.checkpointing.interval",
    DurationType,
    0,
    "How often a checkpoint completes, at the end of the first epoch at which it is due. 0 or unset: at the end of "
    "every epoch, in a real-time job every second.",
)
CHECKPOINTING_MODE: Final = ConfigOption(
    "execution.checkpointing.mode",
    CheckpointingMode,
    CheckpointingMode.EXACTLY_ONCE,
    "Guarantee of checkpoints: EXACTLY_ONCE or AT_LEAST_ONCE. In a real-time job tasks with AT_LEAST_ONCE do not wait "
    "for barriers, so that state is at least once. In other jobs state is exactly once in both modes, and the weaker "
    "one is not faster.",
)
CHECKPOINTING_TIMEOUT: Final = ConfigOption(
    "execution.checkpointing.timeout",
    DurationType,
    10 * 60 * 1000,
    "How long a checkpoint may take before it is aborted.",
)
MAX_CONCURRENT_CHECKPOINTS: Final = ConfigOption(
    "execution.checkpointing.max-concurrent-checkpoints",
    int,
    1,
    "How many checkpoints of a real-time job may be pending at a time. With execution.checkpointing.min-pause it is 1. "
    "The epochs of other jobs run one after another, so they never have more than one.",
)
MIN_PAUSE: Final = ConfigOption(
    "execution.checkpointing.min-pause",
    DurationType,
    0,
    "Minimum time from the completion of a checkpoint to the trigger of the next periodic one. In a real-time job "
    "also from the end of a failed one.",
)
TOLERABLE_FAILED: Final = ConfigOption(
    "execution.checkpointing.tolerable-failed-checkpoints",
    int,
    0,
    "How many checkpoints in a row may fail before the job fails over.",
)
ALIGNMENT_LIMIT: Final = ConfigOption[int | None](
    "task.checkpoint.alignment.max-size",
    MemoryLimit,
    None,
    "Maximum number of bytes that a task of a real-time job buffers while it waits for a barrier of all its "
    "producers; with more it declines the checkpoint. -1 or unset: only back-pressure limits it. Jobs by epochs buffer "
    "nothing.",
)
EXTERNALIZED_RETENTION: Final = ConfigOption(
    "execution.checkpointing.externalized-checkpoint-retention",
    ExternalizedCheckpointRetention,
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
    "Whether checkpoints are kept when the job ends. RETAIN_ON_CANCELLATION always keeps them, "
    "DELETE_ON_CANCELLATION unless the job is cancelled or finishes, NO_EXTERNALIZED_CHECKPOINTS only if the job is "
    "suspended.",
)
RECOVERY_PATH: Final = ConfigOption[str | None](
    "execution.state-recovery.path",
    str,
    None,
    "A checkpoint or savepoint to start from, instead of the job's own newest one.",
    deprecated_keys=("execution.savepoint.path",),
)
IGNORE_UNCLAIMED_STATE: Final = ConfigOption(
    "execution.state-recovery.ignore-unclaimed-state",
    bool,
    False,
    "Whether to drop the state of operators that the program no longer has. Otherwise the job does not start.",
    deprecated_keys=("execution.savepoint.ignore-unclaimed-state",),
)
CLAIM_MODE: Final = ClaimModeOption(
    "execution.state-recovery.claim-mode",
    RecoveryClaimMode,
    RecoveryClaimMode.NO_CLAIM,
    "Owner of the snapshot of execution.state-recovery.path. NO_CLAIM: you; the job does not need it after its first "
    "checkpoint. CLAIM: the job; it deletes the snapshot after its first checkpoint, and fences the job that wrote a "
    "claimed checkpoint.",
    deprecated_keys=("execution.savepoint-restore-mode",),
)
CHECKPOINTS_HISTORY: Final = ConfigOption(
    "web.checkpoints.history",
    int,
    10,
    "How many checkpoints the statistics keep in detail.",
    deprecated_keys=("jobmanager.web.checkpoints.history",),
)

HARMLESS: Final = (
    FS_WRITE_BUFFER_SIZE,
    HarmlessOption(
        "execution.checkpointing.incremental",
        bool,
        False,
        "Whether a checkpoint refers to files of earlier ones.",
        deprecated_keys=("state.backend.incremental",),
        reason="Checkpoints are always incremental: an epoch writes only its changes.",
    ),
    HarmlessOption(
        "execution.checkpointing.checkpoints-after-tasks-finish",
        bool,
        True,
        "Whether checkpoints go on when some tasks have finished.",
        deprecated_keys=("execution.checkpointing.checkpoints-after-tasks-finish.enabled",),
        reason="Every subtask takes part in every epoch, also when its input has ended.",
    ),
    HarmlessOption(
        "execution.checkpointing.aligned-checkpoint-timeout",
        DurationType,
        0,
        "After which time an aligned checkpoint becomes an unaligned one.",
        deprecated_keys=("execution.checkpointing.alignment-timeout",),
        reason="Barriers never overtake elements. In a real-time job set task.checkpoint.alignment.max-size.",
    ),
    HarmlessOption(
        "execution.checkpointing.local-backup.enabled",
        bool,
        False,
        "Whether a copy of the state is kept on local disks.",
        deprecated_keys=("state.backend.local-recovery",),
        fallback_keys=("execution.state-recovery.from-local",),
        reason="Runs that were used recently are in the page cache and in the workers' caches.",
    ),
    HarmlessOption[str | None](
        "execution.checkpointing.local-backup.dirs",
        str,
        None,
        "Directories of the local copies.",
        deprecated_keys=("taskmanager.state.local.root-dirs",),
        reason="There are no local backups. Copies for storage that is slow to read: state.local-cache.directory.",
    ),
    HarmlessOption(
        "execution.state-recovery.from-local",
        bool,
        False,
        "Whether a recovery uses the local copies.",
        deprecated_keys=("state.backend.local-recovery",),
        reason="Caches are used if they match the restored version.",
    ),
)


def _refused(key: str, kind: Any, default: Any, description: str, reason: str, *deprecated: str) -> RefusedOption[Any]:
    return RefusedOption(key, kind, default, description, deprecated_keys=deprecated, reason=reason)


def _changelog(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    return _refused(
        f"state.changelog.{name}", kind, default, "Changelog.", _NO_CHANGELOG, f"state.backend.changelog.{name}"
    )


def _dstl(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    key = f"state.changelog.dstl.dfs.{name}"
    return _refused(key, kind, default, "Storage of the changelog.", _NO_CHANGELOG, f"dstl.dfs.{name}")


REFUSED: Final = (
    _refused(
        _PREFIX + "interval-during-backlog",
        DurationType,
        None,
        "Interval while a source catches up.",
        "Spark's sources do not report a backlog; bound the size of epochs with the source's own options.",
    ),
    _refused(
        _PREFIX + "unaligned.enabled",
        bool,
        False,
        "Whether checkpoints overtake data in flight.",
        _NO_CHANNELS,
        "execution.checkpointing.unaligned",
    ),
    _refused(_PREFIX + "unaligned.forced", bool, False, "Unaligned checkpoints.", _NO_CHANNELS),
    _refused(_PREFIX + "unaligned.interruptible-timers.enabled", bool, False, "Unaligned checkpoints.", _NO_CHANNELS),
    _refused(_PREFIX + "unaligned.max-subtasks-per-channel-state-file", int, 5, "Unaligned checkpoints.", _NO_CHANNELS),
    _refused(
        _PREFIX + "unaligned.recover-output-on-downstream.enabled", bool, False, "Unaligned checkpoints.", _NO_CHANNELS
    ),
    _refused(
        _PREFIX + "during-recovery.enabled",
        bool,
        False,
        "Whether checkpoints are taken while channel state is recovered.",
        _NO_CHANNELS,
    ),
    _refused(
        _PREFIX + "snapshot-compression",
        bool,
        False,
        "Whether state is compressed in checkpoints.",
        "runs are memory-mapped, so they cannot be compressed. Let the file system compress them.",
    ),
    _refused(_PREFIX + "file-merging.enabled", bool, False, "Merging of small files.", _NO_MERGING),
    _refused(_PREFIX + "file-merging.across-checkpoint-boundary", bool, False, "Merging of small files.", _NO_MERGING),
    _refused(_PREFIX + "file-merging.pool-blocking", bool, False, "Merging of small files.", _NO_MERGING),
    _refused(_PREFIX + "file-merging.max-file-size", MemorySize, 32 << 20, "Merging of small files.", _NO_MERGING),
    _refused(_PREFIX + "file-merging.max-subtasks-per-file", int, 4, "Merging of small files.", _NO_MERGING),
    _refused(_PREFIX + "file-merging.max-space-amplification", float, 2.0, "Merging of small files.", _NO_MERGING),
    _refused(
        "pipeline.sources.pause-until-first-checkpoint",
        bool,
        False,
        "Whether sources wait for the first checkpoint.",
        "a source cannot be paused within an epoch, and every epoch can be recovered.",
    ),
    _refused(
        "execution.state-recovery.without-channel-state.checkpoint-id",
        int,
        -1,
        "Recovery without channel state.",
        _NO_CHANNELS,
        "execution.checkpointing.recover-without-channel-state.checkpoint-id",
    ),
    _refused(
        "execution.state-recovery.approximate-local-recovery",
        bool,
        False,
        "Whether a failed task restarts alone and loses data.",
        "a failed epoch runs again as a whole, so no approximate recovery is needed.",
        "execution.checkpointing.approximate-local-recovery",
    ),
    _changelog("enabled", bool, False),
    _changelog("storage", str, "memory"),
    _changelog("periodic-materialize.enabled", bool, True),
    _changelog("periodic-materialize.interval", DurationType, 10 * 60 * 1000),
    _changelog("max-failures-allowed", int, 3),
    _dstl("base-path", str, None),
    _dstl("compression.enabled", bool, False),
    _dstl("preemptive-persist-threshold", MemorySize, 5 << 20),
    _dstl("batch.persist-delay", DurationType, 10),
    _dstl("batch.persist-size-threshold", MemorySize, 10 << 20),
    _dstl("upload.buffer-size", MemorySize, 1 << 20),
    _dstl("upload.num-threads", int, 5),
    _dstl("upload.max-in-flight", MemorySize, 100 << 20),
    _dstl("upload.retry-policy", str, "fixed"),
    _dstl("upload.timeout", DurationType, 1000),
    _dstl("upload.max-attempts", int, 3),
    _dstl("upload.next-attempt-delay", DurationType, 500),
    _dstl("discard.num-threads", int, 1),
    _dstl("download.local-cache.idle-timeout-ms", DurationType, 10 * 60 * 1000),
)


# Options of parts of Flink that do not exist here: refused unless set to their defaults, or harmless.

_NO_ROCKSDB: Final = "there is no RocksDB backend. For state larger than memory use 'columnar' (state.backend.type)."
_NO_FORST: Final = (
    "there is no ForSt backend. State is in checkpoint storage, and the backend 'columnar' maps it from there."
)
_NO_TRACKING: Final = (
    "single accesses are not measured, because that would cost more than the access. JobClient.last_progress, REST "
    "and `holdfast inspect` report the time of epochs and the size of each state."
)


def _refused_foreign(key: str, kind: Any, default: Any, reason: str, *deprecated: str) -> RefusedOption[Any]:
    return RefusedOption(
        key, kind, default, "Option of a part that does not exist here.", deprecated_keys=deprecated, reason=reason
    )


def _tracking(group: str) -> tuple[RefusedOption[Any], ...]:
    names = (
        ("keyed-state-enabled", bool, False),
        ("sample-interval", int, 100),
        ("history-size", int, 128),
        ("state-name-as-variable", bool, True),
    )
    return tuple(
        _refused_foreign(f"state.{group}.{name}", kind, default, _NO_TRACKING, f"state.backend.{group}.{name}")
        for name, kind, default in names
    )


def _rocksdb(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    return _refused_foreign(f"state.backend.rocksdb.{name}", kind, default, _NO_ROCKSDB)


def _forst(name: str, kind: Any, default: Any) -> RefusedOption[Any]:
    return _refused_foreign(f"state.backend.forst.{name}", kind, default, _NO_FORST)


REFUSED_FOREIGN: Final = (
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


_NO_BUFFERS: Final = "By epochs elements cross an exchange at the end of its stage, in real time within milliseconds."
_NO_QUEUES: Final = "Operators of one task pass elements on without queues, as the same objects."
_PYTHON: Final = "Functions run in Spark's Python workers, which take whole batches."

HARMLESS_FOREIGN: Final = (
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
        "Watermarks advance at the end of each epoch. In a real-time job tasks send them between the elements.",
    ),
    _harmless(
        "execution.buffer-timeout.interval",
        DurationType,
        100,
        "How long a buffer waits.",
        _NO_BUFFERS,
        "execution.buffer-timeout",
    ),
    _harmless(
        "execution.buffer-timeout.enabled",
        bool,
        True,
        "Whether buffers wait.",
        _NO_BUFFERS,
    ),
    _harmless("python.execution-mode", str, "process", "Where functions run.", _PYTHON),
    _harmless("python.fn-execution.bundle.size", int, 1000, "Elements a bundle.", _PYTHON),
    _harmless("python.fn-execution.bundle.time", int, 1000, "Milliseconds a bundle.", _PYTHON),
    _harmless("python.fn-execution.arrow.batch.size", int, 1000, "Rows a batch.", _PYTHON),
    _harmless("python.fn-execution.memory.managed", bool, True, "Whose memory functions use.", _PYTHON),
    _harmless("python.operator-chaining.enabled", bool, True, "Whether functions share workers.", _NO_QUEUES),
)
