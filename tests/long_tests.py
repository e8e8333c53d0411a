"""The tests that only `make test-all` runs.

They are the tests in `LONG`, and those that took more than `SECONDS` in the last `make durations` and are not in
`SHORT`. Entries are prefixes of names, so a contract test can be long for some classes only.
`tests/unit/test_long_tests.py` fails for an entry that names nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

SECONDS: Final = 0.8
_DURATIONS: Final = Path(__file__).with_name("durations.json")

HISTORIES = "test_every_history_ends_as_in_plain_dicts"
"""Of the state machine of backends; a warm hashmap and plain columns are enough to see that something is wrong."""

SLEPT = "test_a_leader_that_slept_for_longer_than_its_lease_stands_by_and_finds_the_job_done"
KILLED_IN_COMMIT = "test_the_leader_is_killed_in_a_commit_and_the_driver_that_stood_by_goes_on"
LEDGER = "tests/spark/test_ledger_stories.py"
"""Whole jobs on Spark, ended in every way; `make test` has the process group that is killed."""

KILLED_REPORT = "test_a_process_killed_while_a_report_goes_to_a_file_leaves_nothing_behind"

CRASHES = "tests/unit/runtime/test_crash_stories.py"
"""Whole jobs in a process of their own, ended at each fault point; `make test` has the moments that are told apart."""

COMPACTIONS = "tests/unit/runtime/test_compaction_stories.py"
FENCED = "tests/unit/runtime/test_paused_leader.py::test_a_deposed_leader_that_wakes_up_is_fenced_and_changes_nothing"
"""At every step of two epochs; `make test` has those right before and after something becomes durable."""

MANAGER = "tests/unit/dispatcher/test_job_manager.py"
"""Job managers in processes of their own; `make test` has the leader that is killed and the one without elections."""

NEXMARK = "test_a_query_gives_the_answer_of_duckdb"
NEXMARK_KILLED = "test_every_query_that_is_killed_gives_the_same_answer"
NEXMARK_KILLED_ON_SPARK = "test_queries_on_spark_that_are_killed_in_the_middle_give_the_same_answers"
NEXMARK_ON_SPARK = "test_a_query_on_spark_gives_the_answer_of_duckdb"
LONG_QUERIES = ("q3", "q6", "q7", "q9", "q11", "q12", "q15", "q17", "q20")
"""`make test` has one query of each kind: a window, a join in a window, a join, and each way to change an answer."""

CHANGES = "tests/unit/datastream/test_changes.py::test_killed_at_any_step_the_tables_end_as_the_changes_say"
"""Killed at each step of a commit into three tables; `make test` has those before and after a sink's own commit."""

BY_KEY = "tests/contract/test_table_changes.py"
STOPPED = (
    "test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes",
    "test_a_process_that_wakes_in_a_commit_when_others_are_two_epochs_further_changes_nothing",
    "test_a_process_that_wakes_in_an_epoch_of_no_changes_when_others_are_further_changes_nothing",
    "test_processes_that_commit_the_same_at_the_same_time_apply_it_once",
)
"""Processes that are killed and that sleep in commits by a key; `make test` has them for Delta."""

BUCKET = "tests/services/test_tables_in_object_store.py"
"""Tables in a store that fails at each single request; `make test` has one table, and what only a store does."""

LOST = "tests/services/kafka/test_lost_answers.py"
LOST_ELSEWHERE = ("the start of a producer", "the opening of a transaction", "rows", "a marker", "the last commit")
"""`make test` has the answer of a commit that is lost once."""

LONG_SPLITS = ("TestKafkaSinkInParts", "test_a_process_that_is_killed_at_a_line", "test_a_process_that_gets_no_answer")
"""`make test` has the process that dies before and after the commit of each part."""

ENTRIES = "test_a_new_driver_has_the_objects_of_the_one_before_as_its_own"
LONG_ENTRIES = ("on_standard_input", "at_a_prompt_after_a_script", "by_command")
"""`make test` has a prompt, `python -m` and a notebook."""

