"""The tests that only `make test-all` runs: they tell at length, or again on another server, what shorter ones tell.

By the beginnings of their names, so that a contract that many classes fulfil may be long for some of them only.
`tests/unit/test_long_tests.py` fails for an entry that names nothing.
"""

from __future__ import annotations

HISTORIES = "test_every_history_ends_as_in_plain_dicts"
"""Of the state machine of backends; a warm hashmap and plain columns are enough to see that something is wrong."""

LONG = (
    f"tests/contract/test_compaction.py::TestHistoriesWithCompactions::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestBackendsThatTakeTurns::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestColdHashMap::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestColumnarWithLargeMaps::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestForgetfulHashMap::{HISTORIES}",
    f"tests/contract/test_state_backends.py::TestUsersOwn::{HISTORIES}",
    "tests/contract/test_versioned_files.py::TestVersionedFile::test_a_reader_that_sleeps",
    "tests/contract/test_versioned_files.py::TestVersionedFile::test_whoever_sleeps",
    "tests/unit/checkpoint/test_sweeper.py::test_many_epochs_with_leaders_that_die_leave_only_what_is_retained",
    "tests/unit/cli/test_query.py::test_a_server_at_all_addresses_says_under_which_name_it_is_reached",
    "tests/unit/cli/test_query.py::test_a_state_server_drops_a_job_whose_directory_is_removed",
    "tests/unit/cli/test_query.py::test_watching_waits_for_a_server_and_goes_on_when_it_comes_back",
    "tests/unit/queryable/test_live_job.py::test_no_reader_sees_anything_but_completed_checkpoints",
    "tests/unit/runtime/test_long_story.py::test_500_epochs",
)
