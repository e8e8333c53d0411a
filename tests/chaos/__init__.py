"""Chaos: real jobs on Spark whose processes, network, disk and clock fail at random, judged from outside.

    make chaos KIND=zookeeper ROUNDS=50 SEED=1
    make chaos KIND=zookeeper ROUNDS=50 SEED=1 REAL_TIME=1
    python -m tests.chaos --help

`site` is where a job runs, with a `replica` of its state, `members` finds its processes, `faults` strikes and mends,
`rounds` does one after the other and counts. `bank` feeds the job, and has the auditor of what it shows; `documents`
has that of its checkpoints, `replica` that of answers, and `watch` lets both look on while the job is struck:

- A payment is shown once, with the number and total that the bank knows, and not before a completed checkpoint has it.
- Each retained checkpoint is there, whole, as it was, and holds just the state that comes of a number of whole files.
- The token, checkpoints, and what they have taken never go back; no more than so many files are kept.
- A replica shows the state of one checkpoint, whole, and never one before that which it has shown.

Faults are dealt: each that a kind has comes once, in random order, before any comes again, and strikes the kind of
member that it has struck least. What a machine does not allow is said at the start and in the report.

- Killed, stopped for one and a half leases, and clock moved by up to three hours: the driver's Python, its JVM, an
  executor, a worker, those of the driver that stands by, the replica, and a server: one of ZooKeeper's three, or the
  double of an API server (`api_server`). Servers of a real cluster are only stopped, as others have started them.
- Cut off, with resets or in silence: the driver that works or the one that stands by, from all its servers. Nothing
  else is behind a proxy: not drivers from executors, not the replica, not the servers of ZooKeeper from each other.
- Disk full: the only one that the job has, for all its processes at once.

A job runs by epochs or in real time. In real time all its workers live as long as it does, and most of them wait: so
one more fault kills the worker that works most, and payments come right before each fault.
"""
