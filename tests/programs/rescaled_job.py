"""A job that is rescaled while it runs, and says its parallelism: `DIRECTORY [PARALLELISM]`."""

from __future__ import annotations

import sys

from holdfast.runtime.master.job_client import JobClient
from tests.stories.local import Program, WaitingEngine, master

_SECONDS = 30.0

if __name__ == "__main__":
    directory, *wanted = sys.argv[1:]
    program = Program()
    program.source("words", "word string").key_by("word").deduplicate().uid("count").print().uid("out")
    job = JobClient(master(program, directory, [], engine=WaitingEngine))
    job.trigger_checkpoint().result(_SECONDS)
    for number in wanted:
        job.rescale({"count": int(number)}).result(_SECONDS)
    attempt = job._master.attempt
    assert attempt is not None
    (step,) = attempt.plan.stateful_steps()
    job.stop()
    job.await_termination(_SECONDS)
    print("parallelism", step.parallelism)
