"""The dispatcher: takes jobs, runs each in a process of its own while this process leads, and cleans up after them.

``holdfast jobmanager`` is :class:`~holdfast.dispatcher.job_manager.JobManager`. What happens when is decided by
a state machine without I/O (``protocol``); it is kept in the stores of high availability (``store``).
"""
