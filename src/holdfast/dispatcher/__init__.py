"""The dispatcher: accepts jobs, runs each in a process of its own while this process leads, and cleans up after them.

``holdfast jobmanager`` is :class:`~holdfast.dispatcher.job_manager.JobManager`. A state machine without I/O makes all
decisions (``dispatcher_machine``). Jobs are stored in the stores of high availability (``store``).
"""
