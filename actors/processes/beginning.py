"""What each process of a cluster on Ray does first."""

import gc

from ...runtime.logs import audit_to_file, log_to_file, log_to_stderr


def begin_process(log_directory: str, node_id: str, *, audits: bool = False) -> None:
    """Logs go to a file that outlives the cluster's stop, and to the worker's log in Ray's session directory. The
    garbage collector runs less often than by default. `audits`: what callers do goes to a file beside the log.
    """
    log_to_stderr()
    log_to_file(f"{log_directory}/{node_id}.log")
    if audits:
        audit_to_file(f"{log_directory}/{node_id}.audit.jsonl")
    # Entries are many short-lived objects in no cycles. Looking for cycles after every 700 of them, Python's default,
    # takes a quarter of a busy broker's time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
