"""Failures of Spark that are not the job's: time-outs, lost machines and connections, hosts without room.

They come and go, so a job is restarted after them without end, with the pauses of its restart strategy. The texts are
those of Spark 3.5 to 4.3, Hadoop, Kafka's client, Java and Python.
"""

from __future__ import annotations

from typing import Final

CONDITIONS: Final = frozenset(
    {
        "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",  # the executor with the block is gone
        "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT",  # executors are gone, or other jobs have them
        "FAILED_JDBC.CONNECTION",
        "INTERNAL_ERROR_BROADCAST",
        "INTERNAL_ERROR_NETWORK",
        "STREAMING_PYTHON_RUNNER_INITIALIZATION_COMMUNICATION_FAILURE",
        "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE",
        "STREAMING_SHUFFLE_CHECKSUM_VERIFICATION_FAILED",  # damaged on its way between two hosts
        "STREAMING_SHUFFLE_WRITER_CONNECTION_TIMEOUT",
    }
)
"""Error conditions of Spark, which stand in brackets in its messages."""

_PHRASES: Final = (
    # Executors, their hosts and their blocks.
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "Remote RPC client disassociated",
    "Executor decommission",
    "BlockSavedOnDecommissionedBlockManagerException",
    "TaskResultLost",
    "resubmitted due to lost executor",
    "FetchFailed",
    "Failed to fetch block",
    "Failed to fetch remote block",
    "BlockFetchException",
    "Failed to get block(s) from",
    "Failed to get broadcast_",
    "please re-run the query to ensure data correctness",
    "A shuffle map stage with indeterminate output was failed",
    "cannot run anywhere due to node and executor excludeOnFailure",
    "requires more slots than the total number of slots in the cluster currently",
    "RpcTimeoutException",
    "Futures timed out after",
    "Could not execute broadcast in",
    # Python on a host without room. A worker that crashed is not here: its rows may be the reason.
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker",
    "Python daemon failed to launch worker",
    "Failed to open socket to Python daemon",
    "worker process terminated due to idle timeout",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "unable to create native thread",
    "Too many open files",
)
"""Texts that are only about machines, wherever they stand in a failure."""

_ROOTS: Final = (
    # Java, and Python by the texts of the system.
    "Connection refused",
    "Connection reset",
    "ConnectionReset",
    "ConnectionRefused",
    "ConnectionAborted",
    "Connection timed out",
    "Connection closed",
    "Connection from ",
    "connection abort",
    "Broken pipe",
    "BrokenPipe",
    "Failed to connect to",
    "SocketException",
    "ConnectException",
    "ClosedChannelException",
    "InterruptedIOException",
    "TimeoutException",
    "TimeoutError",
    "timed out",
    "No route to host",
    "NoRouteToHost",
    "Network is unreachable",
    "Host is down",
    "UnknownHostException",
    "Name or service not known",
    "Temporary failure in name resolution",
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Stale file handle",
    # Hadoop and object stores.
    "StandbyException",
    "SafeModeException",
    "RetriableException",
    "BlockMissingException",
    "Could not obtain block",
    "could only be written to 0 of",
    "Unable to execute HTTP request",
    "AWSServiceThrottledException",
    "Service Unavailable",
    "SlowDown",
    "Slow Down",
    "Too Many Requests",
    # Kafka's client.
    "No resolvable bootstrap urls",
    "DisconnectException",
    "BrokerNotAvailableException",
    "CoordinatorNotAvailableException",
    "CoordinatorLoadInProgressException",
    "LeaderNotAvailableException",
    "NotLeaderOrFollowerException",
    "NotEnoughReplicasException",
    "errors.NetworkException",
)
"""Texts that count only in the root cause: around it they may be part of something else."""


def is_unavailable(root: str, text: str) -> bool:
    """Return whether a machine, a connection or a service was unavailable.

    Args:
        root: The root cause of a failure.
        text: The whole text of the failure.
    """
    both = f"{root}\n{text}"
    return (
        any(sign in root for sign in _ROOTS)
        or any(sign in both for sign in _PHRASES)
        or any(f"[{condition}]" in both for condition in CONDITIONS)
    )
