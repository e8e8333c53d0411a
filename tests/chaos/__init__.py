"""Chaos: real jobs on Spark whose processes, network, disk and clock fail at random, judged from outside.

    make chaos KIND=zookeeper ROUNDS=50 SEED=1

`site` is where a job runs, with a `replica` of its state, `members` finds its processes, `faults` strikes and mends,
`rounds` does one after the other and counts. `bank` feeds the job, and has the auditor of what it shows; `documents`
has that of its checkpoints, `replica` that of answers, and `watch` lets both look on while the job is struck:

- A payment is shown once, with the number and total that the bank knows, and not before a completed checkpoint has it.
- Each retained checkpoint is there, whole, as it was, and holds just the state that comes of a number of whole files.
- The token, checkpoints, and what they have taken never go back; no more than so many files are kept.
- A replica shows the state of one checkpoint, whole, and never one before that which it has shown.
"""
