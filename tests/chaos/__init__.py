"""Chaos: real jobs on Spark whose processes, network, disk and clock fail at random, judged from outside.

    make chaos KIND=zookeeper ROUNDS=50 SEED=1

`site` is where a job runs, `members` finds its processes, `faults` strikes and mends, `bank` feeds the job and judges
what it shows, `rounds` does one after the other and counts.
"""
