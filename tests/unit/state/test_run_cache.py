"""What a process remembers of the runs that it has opened is bounded, in number and in what was unpacked."""

from holdfast.state.run_file import RunCache

SAME = ("digest", 100, 1)


def known(runs, *paths):
    return [path for path in paths if runs.get(path, SAME) is not None]


def opened(*paths, **limits):
    runs = RunCache(**limits)
    for path in paths:
        runs.put(path, SAME, f"run {path}")
    return runs


def test_a_file_that_has_changed_is_not_known():
    runs = opened("a")
    assert runs.get("a", SAME) == "run a"
    assert runs.get("a", ("digest", 100, 2)) is None
    runs.drop("a")
    assert runs.get("a", SAME) is None


def test_the_runs_that_were_used_longest_ago_are_forgotten():
    runs = opened("a", "b", "c", most_runs=3)
    runs.get("a", SAME)
    runs.put("d", SAME, "run d")
    assert known(runs, "a", "b", "c", "d") == ["a", "c", "d"]


def test_what_was_unpacked_is_bounded_and_what_is_mapped_stays():
    runs = opened("a", "mapped", "b", "c", most_bytes=100)
    runs.unpacked("a", 30)
    runs.unpacked("a", 30)
    runs.unpacked("b", 40)
    assert known(runs, "a", "mapped", "b", "c") == ["a", "mapped", "b", "c"]
    runs.unpacked("c", 10)
    assert known(runs, "a", "mapped", "b", "c") == ["mapped", "b", "c"]
    runs.unpacked("b", 51)
    assert known(runs, "a", "mapped", "b", "c") == ["mapped", "c"]
    runs.unpacked("c", 90)
    assert known(runs, "c") == ["c"], "just as much as there may be"


def test_one_run_that_is_too_large_is_used_and_not_remembered():
    runs = opened("a", "b", most_bytes=100)
    runs.unpacked("b", 101)
    assert known(runs, "a", "b") == ["a"]
    runs.unpacked("b", 10)
    runs.clear()
    assert known(runs, "a") == []
