"""Which input of a program goes on where which one of a checkpoint stood."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import ConfigurationError, RestoreError
from holdfast.runtime.graph.input_matching import ANEW, KEEP, InputLeaf, InputRules, match_inputs
from holdfast.runtime.graph.source_positions import log_changes


def leaf(
    uid: str,
    reads: str,
    ordinal: int = 0,
    *,
    schema: str = "struct<v:string>",
    streaming: bool = True,
    elements: str | None = "",
) -> InputLeaf:
    return InputLeaf(uid, ordinal, reads, schema, streaming, elements)


A, B = leaf("a", "topic 'a'"), leaf("b", "topic 'b'")
MOVED = leaf("a", "topic 'c'")
NO_RULES = InputRules()


def test_inputs_are_found_by_uid_and_new_ones_have_no_origin() -> None:
    new = leaf("n", "topic 'n'")
    fitting = match_inputs([A, B], [new, B, A], NO_RULES)
    assert [fitting.origin(found) for found in (new, B, A)] == [None, B, A]
    assert fitting.dropped == ()


def test_a_removed_leaf_is_rejected_by_name_or_dropped() -> None:
    new = leaf("n", "topic 'n'")
    with pytest.raises(
        RestoreError, match=r"\['a'\] \('a' was a stream of topic 'a'.*new in this job: \['n'\]"
    ) as caught:
        match_inputs([A, B], [B, new], NO_RULES)
    assert (caught.value.missing_uids, caught.value.new_uids) == (("a",), ("n",))
    assert match_inputs([A, B], [B, new], InputRules(allow_missing=True)).dropped == (A,)


@pytest.mark.parametrize(
    "now",
    [
        MOVED,
        leaf("a", "topic 'a'", schema="struct<v:bigint>"),
        leaf("a", "topic 'a'", streaming=False),
    ],
    ids=["another topic", "another schema", "no stream"],
)
def test_one_that_reads_something_else_is_refused_with_both_descriptions(now: InputLeaf) -> None:
    for rules in (NO_RULES, InputRules(allow_missing=True)):
        with pytest.raises(RestoreError) as caught:
            match_inputs([A, B], [now, B], rules)
        assert all(part in str(caught.value) for part in (str(A), str(now), KEEP, ANEW))
    anew = match_inputs([A, B], [now, B], InputRules(anew=frozenset("a")))
    assert (anew.origin(now), anew.origin(B), anew.dropped) == (None, B, (A,))


LINES = leaf("a", "binaryFile of path '/in'", schema="struct<path:string>", elements="text of string")
JSON = leaf("a", "binaryFile of path '/in'", schema="struct<path:string>", elements="JSON lines of struct<x: bigint>")


def test_a_changed_type_of_files_is_rejected_by_its_description() -> None:
    with pytest.raises(RestoreError) as caught:
        match_inputs([LINES], [JSON], NO_RULES)
    then, now = "path '/in', read as text of string", "path '/in', read as JSON lines of struct<x: bigint>"
    assert f"then a stream of {then}, now a stream of {now}" in str(caught.value)
    assert "binaryFile" not in str(caught.value)
    assert match_inputs([LINES], [JSON], InputRules(keep=frozenset("a"))).origin(JSON) == LINES
    assert match_inputs([LINES], [JSON], InputRules(anew=frozenset("a"))).origin(JSON) is None
    raw = leaf("a", "kafka of subscribe 'a'")
    with pytest.raises(RestoreError, match="read as records of string, now a stream of kafka of subscribe 'a' with"):
        match_inputs([replace(raw, elements="records of string")], [raw], NO_RULES)


def test_a_checkpoint_without_descriptions_of_elements_is_accepted() -> None:
    """As those before 2026-11-29."""
    written = JSON.to_json()
    assert InputLeaf.from_json(written, streaming=True) == JSON
    del written["elements"]
    before = InputLeaf.from_json(written, streaming=True)
    assert match_inputs([before], [JSON], NO_RULES).origin(JSON) == before
    assert "elements" not in before.to_json()


def test_a_position_is_kept_at_the_request_of_the_user() -> None:
    rules = InputRules(keep=frozenset("a"))
    assert match_inputs([A, B], [MOVED, B], rules).origin(MOVED) == A
    with pytest.raises(RestoreError, match="reads something else"):
        match_inputs([A], [leaf("a", "topic 'a'", streaming=False)], rules)


def test_requests_of_the_user_apply_to_changed_inputs_only() -> None:
    for rules in (InputRules(anew=frozenset("ab")), InputRules(keep=frozenset("ab"))):
        assert match_inputs([A, B], [A, B], rules).origin(A) == A


def test_leaves_of_one_input_are_matched_by_description_and_then_by_order() -> None:
    before = [leaf("u", "x", 0), leaf("u", "y", 1), leaf("u", "y", 2)]
    now = [leaf("u", "y", 0), leaf("u", "y", 1), leaf("u", "x", 2)]
    fitting = match_inputs(before, now, NO_RULES)
    assert [fitting.origin(found) for found in now] == [before[2], before[1], before[0]]


def test_an_input_may_gain_a_leaf_and_loses_none_unasked() -> None:
    x, y = leaf("u", "x", 0), leaf("u", "y", 1)
    assert match_inputs([x], [x, y], NO_RULES).origin(y) is None
    with pytest.raises(RestoreError, match="'u' was a stream of y"):
        match_inputs([x, y], [x], NO_RULES)
    assert match_inputs([x, y], [x], InputRules(allow_missing=True)).dropped == (y,)


def test_decisions_name_inputs_that_are_there_and_only_once() -> None:
    with pytest.raises(ConfigurationError, match=r"'nobody'.*there are \['a'\]"):
        InputRules(keep=frozenset(["nobody"])).check(["a"])
    with pytest.raises(ConfigurationError, match="both name 'a'"):
        InputRules(keep=frozenset("a"), anew=frozenset("a")).check(["a"])


# Collections of the program: an edit is reported, and the job goes on.


def collection(elements: str) -> InputLeaf:
    return leaf("cities", "a collection of string", streaming=False, elements=elements)


OLD, EDITED = collection("a collection: 2 elements, digest 1"), collection("a collection: 3 elements, digest 2")


def test_an_edited_collection_goes_on_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    fitting = match_inputs([OLD], [EDITED], NO_RULES)
    assert (fitting.origin(EDITED), fitting.edited) == (OLD, (EDITED,))
    log_changes(fitting)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the elements of input 'cities', a from_collection(), have changed" in warning
    assert f"{ANEW}: cities, or start with --fresh" in warning


def test_an_edited_collection_is_read_anew_or_kept_in_silence_as_configured() -> None:
    anew = match_inputs([OLD], [EDITED], InputRules(anew=frozenset({"cities"})))
    assert (anew.origin(EDITED), anew.edited, anew.dropped) == (None, (), (OLD,))
    kept = match_inputs([OLD], [EDITED], InputRules(keep=frozenset({"cities"})))
    assert (kept.origin(EDITED), kept.edited) == (OLD, ())


@pytest.mark.parametrize("older", [collection(""), replace(OLD, elements=None), OLD], ids=["empty", "unknown", "same"])
def test_the_same_collection_and_that_of_an_older_checkpoint_go_on_without_a_word(older: InputLeaf) -> None:
    fitting = match_inputs([older], [OLD], NO_RULES)
    assert (fitting.origin(OLD), fitting.edited) == (older, ())


def test_a_collection_of_another_type_is_refused() -> None:
    with pytest.raises(RestoreError, match="reads something else"):
        match_inputs([OLD], [replace(EDITED, reads="a collection of bigint")], NO_RULES)
