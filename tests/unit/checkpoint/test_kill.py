"""A process killed at a fault point: the next one finds exactly the old or exactly the new checkpoint."""

import os
import subprocess
import sys

import pytest

from holdfast.checkpoint.completed_checkpoint import read_newest, read_retained
from holdfast.checkpoint.retention import Sweeper
from tests.unit.checkpoint.support import LocalJob, complete

GRACE = "execution.checkpointing.cleaner.grace-period"
VICTIM = f"""
import sys
from tests.unit.checkpoint.support import LocalJob, complete
from holdfast.checkpoint.retention import Sweeper

job = LocalJob(sys.argv[1], **{{"{GRACE}": 0, "execution.checkpointing.num-retained": 1}})
writer, coordinator = job.lead()
sweeper = Sweeper(job.directory, writer, job.configuration)
for epoch in range(1, 4):
    complete(coordinator, epoch, runs=[job.write_run(writer.token, epoch)])
    print(epoch, flush=True)
    sweeper.sweep()
print("end", flush=True)
"""


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("point", ["metadata.write", "pointer.write", "subsume.delete"])
def test_a_kill_leaves_the_old_or_the_new_checkpoint_whole(tmp_path, moment, point):
    run = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path)],
        env=os.environ | {"HOLDFAST_FAULT": f"{moment}:{point}:2=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == -9, run.stderr
    told = [int(line) for line in run.stdout.split()]
    job = LocalJob(tmp_path, **{GRACE: 0, "execution.checkpointing.num-retained": 1})
    writer, coordinator = job.lead()
    [found] = read_retained(job.directory, writer.state)
    expected = {
        ("metadata.write", "before"): 1,
        ("metadata.write", "after"): 1,
        ("metadata.write", "lost"): 1,
        ("pointer.write", "before"): 1,
        ("pointer.write", "after"): 2,
        ("pointer.write", "lost"): 2,
    }.get((point, moment), 2)
    assert found.metadata.epoch == expected
    assert told == list(range(1, len(told) + 1))
    assert expected - len(told) in (0, 1), "what was told to be complete is complete"
    [handle] = found.metadata.operators[0].runs
    assert job.directory.fs.read(job.directory.absolute(handle.path)) == b"state"
    after = complete(coordinator, 9, runs=[job.write_run(writer.token, 9)])
    Sweeper(job.directory, writer, job.configuration).sweep()
    assert read_newest(job.directory, job.register.read()).metadata.epoch == 9
    assert job.files() == {after.metadata.operators[0].runs[0].path.removeprefix("shared/")}
    assert job.checkpoints() == [after.checkpoint_id]
    assert after.checkpoint_id > found.checkpoint_id
