"""An epoch is accepted only if what is acknowledged is exactly what was used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InconsistentEpochError
from holdfast.runtime.exchange.task_report import MarkerFormat, MarkerReader, TaskReport, check_epoch, digest_of

TWO_LEVELS = {0: 0, 1: 2, 2: 2}


def digest(barriers: Sequence[TaskReport]) -> str:
    return digest_of(barrier.head for barrier in barriers)


def stage(index: int, tasks: int, above: Sequence[TaskReport] = (), name: str = "a") -> list[TaskReport]:
    """The barriers of a stage whose tasks have all read the same ones above, each carrying its part of them."""
    return [
        TaskReport(
            index,
            at,
            f"{name}-{index}-{at}",
            read=digest(above),
            upstream=tuple(b for b in above if b.partition % tasks == at),
        )
        for at in range(tasks)
    ]


def last_stage() -> list[TaskReport]:
    return stage(2, 2, stage(1, 2, stage(0, 3)))


def test_an_epoch_whose_digests_agree_is_accepted_with_the_reports_of_every_stage() -> None:
    report = check_epoch(last_stage(), TWO_LEVELS)
    assert [[b.attempt for b in stage] for stage in report.stages] == [
        ["a-0-0", "a-0-1", "a-0-2"],
        ["a-1-0", "a-1-1"],
        ["a-2-0", "a-2-1"],
    ]


def test_two_tasks_that_read_different_attempts_of_one_upstream_task_are_refused() -> None:
    barriers = last_stage()
    other = [stage(1, 2)[0], stage(1, 2, name="z")[1]]
    barriers[0] = replace(barriers[0], read=digest(other))
    with pytest.raises(InconsistentEpochError, match="different attempts"):
        check_epoch(barriers, TWO_LEVELS)


def test_the_error_lists_the_difference_where_tasks_list_their_reads() -> None:
    barriers = last_stage()
    barriers[1] = replace(barriers[1], read=digest(stage(1, 1)), read_attempts=((0, "a-1-0"), (1, "z-1-1")))
    with pytest.raises(InconsistentEpochError) as told:
        check_epoch(barriers, TWO_LEVELS)
    assert "1 of 2 tasks (partitions 1); partition 1 read [(1, 'z-1-1')] instead of [(1, 'a-1-1')]" in str(told.value)


def test_a_mix_one_level_further_up_is_refused_too() -> None:
    zero = stage(0, 3)
    one = stage(1, 2, zero)
    one[1] = replace(one[1], read=digest(zero[:2]))
    with pytest.raises(InconsistentEpochError, match="stage 1"):
        check_epoch(stage(2, 2, one), TWO_LEVELS)


def test_two_read_attempts_of_one_task_are_rejected() -> None:
    one = stage(1, 2, stage(0, 3))
    with pytest.raises(InconsistentEpochError, match="once"):
        check_epoch(stage(2, 2, [*one, replace(one[1], attempt="zombie", upstream=())]), TWO_LEVELS)


def test_one_attempt_that_all_have_read_twice_is_refused() -> None:
    one = stage(1, 2, stage(0, 3))
    with pytest.raises(InconsistentEpochError, match="once"):
        check_epoch(stage(2, 2, [*one, replace(one[1], upstream=())]), TWO_LEVELS)


@pytest.mark.parametrize("damage", ["missing", "twice", "foreign stage"])
def test_every_task_acknowledges_exactly_once(damage: str) -> None:
    barriers = last_stage()
    if damage == "missing":
        barriers.pop()
    elif damage == "twice":
        barriers.append(replace(barriers[0], attempt="again"))
    else:
        barriers[1] = replace(barriers[1], stage=1)
    with pytest.raises(InconsistentEpochError):
        check_epoch(barriers, TWO_LEVELS)


def test_a_report_that_no_task_forwards_is_missed() -> None:
    barriers = last_stage()
    barriers[0] = replace(barriers[0], upstream=())
    with pytest.raises(InconsistentEpochError, match="reports arrived"):
        check_epoch(barriers, TWO_LEVELS)


def test_tasks_that_begin_an_epoch_job_have_read_nothing() -> None:
    with pytest.raises(InconsistentEpochError, match="no stage above"):
        check_epoch(stage(1, 2, stage(0, 1)), {1: 2})


def test_a_source_without_partitions_needs_no_report() -> None:
    assert check_epoch(stage(1, 2), {0: 0, 1: 2}).stages[0] == ()


# Any epoch, and anything that an engine may do to it


@dataclass
class Run:
    """One execution of a task: what it has read, and what it wrote for each task below."""

    barrier: TaskReport
    rows: list[bytes]


@dataclass
class Engine:
    """Runs tasks that do nothing but read and write markers; a task may run twice."""

    tasks: list[int]
    contents: dict[bytes, TaskReport] = field(default_factory=dict)
    form: MarkerFormat = field(default_factory=lambda: MarkerFormat(["clock"]))

    def run(self, index: int, at: int, attempt: str, rows: Sequence[bytes]) -> Run:
        reader = MarkerReader(self.form)
        for row in rows:
            reader.add(row)
        upstream = tuple(self.contents[content] for content in reader.reports())
        barrier = TaskReport(index, at, attempt, read=reader.digest(), upstream=upstream)
        content = f"content {len(self.contents)}".encode()
        self.contents[content] = barrier
        below = self.tasks[index + 1] if index + 1 < len(self.tasks) else 1
        return Run(barrier, self.form.rows(self.form.marker(barrier.head, {"clock": at}), content, at, below))


Used = dict[bytes, list[bytes]]
"""What each execution has really read, as the test knows it: heads, by its own."""


def agrees(answers: Sequence[TaskReport], used: Used, widths: Sequence[int]) -> bool:
    """Whether there is one execution of each task that all tasks below have read, once, and nothing else."""
    heads = [barrier.head for barrier in answers]
    for index in reversed(range(len(widths))):
        if sorted(int.from_bytes(one[4:8], "big") for one in heads) != list(range(widths[index])):
            return False
        lists = {tuple(sorted(used[one])) for one in heads}
        if len(lists) > 1:
            return False
        heads = list(lists.pop())
    return True


WIDTHS = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@given(data=st.data(), widths=WIDTHS)
def test_an_epoch_is_accepted_exactly_if_all_tasks_have_read_the_same_executions_once(
    data: st.DataObject, widths: list[int]
) -> None:
    engine = Engine(widths)
    used: Used = {}
    above: list[list[Run]] = []
    for index, tasks in enumerate(widths):
        ran: list[list[Run]] = []
        for at in range(tasks):
            executions = []
            for attempt in ("first", "second")[: data.draw(st.sampled_from([1, 1, 1, 2]))]:
                read = [one for of in above for one in picked(data, of)]
                execution = engine.run(index, at, attempt, [one.rows[at] for one in read])
                used[execution.barrier.head] = [one.barrier.head for one in read]
                executions.append(execution)
            ran.append(executions)
        above = ran
    answers = [one.barrier for executions in above for one in picked(data, executions)]
    try:
        check_epoch(answers, dict(enumerate(widths)))
    except InconsistentEpochError:
        assert not agrees(answers, used, widths)
    else:
        assert agrees(answers, used, widths)


def picked(data: st.DataObject, executions: list[Run]) -> list[Run]:
    """What one reader gets of one task: usually the first of its executions."""
    first, last = executions[0], executions[-1]
    usual = [[first]] * 8
    return data.draw(st.sampled_from([*usual, [last], [first, last], []]))


@given(data=st.data(), widths=WIDTHS)
def test_one_reader_of_another_execution_is_always_enough_to_refuse(data: st.DataObject, widths: list[int]) -> None:
    index = data.draw(st.integers(0, len(widths) - 2), label="stage of the task that runs twice")
    twice = data.draw(st.integers(0, widths[index] - 1), label="the task")
    reader = data.draw(st.integers(0, widths[index + 1] - 1), label="who reads otherwise")
    how = data.draw(st.sampled_from(["the other", "both", "none", "twice"]))
    engine = Engine(widths)
    above: list[Run] = []
    other: Run | None = None
    for level, tasks in enumerate(widths):
        ran = []
        for at in range(tasks):
            rows = [one.rows[at] for one in above]
            if level == index + 1 and at == reader:
                assert other is not None
                mine = rows.pop(twice)
                rows += {"the other": [other.rows[at]], "both": [mine, other.rows[at]], "none": []}.get(how, [mine] * 2)
            ran.append(engine.run(level, at, f"first-{at}", rows))
            if (level, at) == (index, twice):
                other = engine.run(level, at, f"second-{at}", rows)
        above = ran
    if how == "the other" and widths[index + 1] == 1:
        check_epoch([one.barrier for one in above], dict(enumerate(widths)))  # all readers agree
        return
    with pytest.raises(InconsistentEpochError):
        check_epoch([one.barrier for one in above], dict(enumerate(widths)))