LINES = "tests/unit/runtime/realtime/test_real_time_files.py::test_a_job_killed_at_a_durable_write_reads_each_line_once"
"""Real-time jobs in a process of their own; `make test` has those killed at the list of files."""

TOPICS = "tests/services/kafka/test_real_time_topics.py"
KILLED_SENDER = "test_a_process_that_dies_after_its_records_were_sent"
"""`make test` has the tasks that fail, and the process that dies after a commit."""

LONG = (
    "tests/contract/test_compaction.py::TestEverythingCompacted::test_timers_end_as_in_a_plain_set",
    f"tests/contract/test_compaction.py::TestHistoriesWithCompactions::{HISTORIES}",
    "tests/contract/test_compaction.py::TestSomethingCompacted::test_timers_end_as_in_a_plain_set",
    "tests/contract/test_database_sinks.py::TestPostgres",
    "tests/contract/test_database_sinks.py::TestSQLiteInParts::test_a_process",
    "tests/contract/test_database_sinks.py::TestSQLiteThatRefuses::test_a_job",
    "tests/contract/test_database_sinks.py::TestSQLiteThatRefuses::test_a_process_that_resumes_a_commit",
    "tests/contract/test_sinks.py::TestFileSink",
    "tests/contract/test_sinks.py::TestForEachEpochIntoADatabase",
    f"tests/contract/test_state_backends.py::TestBackendsThatTakeTurns::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestColdHashMap::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestColumnarWithLargeMaps::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestForgetfulHashMap::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestUsersOwn::{HISTORIES}",
    *(f"{BY_KEY}::{name}[{target}" for name in STOPPED for target in ("Iceberg", "SQLite", "Postgres")),
    "tests/contract/test_table_sinks.py::TestIceberg::test_a_process_that_is_killed_in_a_commit",
    "tests/contract/test_table_sinks.py::TestIceberg::test_a_process_that_resumes_a_commit",
    "tests/contract/test_table_sinks.py::TestIceberg::test_processes_that_commit_the_same",
    "tests/contract/test_table_sinks.py::TestIceberg::test_a_refused_row_reaches_the_dead_letter",
    "tests/contract/test_versioned_files.py::TestVersionedFile::test_a_reader_that_sleeps",
    "tests/contract/test_versioned_files.py::TestVersionedFile::test_a_writer_that_sleeps",
    "tests/golden/test_golden_keys.py::test_a_value_expires_at_its_stamp_plus_the_time_to_live[format-1-keys--1]",
    "tests/golden/test_golden_keys.py::test_a_value_expires_at_its_stamp_plus_the_time_to_live[format-1-keys-1000]",
    "tests/services/kafka/test_kafka_sink.py::test_a_broker_that_is_killed_between_the_epochs",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_a_process_that_resumes_a_commit",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_processes_that_commit_the_same",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_a_job_that_dies_and_is_started_again",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_a_refused_row_reaches_the_dead_letter",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_a_job_waits_for_an_unreachable_target",
    *(f"tests/services/kafka/test_split_commits.py::{name}" for name in LONG_SPLITS),
    f"{LOST}::test_a_broker_that_is_killed",
    f"{LOST}::test_a_process_that_never_gets_the_answer",
    *(f"{LOST}::test_an_answer_that_is_lost_is_asked_for_again[{name}]" for name in LOST_ELSEWHERE),
    "tests/services/kafka/test_kafka_rights.py",
    f"{TOPICS}::test_a_broker_that_is",
    f"{TOPICS}::{KILLED_SENDER}[at-least-once",
    f"{TOPICS}::{KILLED_SENDER}[exactly-once-after:sink.stage",
    f"{TOPICS}::{KILLED_SENDER}[exactly-once-before",
    "tests/services/kafka/test_recompressing_topics.py",
    "tests/services/kafka/test_topic_limits.py::test_a_limit_that_is_lowered",
    "tests/services/kafka/test_topic_ranges.py::test_a_topic_whose_name_is_mistyped",
    "tests/services/kafka/test_topic_limits.py::test_a_topic_takes_what_a_task_lets_pass",
    "tests/services/kafka/test_topic_limits.py::test_what_is_compressed",
    "tests/services/kafka/test_schema_registry.py",
    "tests/services/kubernetes/test_contenders.py::test_ten_contenders_of_which_the_leader_is_killed_ten_times",
    "tests/services/kubernetes/test_leader_election.py::test_a_retriever_goes_on_after_everything_that_ends_a_watch",
    "tests/services/kubernetes/test_rbac.py::TestElectionUnderLeastRights",
    "tests/services/queryable/test_leaders.py::test_a_leader_is_killed_and_another_process_goes_on",
    "tests/services/test_database_sink.py::test_a_commit_whose_answer_is_lost_is_not_repeated",
    "tests/services/test_refused_rows.py::test_an_answer_that_is_lost_while_rows_are_looked_for",
    f"tests/services/test_elected_jobs.py::{SLEPT}[filesystem]",
    f"tests/services/test_elected_jobs.py::{SLEPT}[kubernetes]",
    f"tests/services/test_elected_jobs.py::{KILLED_IN_COMMIT}[filesystem]",
    f"tests/services/test_elected_jobs.py::{KILLED_IN_COMMIT}[kubernetes]",
    "tests/services/test_ha_takeover.py::test_leaders_that_share_an_object_store",
    "tests/services/test_ha_takeover.py::test_ten_leaders_are_killed_and_each_time_another_takes_over[filesystem]",
    "tests/services/test_ha_takeover.py::test_ten_leaders_are_killed_and_each_time_another_takes_over[kubernetes]",
    "tests/services/test_job_on_object_store.py::test_killed_at_every_step_of_a_checkpoint_it_still_comes_to_the_right_end",
    "tests/services/test_object_store.py::TestFileRegister::test_a_reader_that_sleeps",
    "tests/services/test_object_store.py::TestFileRegister::test_a_process_that_sleeps",
    "tests/services/test_object_store.py::TestFileRegister::test_a_writer_that_sleeps",
    "tests/services/test_object_store.py::TestFileSystemStateHandleStore::test_any_history",
    "tests/services/test_site.py",
    "tests/services/test_zookeeper_election.py::test_an_ensemble_that_loses_its_leader_keeps_ours_or_elects_another",
    "tests/simulation/test_simulation.py::test_a_bug_is_found[done before moved]",
    "tests/simulation/test_simulation.py::test_a_bug_is_found[token not checked]",
    "tests/spark/test_dice_stories.py",
    "tests/spark/test_examples.py::test_a_database_is_written_once_by_epoch",
    "tests/spark/test_kafka_rights.py",
    "tests/spark/test_kafka_stories.py",
    "tests/spark/test_payments.py",
    f"{CHANGES}[after:pointer.write",
    f"{CHANGES}[after:sink.stage",
    f"{CHANGES}[before:notify",
    f"{CHANGES}[lost:sink.commit",
    "tests/spark/test_examples.py::test_a_custom_sink_writes_each_line_once",
    "tests/spark/test_flights_queries.py",
    "tests/spark/test_from_spark.py::test_counts_and_deduplication_of_spark_continue_in_built_in_reductions",
    "tests/spark/test_how_to_stories.py::test_the_recipe_for_kafka",
    "tests/spark/test_first_minutes_stories.py::test_a_start_under_another_name",
    "tests/spark/test_first_minutes_stories.py::test_the_demo_kills",
    "tests/spark/test_installed_wheel_stories.py",
    "tests/spark/test_windows.py::test_two_streams_meet_in_windows_over_three_runs_of_different_parallelism",
    f"{LEDGER}::test_a_damaged_input_file_fails_the_job_by_name",
    f"{LEDGER}::test_a_killed_executor_of_two[2-ledger-kill-executor]",
    f"{LEDGER}::test_a_killed_executor_of_two[2-parity-kill-executor-late]",
    f"{LEDGER}::test_a_killed_executor_of_two[3-thirds-kill-executor-late]",
    f"{LEDGER}::test_a_killed_executor_of_two[3-thirds-kill-executor]",
    f"{LEDGER}::test_a_lost_answer_restarts_the_job_in_the_same_process",
    f"{LEDGER}::test_an_executor_is_killed_in_the_second_epoch_job_of_an_epoch",
    f"{LEDGER}::test_killed_at_a_fault_point_of_the_driver[after:source.copy:4=kill]",
    f"{LEDGER}::test_killed_at_a_fault_point_of_the_driver[after:spark.commit:2=kill]",
    f"{LEDGER}::test_killed_at_a_fault_point_of_the_driver[before:source.copy:4=kill]",
    f"{LEDGER}::test_killed_at_a_fault_point_of_the_driver[before:spark.commit:2=kill]",
    f"{LEDGER}::test_no_input_for_a_minute",
    f"{LEDGER}::test_sigterm_ends_after_the_current_epoch_with_exit_code_0",
    f"{LEDGER}::test_sigterm_to_all_processes_of_the_job_ends_it_with_exit_code_0[between epochs]",
    f"{LEDGER}::test_sigterm_to_all_processes_of_the_job_ends_it_with_exit_code_0[while tasks run]",
    f"{LEDGER}::test_sigterm_while_tasks_run_lets_their_epoch_complete",
    f"{LEDGER}::test_the_disk_of_the_checkpoints_fails_and_recovers",
    f"{LEDGER}::test_the_drivers_jvm_alone_is_killed",
    f"{LEDGER}::test_the_drivers_python_process_alone_is_killed",
    f"{LEDGER}::test_the_process_group_is_killed_between_the_epoch_jobs_of_an_epoch",
    f"{LEDGER}::test_two_chained_stages_run_without_a_fault_and_a_second_run_resumes",
    f"{LEDGER}::test_two_drivers_on_one_job_directory_the_first_is_fenced",
    f"tests/spark/test_nexmark.py::{NEXMARK_KILLED_ON_SPARK}",
    *(
        f"tests/spark/test_nexmark.py::{NEXMARK_ON_SPARK}[{name}]"
        for name in ("q0", "q1", "q2", "q7", "q8", "q10", "q11", "q22")
    ),
    "tests/spark/test_object_store_story.py",
    "tests/spark/test_program_log.py::test_a_program_shows_the_log_of_its_job_unless_it_has_configured_its_own[only",
    "tests/spark/test_pyflink_examples.py",
    "tests/spark/test_pyflink_kafka_examples.py",
    "tests/spark/test_pyflink_programs.py::test_another_program",
    "tests/spark/test_schema_registry.py",
    "tests/spark/test_settings_of_a_session.py::test_each_type_passes_a_job_under_further_settings",
    "tests/spark/test_real_time_jobs.py::test_a_session_that_cannot_run_it_is_refused_in_one_sentence[options1",
    "tests/spark/test_real_time_jobs.py::test_barriers_pass_a_last_stage_that_is_ten_times_too_slow_and_memory_stays[one",
    "tests/spark/test_real_time_sources.py::test_bounded_sources_give_each_element_once_although_a_worker_is_killed[1]",
    "tests/spark/test_standalone_stories.py",
    "tests/spark/test_yarn_stories.py",
    *(f"tests/unit/benchmarks/test_nexmark.py::{NEXMARK}[{name}]" for name in LONG_QUERIES),
    f"tests/unit/benchmarks/test_nexmark.py::{NEXMARK_KILLED}",
    "tests/unit/benchmarks/test_nexmark.py::test_a_query_that_is_killed_again_and_again_gives_the_same_answer[q4]",
    "tests/unit/checkpoint/test_sweeper.py::test_many_epochs_with_leaders_that_die_leave_only_what_is_retained",
    "tests/unit/cli/test_query.py::test_a_server_at_all_addresses_says_under_which_name_it_is_reached",
    "tests/unit/cli/test_query.py::test_a_server_takes_the_options_of_a_job",
    "tests/unit/cli/test_query.py::test_a_state_server_drops_a_job_whose_directory_is_removed",
    "tests/unit/cli/test_query.py::test_watching_waits_for_a_server_and_goes_on_when_it_comes_back",
    "tests/unit/examples/test_flights_oracle.py::test_the_batch_computation_tells_the_same_story_as_a_plain_loop",
    "tests/unit/examples/test_flights_prepare.py::test_a_run_that_was_interrupted_is_begun_anew",
    "tests/unit/queryable/test_live_job.py::test_no_reader_sees_anything_but_completed_checkpoints",
    "tests/unit/queryable/test_replicas.py::test_a_replica_that_hangs_is_not_waited_for",
    "tests/unit/queryable/test_safety.py::test_a_client_that_reads_slowly_is_not_sent_away",
    "tests/unit/queryable/test_safety.py::test_gets_that_waited_for_the_same_checkpoint",
    "tests/unit/runtime/test_broadcast.py::test_each_element_meets_the_rules_of_its_epoch_and_of_all_before",
    "tests/unit/runtime/test_compaction_stories.py::test_bad_weather_while_everything_is_compacted",
    f"{COMPACTIONS}::test_a_compaction_that_cannot_write_costs_nothing_but_its_work[after]",
    f"{COMPACTIONS}::test_a_compaction_that_cannot_write_costs_nothing_but_its_work[before]",
    f"{COMPACTIONS}::test_a_compactor_that_is_killed_again_and_again_is_started_again",
    f"{COMPACTIONS}::test_merges_bring_a_job_back_to_the_runs_that_it_may_have[process]",
    f"{COMPACTIONS}::test_a_job_with_fast_compaction_never_exceeds_the_limit_of_runs[3]",
    f"{COMPACTIONS}::test_results_that_come_after_a_rescaling_fit_or_are_dropped",
    f"{CRASHES}::test_a_full_disk_is_one_clear_error_and_loses_nothing[pointer.write]",
    f"{CRASHES}::test_a_full_disk_is_one_clear_error_and_loses_nothing[run.write]",
    f"{CRASHES}::test_a_full_disk_is_one_clear_error_and_loses_nothing[sink.stage]",
    f"{CRASHES}::test_an_answer_that_is_lost_leads_to_a_restart_in_the_same_process[notify]",
    f"{CRASHES}::test_an_answer_that_is_lost_leads_to_a_restart_in_the_same_process[run.write]",
    f"{CRASHES}::test_an_answer_that_is_lost_leads_to_a_restart_in_the_same_process[sink.stage]",
    f"{CRASHES}::test_killed_again_and_again_the_job_has_the_right_result",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again[metadata.write-before]",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again[notify",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again[pointer.write-before]",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again[run.write",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again[sink.stage",
    f"{CRASHES}::test_killed_while_it_deletes_subsumed_checkpoints_and_run_again[after]",
    f"{CRASHES}::test_killed_while_it_deletes_subsumed_checkpoints_and_run_again[before]",
    "tests/unit/datastream/test_tables_in_duckdb.py",
    "tests/unit/runtime/test_long_story.py::test_500_epochs",
    "tests/unit/runtime/test_operator_state.py::test_lists_and_maps_over_starts_at_any_parallelism",
    f"tests/unit/runtime/test_operator_state.py::{KILLED_REPORT}[before]",
    f"tests/unit/runtime/test_operator_state.py::{KILLED_REPORT}[lost]",
    f"{FENCED}[after ids were reserved]",
    f"{FENCED}[after positions were taken]",
    f"{FENCED}[after the last task]",
    f"{FENCED}[before ids are reserved]",
    f"{FENCED}[before planning",
    f"{FENCED}[before the first task]",
    f"{FENCED}[before the last task]",
    f"{FENCED}[before the next",
    f"{FENCED}[before the sweep lists]",
    f"{FENCED}[before the sweep reads the documents]",
    f"{FENCED}[between",
    f"{FENCED}[in the next epoch's tasks]",
    "tests/unit/runtime/test_savepoints.py::test_a_disposal_of_a_killed_process_can_be_repeated[before]",
    "tests/unit/state/compaction/test_policy.py::test_ten_thousand_epochs",
    "tests/unit/state/test_deleted_runs.py::test_a_job_that_goes_on_lets_go_of_what_it_deleted_before",
    "tests/unit/storage/test_register.py::TestFileRegister::test_a_process_that_sleeps",
    "tests/unit/storage/test_register.py::TestFileRegister::test_a_writer_that_sleeps",
    "tests/unit/test_long_tests.py",
    "tests/unit/test_names.py::test_benchmarks_take_json",
    "tests/unit/test_pyflink_programs.py::test_a_program_prints_the_same_where",
    f"{MANAGER}::test_a_job_manager_is_reached_with_tls",
    f"{MANAGER}::test_a_leader_that_is_told_to_stop",
    f"{MANAGER}::test_a_leader_that_sleeps",
    f"{MANAGER}::test_a_new_job_that_cannot_begin",
    f"{MANAGER}::test_a_process_that_is_killed",
    f"{MANAGER}::test_a_spare_process_that_cannot_get_ready",
    f"{MANAGER}::test_the_next_leader_and_the_next_process_have",
    *(f"tests/unit/types/test_entries_of_programs.py::{ENTRIES}[{name}]" for name in LONG_ENTRIES),
    "tests/unit/types/test_entries_of_programs.py::test_a_program_may_be_started_otherwise",
    "tests/spark/test_clock_steps.py::test_a_job_continues_although_the_clock_steps_back_an_hour[driver and JVM",
    "tests/spark/test_program_classes.py::test_drivers_of_spark_submit",
    "tests/spark/test_program_classes.py::test_job_managers",
    "tests/spark/test_submitted_jobs.py",
    "tests/spark/test_failure_output.py::test_a_function_that_raises_prints_at_most_forty_lines[available-now-holdfast",
    "tests/spark/test_failure_output.py::test_a_function_that_raises_prints_at_most_forty_lines[real-time-python",
    "tests/spark/test_failure_output.py::test_verbose",
    "tests/services/test_image_in_containers.py",
    "tests/services/test_output_in_object_store.py::TestOutputInABucket",
    f"{BUCKET}::TestDeltaInABucket",
    f"{BUCKET}::TestIcebergInABucket",
    f"{BUCKET}::test_a_catalog_of_glue",
    f"{BUCKET}::test_a_store_that_goes_away_at_any_request_of_a_commit_shows_each_row_once[Delta-puts]",
    f"{BUCKET}::test_a_store_that_goes_away_at_any_request_of_a_commit_shows_each_row_once[Iceberg",
    f"{BUCKET}::test_a_task_that_fails_at_any_request_leaves_nothing[Delta-refused]",
    f"{BUCKET}::test_a_task_that_fails_at_any_request_leaves_nothing[Iceberg",
    "tests/services/test_job_managers.py::test_the_other_job_manager_goes_on_and_nothing_is_left_in_the_store[kubernetes]",
    *(f"{LINES}[{moment}-{point}" for moment in ("before", "after") for point in ("metadata", "pointer", "sink")),
)

_SPARK = "tests/spark/test_"
_REAL_TIME = "tests/unit/runtime/realtime/test_"

SHORT = (
    "tests/contract/test_leader_elections.py::TestFileSystemElection::test_a_leader_that_is_cut_off",
    "tests/contract/test_state_backends.py::TestWarmHashMap::test_every_history_ends_as_in_plain_dicts",
    "tests/contract/test_table_changes.py::test_a_process_that_is_killed_in_a_commit",
    "tests/contract/test_table_sinks.py::TestDelta::test_a_process_that_is_killed_in_a_commit",
    "tests/services/kafka/test_kafka_sink.py::test_a_transaction_left_open_by_a_process_that_died",
    "tests/services/kafka/test_kafka_sink_contract.py::TestKafkaSink::test_a_process_that_is_killed_in_a_commit",
    "tests/services/kubernetes/test_leader_election.py::TestKubernetesLeaderElection::test_a_leader_that_is_cut_off",
    "tests/services/kubernetes/test_state_handle_store.py::TestKubernetesStateHandleStore::test_any_history",
    f"tests/services/test_elected_jobs.py::{KILLED_IN_COMMIT}",
    "tests/services/test_ha_takeover.py::test_a_leader_that_is_stopped_for_longer_than_its_lease",
    "tests/services/test_output_in_object_store.py::test_rows_are_objects_once_their_epoch_is_complete",
    "tests/services/test_real_time_database_sink.py::test_a_process_that_dies_at_a_transaction[after-1]",
    f"{BUCKET}::test_strangers_read_what_is_there[Delta]",
    "tests/services/test_web_page.py::test_axe_finds_nothing_in_any_view[1280-light]",
    "tests/services/test_web_page.py::test_every_page_shows_what_the_job_does",
    "tests/services/test_zookeeper_store.py::TestZooKeeperStateHandleStore::test_any_history",
    "tests/simulation/test_simulation.py::test_a_bug_is_found[one sink speaks for all]",
    "tests/simulation/test_simulation.py::test_no_history_goes_wrong[50]",
    "tests/simulation/test_simulation.py::test_no_history_in_real_time_goes_wrong",
    f"{_SPARK}arrow_map.py",
    f"{_SPARK}changes.py",
    f"{_SPARK}consumed_files.py",
    f"{_SPARK}event_time.py",
    f"{_SPARK}examples.py::test_the_program_of_the_readme",
    f"{_SPARK}file_source.py",
    f"{_SPARK}how_to_stories.py::test_a_recipe_prints_what_its_page_shows[sessionise]",
    f"{_SPARK}inputs.py",
    f"{_SPARK}kafka_source.py::test_a_restarted_job_resumes_at_its_offsets",
    f"{_SPARK}key_hash.py",
    f"{LEDGER}::test_the_whole_process_group_is_killed",
    f"{_SPARK}pipelined_job.py",
    f"{_SPARK}queries.py",
    f"{_SPARK}real_time_jobs.py",
    f"{_SPARK}real_time_sources.py",
    f"{_SPARK}signals.py::test_ctrl_c_ends_a_job_that_prints_with_one_line_that_says_how_to_resume[1 s-python]",
    f"{_SPARK}transform_with_state.py",
    f"{_SPARK}transforms.py",
    "tests/unit/cli/test_new.py::test_a_new_project_passes_its_own_test",
    f"{MANAGER}::test_the_leader_is_killed",
    f"{MANAGER}::test_without_elections",
    f"{_REAL_TIME}concurrent_checkpoints.py::test_barriers_follow_one_another_before_checkpoints_complete[EXACTLY_ONCE]",
    f"{_REAL_TIME}declined_checkpoints.py::test_a_sink_that_cannot_flush_now_declines_and_goes_on[False]",
    f"{_REAL_TIME}failed_checkpoints.py::test_a_task_that_is_slower_than_the_timeout",
    f"{_REAL_TIME}failed_checkpoints.py::test_storage_that_fails_once[1]",
    f"{_REAL_TIME}killed_snapshots.py::test_a_process_that_dies_at_a_file_of_state[before-2]",
    f"{_REAL_TIME}real_time_jobs.py",
    "tests/unit/runtime/test_batch_timers.py",
    f"{CRASHES}::test_killed_at_a_fault_point_and_run_again",
    f"{FENCED}[before the pointer is written]",
    "tests/unit/test_docs.py",
    "tests/unit/test_structure.py",
    f"tests/unit/types/test_entries_of_programs.py::{ENTRIES}[as_a_module]",
    "tests/unit/window/test_window_model.py",
)
"""Tests that `make test` runs although they are slow: one or two for each kind of real server and real failure."""


@cache
def durations() -> Mapping[str, float]:
    """Return how many seconds each test took that is near `SECONDS` or above."""
    return json.loads(_DURATIONS.read_text(encoding="utf-8"))


def is_long(test: str) -> bool:
    """Return whether only `make test-all` runs the test with an id."""
    return test.startswith(LONG) or (durations().get(test, 0.0) > SECONDS and not test.startswith(SHORT))


def store_durations(tests: Mapping[str, float]) -> None:
    """Store how many seconds tests took; those that did not run keep theirs."""
    found = {test: round(took, 1) for test, took in tests.items() if took > SECONDS / 2}
    kept = {test: took for test, took in durations().items() if test not in tests}
    _DURATIONS.write_text(json.dumps(kept | found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
