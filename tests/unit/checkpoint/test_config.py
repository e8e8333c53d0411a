"""The options of checkpoints, and `CheckpointConfig`, which sets them."""

import importlib
from datetime import timedelta
from enum import Enum

import pytest

from holdfast.checkpoint import options
from holdfast.checkpoint.config import NEVER, CheckpointConfig, CoordinatorConfiguration, load_checkpoint_storage
from holdfast.checkpoint.options import CheckpointingMode, ExternalizedCheckpointCleanup
from holdfast.checkpoint.snapshot_type import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    SavepointFormatType,
    SnapshotSharing,
    SnapshotType,
)
from holdfast.checkpoint.storage import (
    CheckpointStorageFactory,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.errors import AlreadyExistError, ConfigurationError, StorageError
from holdfast.kernel.configuration import Configuration, all_options, options_for
from tests.unit.checkpoint.support import JOB, document, run_handle


def test_defaults_are_those_of_the_contract():
    configuration = Configuration()
    assert configuration.get(options.NUM_RETAINED) == 3
    assert configuration.get(options.CHECKPOINTING_INTERVAL) == 0
    assert configuration.get(options.CHECKPOINTING_TIMEOUT) == 600_000
    assert configuration.get(options.TOLERABLE_FAILED) == 0
    assert configuration.get(options.GRACE_PERIOD) == 600_000
    assert CoordinatorConfiguration.from_options(configuration) == CoordinatorConfiguration()


@pytest.mark.parametrize(
    ("old", "value", "option", "expected"),
    [
        ("state.checkpoints.dir", "/c", options.CHECKPOINTS_DIRECTORY, "/c"),
        ("state.backend.fs.checkpointdir", "/c", options.CHECKPOINTS_DIRECTORY, "/c"),
        ("state.savepoints.dir", "/s", options.SAVEPOINT_DIRECTORY, "/s"),
        ("state.checkpoints.num-retained", "7", options.NUM_RETAINED, 7),
        ("state.storage.fs.memory-threshold", "1 kb", options.FS_SMALL_FILE_THRESHOLD, 1024),
        ("execution.savepoint.path", "/s/1", options.RECOVERY_PATH, "/s/1"),
        ("execution.savepoint-restore-mode", "no_claim", options.CLAIM_MODE, options.RecoveryClaimMode.NO_CLAIM),
        ("jobmanager.web.checkpoints.history", "3", options.CHECKPOINTS_HISTORY, 3),
    ],
)
def test_older_names_are_accepted(old, value, option, expected):
    configuration = Configuration({old: value})
    configuration.validate()
    assert configuration.get(option) == expected


@pytest.mark.parametrize("option", options.REFUSED, ids=lambda option: option.key)
def test_what_has_no_meaning_here_is_refused_with_the_reason_unless_it_is_the_default(option):
    if option.default is not None:
        Configuration({option.key: option.default}).validate()
    other = {bool: option.default is not True, str: "other", int: 77, float: 7.5}.get(option.type, 77)
    with pytest.raises(ConfigurationError) as caught:
        Configuration({option.key: other})
    assert option.key in str(caught.value)
    assert option.reason in str(caught.value)
    for alias in option.deprecated_keys:
        with pytest.raises(ConfigurationError, match=alias):
            Configuration({alias: other})


@pytest.mark.parametrize("option", options.HARMLESS, ids=lambda option: option.key)
def test_what_is_harmless_is_accepted_and_says_why(option):
    value = {bool: not option.default, str: "/x"}.get(option.type, 5)
    Configuration({option.key: value}).validate()
    assert option.reason


def test_a_directory_may_be_given_as_a_path(tmp_path):
    config = CheckpointConfig().set_checkpoint_storage_dir(tmp_path)
    assert config.configuration.get(options.CHECKPOINTS_DIRECTORY) == str(tmp_path)
    storage = FileSystemCheckpointStorage(tmp_path, savepoint_directory=tmp_path / "savepoints")
    assert (storage.get_checkpoint_path(), storage.get_savepoint_path()) == (str(tmp_path), f"{tmp_path}/savepoints")


def test_a_program_sets_the_same_options():
    config = CheckpointConfig()
    config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE).set_checkpoint_interval(5000)
    config.set_checkpoint_timeout(700).set_min_pause_between_checkpoints(40).set_max_concurrent_checkpoints(2)
    config.set_tolerable_checkpoint_failure_number(3)
    config.enable_externalized_checkpoints(CheckpointConfig.ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    config.set_checkpoint_storage_dir("file:///c")
    assert config.configuration.get(options.CHECKPOINTS_DIRECTORY) == "file:///c"
    assert config.get_externalized_checkpoint_cleanup() is ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION
    assert config.is_externalized_checkpoints_enabled()
    assert CoordinatorConfiguration.from_options(config.configuration) == CoordinatorConfiguration(
        5000, 700, 40, 2, CheckpointRetentionPolicy.RETAIN_ON_FAILURE, 3, CheckpointingMode.AT_LEAST_ONCE
    )
    assert (config.get_checkpoint_interval(), config.get_checkpoint_timeout()) == (5000, 700)
    assert (config.get_min_pause_between_checkpoints(), config.get_max_concurrent_checkpoints()) == (40, 2)
    assert not config.is_fail_on_checkpointing_errors()
    assert config.disable_checkpointing().get_checkpoint_interval() == NEVER
    assert not config.is_checkpointing_enabled()


def test_a_program_that_says_only_whether_checkpoints_may_fail_sets_how_many():
    config = CheckpointConfig()
    assert config.set_fail_on_checkpointing_errors(False).get_tolerable_checkpoint_failure_number() == 2**31 - 1
    assert config.set_tolerable_checkpoint_failure_number(2).set_fail_on_checkpointing_errors(False)
    assert config.get_tolerable_checkpoint_failure_number() == 2
    assert config.set_fail_on_checkpointing_errors(True).is_fail_on_checkpointing_errors()


def test_what_a_program_sets_about_alignment_is_harmless_or_refused():
    config = CheckpointConfig()
    assert config.set_alignment_timeout(timedelta(seconds=3)).get_aligned_checkpoint_timeout() == timedelta(seconds=3)
    config.disable_unaligned_checkpoints().set_force_unaligned_checkpoints(False)
    assert not config.is_unaligned_checkpoints_enabled()
    assert not config.is_force_unaligned_checkpoints()
    config.configuration.validate()
    for wrong, reason in (
        (config.enable_unaligned_checkpoints, "barriers never overtake elements"),
        (config.set_force_unaligned_checkpoints, "barriers never overtake elements"),
        (lambda: config.set_checkpoint_interval_during_backlog(10_000), "do not report a backlog"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            wrong()


def test_another_configuration_sets_what_it_says_of_checkpoints_and_nothing_else():
    config = CheckpointConfig(Configuration({"state.checkpoints.num-retained": 7, "state.savepoints.dir": "/s"}))
    config.configure({"execution.checkpointing.num-retained": 4, "state.checkpoints.dir": "/c", "pipeline.name": "x"})
    config.configure(Configuration({"execution.checkpointing.dir": "/d"}))
    assert config.configuration.to_dict() == {
        "execution.checkpointing.num-retained": 4,
        "state.savepoints.dir": "/s",
        "execution.checkpointing.dir": "/d",
    }


def test_values_are_brought_into_range_or_refused():
    def normalised(**values):
        keys = {f"execution.checkpointing.{key.replace('_', '-')}": value for key, value in values.items()}
        return CoordinatorConfiguration.from_options(Configuration(keys))

    assert normalised(interval=3).interval == 10
    assert normalised(interval=50, min_pause=200).interval == 200
    assert normalised(timeout=1).timeout == 10
    assert normalised(min_pause="1000 d").min_pause == 365 * 24 * 3600 * 1000
    for values in ({"max_concurrent_checkpoints": 0}, {"tolerable_failed_checkpoints": -1}):
        with pytest.raises(ConfigurationError):
            normalised(**values)
    config = CheckpointConfig()
    for wrong in (
        lambda: config.set_checkpoint_interval(-1),
        lambda: config.set_checkpoint_interval("soon"),
        lambda: config.set_checkpoint_timeout("soon"),
        lambda: config.set_max_concurrent_checkpoints("many"),
        lambda: config.set_tolerable_checkpoint_failure_number("many"),
        lambda: config.set_checkpoint_timeout(9),
        lambda: config.set_max_concurrent_checkpoints(0),
        lambda: config.set_tolerable_checkpoint_failure_number(-1),
        lambda: config.enable_unaligned_checkpoints(),
    ):
        with pytest.raises(ConfigurationError):
            wrong()


def test_the_storage_is_what_the_options_say():
    def storage(**values):
        return load_checkpoint_storage(Configuration({f"execution.checkpointing.{k}": v for k, v in values.items()}))

    assert isinstance(storage(), JobManagerCheckpointStorage)
    assert storage(dir="/c").get_checkpoint_path() == "/c"
    assert isinstance(storage(dir="/c", storage="jobmanager"), JobManagerCheckpointStorage)
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.dir"):
        storage(storage="filesystem")
    with pytest.raises(ConfigurationError, match="'rocket'"):
        storage(storage="rocket")
    assert storage(dir="/c", **{"data-inline-threshold": "2 mb"}).get_min_file_size_threshold() == 20 * 1024
    with pytest.raises(ConfigurationError, match="1048576"):
        FileSystemCheckpointStorage("/c", 2 * 1024 * 1024)
    with pytest.raises(ConfigurationError):
        JobManagerCheckpointStorage(max_state_size=0)


class OwnStorageFactory(CheckpointStorageFactory):
    def create_from_config(self, config):
        return JobManagerCheckpointStorage(max_state_size=77)


def test_a_storage_of_ones_own_is_named_by_its_class_path():
    def storage(path):
        return load_checkpoint_storage(Configuration({"execution.checkpointing.storage": path}))

    assert storage(f"{__name__}:OwnStorageFactory").get_max_state_size() == 77
    assert storage(f"{__name__}.OwnStorageFactory").get_max_state_size() == 77
    for wrong in (f"{__name__}:Absent", "no.such.module:X", "json:loads"):
        with pytest.raises(ConfigurationError, match=wrong.replace(".", r"\.")):
            storage(wrong)


def test_checkpoints_in_memory_are_limited_and_written_once():
    access = JobManagerCheckpointStorage(max_state_size=2000).create_checkpoint_storage(JOB)
    place = access.initialize_location_for_checkpoint(1)
    assert place.write_metadata(document(1)) == place.data
    with pytest.raises(AlreadyExistError):
        place.write_metadata(document(1))
    with pytest.raises(StorageError, match="larger than the maximum"):
        access.initialize_location_for_checkpoint(2).write_metadata(document(2, runs=[run_handle("x" * 2000)]))
    with pytest.raises(ConfigurationError, match="savepoint"):
        access.initialize_location_for_savepoint(3, None)
    assert not access.supports_highly_available_storage()


def test_a_savepoint_needs_a_directory(tmp_path):
    access = FileSystemCheckpointStorage(str(tmp_path)).create_checkpoint_storage(JOB)
    assert not access.has_default_savepoint_location()
    with pytest.raises(ConfigurationError, match="savepoint-dir"):
        access.initialize_location_for_savepoint(1, None)
    first = access.initialize_location_for_savepoint(1, str(tmp_path / "s"))
    second = access.initialize_location_for_savepoint(2, str(tmp_path / "s"))
    assert first.path != second.path
    assert first.path.split("/")[-1].startswith(f"savepoint-{str(JOB)[:6]}-")


DISCARDS = {
    "checkpoint, never": (
        CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
        [True, True, True, True, True],
    ),
    "checkpoint, on failure": (
        CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_FAILURE),
        [True, True, True, False, True],
    ),
    "checkpoint, on cancellation": (
        CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION),
        [True, True, False, False, False],
    ),
    "savepoint": (CheckpointProperties.for_savepoint(), [False] * 5),
    "savepoint of a stop": (CheckpointProperties.for_sync_savepoint(True, True), [False] * 5),
    "unclaimed": (CheckpointProperties.for_unclaimed_snapshot(), [False] * 5),
}


@pytest.mark.parametrize("kind", DISCARDS)
def test_when_each_kind_is_deleted(kind):
    properties, expected = DISCARDS[kind]
    assert [
        properties.discard_on_subsumed(),
        properties.discard_on_job_finished(),
        properties.discard_on_job_cancelled(),
        properties.discard_on_job_failed(),
        properties.discard_on_job_suspended(),
    ] == expected
    assert CheckpointProperties.from_json(properties.to_json()) == properties
    assert not properties.discard_on("RUNNING")


def test_kinds_of_snapshots():
    assert [kind.is_savepoint() for kind in SnapshotType] == [False, False, True, True, True]
    assert [kind.is_synchronous() for kind in SnapshotType] == [False, False, False, True, True]
    assert SnapshotType.TERMINATE_SAVEPOINT.should_drain()
    assert not SnapshotType.SUSPEND_SAVEPOINT.should_drain()
    assert SnapshotType.CHECKPOINT.get_sharing_files_strategy() is SnapshotSharing.FORWARD_BACKWARD
    assert SnapshotType.FULL_CHECKPOINT.get_sharing_files_strategy() is SnapshotSharing.FORWARD
    assert SnapshotType.SAVEPOINT.get_sharing_files_strategy() is SnapshotSharing.NO_SHARING
    assert CheckpointType.SAVEPOINT.is_savepoint()
    assert not CheckpointType.CHECKPOINT.is_savepoint()
    assert CheckpointProperties.for_savepoint().format_type is SavepointFormatType.CANONICAL
    assert CheckpointProperties.for_unclaimed_snapshot().is_unclaimed()
    assert CheckpointProperties.for_unclaimed_snapshot() == CheckpointProperties.for_savepoint(False, None)


FLINK = """
state.backend.type hashmap state.backend
execution.checkpointing.storage - state.checkpoint-storage
execution.checkpointing.dir - state.checkpoints.dir state.backend.fs.checkpointdir
execution.checkpointing.savepoint-dir - state.savepoints.dir savepoints.state.backend.fs.dir
execution.checkpointing.create-subdir true state.checkpoints.create-subdir
execution.checkpointing.num-retained 3 state.checkpoints.num-retained
execution.checkpointing.cleaner.parallel-mode true state.checkpoint.cleaner.parallel-mode
execution.checkpointing.incremental false state.backend.incremental
execution.checkpointing.data-inline-threshold 20480 state.storage.fs.memory-threshold state.backend.fs.memory-threshold
execution.checkpointing.write-buffer-size 4096 state.storage.fs.write-buffer-size state.backend.fs.write-buffer-size
execution.checkpointing.interval 0
execution.checkpointing.interval-during-backlog -
execution.checkpointing.mode EXACTLY_ONCE
execution.checkpointing.timeout 600000
execution.checkpointing.max-concurrent-checkpoints 1
execution.checkpointing.min-pause 0
execution.checkpointing.tolerable-failed-checkpoints 0
execution.checkpointing.externalized-checkpoint-retention RETAIN_ON_CANCELLATION
execution.checkpointing.checkpoints-after-tasks-finish true \
    execution.checkpointing.checkpoints-after-tasks-finish.enabled
execution.checkpointing.unaligned.enabled false execution.checkpointing.unaligned
execution.checkpointing.unaligned.forced false
execution.checkpointing.unaligned.interruptible-timers.enabled false
execution.checkpointing.unaligned.max-subtasks-per-channel-state-file 5
execution.checkpointing.unaligned.recover-output-on-downstream.enabled false
execution.checkpointing.during-recovery.enabled false
execution.checkpointing.aligned-checkpoint-timeout 0 execution.checkpointing.alignment-timeout
execution.checkpointing.snapshot-compression false
execution.checkpointing.local-backup.enabled false state.backend.local-recovery execution.state-recovery.from-local
execution.checkpointing.local-backup.dirs - taskmanager.state.local.root-dirs
execution.checkpointing.file-merging.enabled false
execution.checkpointing.file-merging.across-checkpoint-boundary false
execution.checkpointing.file-merging.pool-blocking false
execution.checkpointing.file-merging.max-file-size 33554432
execution.checkpointing.file-merging.max-subtasks-per-file 4
execution.checkpointing.file-merging.max-space-amplification 2.0
pipeline.sources.pause-until-first-checkpoint false
execution.state-recovery.path - execution.savepoint.path
execution.state-recovery.ignore-unclaimed-state false execution.savepoint.ignore-unclaimed-state
execution.state-recovery.claim-mode NO_CLAIM execution.savepoint-restore-mode
execution.state-recovery.from-local false state.backend.local-recovery
execution.state-recovery.without-channel-state.checkpoint-id -1 \
    execution.checkpointing.recover-without-channel-state.checkpoint-id
execution.state-recovery.approximate-local-recovery false execution.checkpointing.approximate-local-recovery
state.changelog.enabled false state.backend.changelog.enabled
state.changelog.storage memory state.backend.changelog.storage
state.changelog.periodic-materialize.enabled true state.backend.changelog.periodic-materialize.enabled
state.changelog.periodic-materialize.interval 600000 state.backend.changelog.periodic-materialize.interval
state.changelog.max-failures-allowed 3 state.backend.changelog.max-failures-allowed
state.changelog.dstl.dfs.base-path - dstl.dfs.base-path
state.changelog.dstl.dfs.compression.enabled false dstl.dfs.compression.enabled
state.changelog.dstl.dfs.preemptive-persist-threshold 5242880 dstl.dfs.preemptive-persist-threshold
state.changelog.dstl.dfs.batch.persist-delay 10 dstl.dfs.batch.persist-delay
state.changelog.dstl.dfs.batch.persist-size-threshold 10485760 dstl.dfs.batch.persist-size-threshold
state.changelog.dstl.dfs.upload.buffer-size 1048576 dstl.dfs.upload.buffer-size
state.changelog.dstl.dfs.upload.num-threads 5 dstl.dfs.upload.num-threads
state.changelog.dstl.dfs.upload.max-in-flight 104857600 dstl.dfs.upload.max-in-flight
state.changelog.dstl.dfs.upload.retry-policy fixed dstl.dfs.upload.retry-policy
state.changelog.dstl.dfs.upload.timeout 1000 dstl.dfs.upload.timeout
state.changelog.dstl.dfs.upload.max-attempts 3 dstl.dfs.upload.max-attempts
state.changelog.dstl.dfs.upload.next-attempt-delay 500 dstl.dfs.upload.next-attempt-delay
state.changelog.dstl.dfs.discard.num-threads 1 dstl.dfs.discard.num-threads
state.changelog.dstl.dfs.download.local-cache.idle-timeout-ms 600000 dstl.dfs.download.local-cache.idle-timeout-ms
state.latency-track.keyed-state-enabled false state.backend.latency-track.keyed-state-enabled
state.latency-track.sample-interval 100 state.backend.latency-track.sample-interval
state.latency-track.history-size 128 state.backend.latency-track.history-size
state.latency-track.state-name-as-variable true state.backend.latency-track.state-name-as-variable
state.size-track.keyed-state-enabled false
state.size-track.sample-interval 100
state.size-track.history-size 128
state.size-track.state-name-as-variable true
state.backend.rocksdb.localdir -
state.backend.rocksdb.timer-service.factory ROCKSDB
state.backend.rocksdb.timer-service.cache-size 128
state.backend.rocksdb.checkpoint.transfer.thread.num 4
state.backend.rocksdb.predefined-options DEFAULT
state.backend.rocksdb.options-factory -
state.backend.rocksdb.memory.managed true
state.backend.rocksdb.memory.fixed-per-slot -
state.backend.rocksdb.memory.fixed-per-tm -
state.backend.rocksdb.memory.write-buffer-ratio 0.5
state.backend.rocksdb.memory.high-prio-pool-ratio 0.1
state.backend.rocksdb.memory.partitioned-index-filters false
state.backend.forst.primary-dir checkpoint-dir
state.backend.forst.local-dir -
state.backend.forst.cache.size-based-limit 0
state.backend.forst.cache.reserve-size 268435456
state.backend.forst.sync.enforce-local true
state.backend.forst.executor.read-io-parallelism 3
state.backend.forst.executor.write-io-parallelism 1
restart-strategy.type - restart-strategy
restart-strategy.fixed-delay.attempts 1
restart-strategy.fixed-delay.delay 1000
restart-strategy.failure-rate.max-failures-per-interval 1
restart-strategy.failure-rate.failure-rate-interval 60000
restart-strategy.failure-rate.delay 1000
restart-strategy.exponential-delay.initial-backoff 1000
restart-strategy.exponential-delay.max-backoff 60000
restart-strategy.exponential-delay.backoff-multiplier 1.5
restart-strategy.exponential-delay.reset-backoff-threshold 3600000
restart-strategy.exponential-delay.jitter-factor 0.1
restart-strategy.exponential-delay.attempts-before-reset-backoff 2147483647
web.checkpoints.history 10 jobmanager.web.checkpoints.history
sink.committer.retries 10
queryable-state.enable false
queryable-state.proxy.ports 9069 query.proxy.ports queryable-state.server.ports query.server.ports
queryable-state.proxy.network-threads 0 query.proxy.network-threads
queryable-state.proxy.query-threads 0 query.proxy.query-threads
queryable-state.server.network-threads 0 query.server.network-threads
queryable-state.server.query-threads 0 query.server.query-threads
queryable-state.client.network-threads 0 query.client.network-threads
"""


@pytest.mark.parametrize("line", FLINK.strip().splitlines())
def test_every_option_of_flink_is_known_with_its_default_and_its_older_names(line):
    importlib.import_module("holdfast.datastream.environment.stream_execution_environment")
    importlib.import_module("holdfast.runtime.job.options")
    key, default, *older = line.split()
    option = all_options()[key]
    if isinstance(option.default, bool) or option.default is None:
        shown = {None: "-", True: "true", False: "false"}[option.default]
    elif isinstance(option.default, Enum):
        shown = option.default.name
    else:
        shown = str(option.default)
    assert shown == default
    assert set(older) == {*option.deprecated_keys, *option.fallback_keys} - {
        f"state.backend.size-track.{key.rpartition('.')[2]}"
    }
    assert all(option in options_for(name) for name in older)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("state.backend.rocksdb.memory.managed", "false", "no RocksDB backend"),
        ("state.backend.latency-track.keyed-state-enabled", "true", "not measured"),
        ("state.backend.changelog.enabled", "true", "so no changelog is needed"),
    ],
)
def test_what_has_no_meaning_is_refused_and_not_ignored(key, value, reason):
    with pytest.raises(ConfigurationError, match=reason):
        Configuration({key: value}).validate()
