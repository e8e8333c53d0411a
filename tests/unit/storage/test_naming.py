"""Who may delete a file can be read off its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID
from holdfast.storage.job_directory import FileName, JobDirectory, checkpoint_id_of
from holdfast.storage.local import LocalFileSystem, temporary_name

NAMES = st.builds(
    FileName.new,
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.text("0123456789abcdef_XYZ", min_size=1, max_size=12),
    st.integers(0, 32767),
)


@given(NAMES, st.sampled_from([".run", "", ".parquet", ".state.arrow"]))
def test_a_name_says_what_it_was_made_of(name, suffix):
    assert FileName.parse(name.format(suffix)) == name
    assert FileName.parse(temporary_name(name.format(suffix))) == name


def test_the_form_of_a_name():
    name = FileName(7, 42, 3, "1a2b3c4d", 5, "0123456789ab")
    assert name.format() == "000007-000000042-3-1a2b3c4d-5-0123456789ab.run"


def test_no_two_names_are_equal():
    assert FileName.new(1, 1, 1, "a", 1) != FileName.new(1, 1, 1, "a", 1)


@pytest.mark.parametrize(
    "other",
    [
        "_metadata",
        "chk-1",
        "part-0000.parquet",
        "7-42-3-1a2b3c4d-5-0123456789ab.run",
        "000007-000000042-3-1a2b3c4d-5-0123456789ab.run/x",
        "000007-000000042-3-1a2b3c4d-5-0123456789AB.run",
        "x000007-000000042-3-1a2b3c4d-5-0123456789ab.run",
        "000007-000000042-3-1a2b3c4d-5-0123456789ab.run.",
        "",
    ],
)
def test_names_of_others_are_not_ours(other):
    assert FileName.parse(other) is None


def test_an_owner_that_would_break_the_form_is_refused():
    with pytest.raises(ValueError, match="owner"):
        FileName.new(1, 1, 1, "a-b", 1).format()


def test_a_job_directory_knows_its_places():
    directory = JobDirectory(LocalFileSystem(), "/data/checkpoints/", JobID("0" * 32))
    root = "/data/checkpoints/" + "0" * 32
    assert directory.path == root
    assert directory.metadata_path(7) == f"{root}/chk-7/_metadata"
    assert (directory.shared_dir, directory.taskowned_dir) == (f"{root}/shared", f"{root}/taskowned")
    assert directory.relative(f"{root}/shared/x") == "shared/x"
    assert directory.absolute("shared/x") == f"{root}/shared/x"
    assert directory.absolute("/elsewhere/x") == "/elsewhere/x"
    with pytest.raises(ValueError, match="elsewhere"):
        directory.relative("/elsewhere/x")


def test_a_job_directory_without_a_level_for_the_job():
    directory = JobDirectory(LocalFileSystem(), "/data", JobID("0" * 32), create_subdir=False)
    assert directory.chk_dir(1) == "/data/chk-1"


def test_only_directories_of_checkpoints_have_an_id():
    assert checkpoint_id_of("chk-12") == 12
    for other in ("chk-", "chk-1a", "xchk-1", "shared", "chk--1"):
        assert checkpoint_id_of(other) is None


def test_a_job_id_that_could_leave_the_directory_is_refused():
    with pytest.raises(ConfigurationError):
        JobID("../../etc")
