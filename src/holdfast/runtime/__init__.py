"""Runs a job on any engine: graph, plan, tasks, epochs, checkpoints, job master.

`docs/architecture.md` says which package has code of the driver or of workers, and follows a row, a checkpoint and a
recovery from file to file. The engines on Spark are in `holdfast.spark`.
"""
