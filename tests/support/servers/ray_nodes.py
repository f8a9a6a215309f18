"""The processes of a cluster on Ray, for tests that kill, stop and wake them."""

import os
import signal
import time

import ray
from ray.exceptions import RayError

from magnetar.protocol.names import RAY_NAMESPACE, actor_name


def process_id(node_id, timeout_s=30.0):
    """The process of a node; waits while Ray is starting it again."""

    def ask():
        try:
            return ray.get(ray.get_actor(actor_name(node_id), RAY_NAMESPACE).process_id.remote(), timeout=5)
        except (ValueError, RayError):
            return None

    return wait_until(ask, f"{node_id} has a process", timeout_s)


def kill(node_id):
    """SIGKILL. Returns the process id that it had."""
    return send(node_id, signal.SIGKILL)


def send(node_id, number):
    process = process_id(node_id)
    os.kill(process, number)
    return process


class Stopped:
    """SIGSTOP while the block runs, then SIGCONT."""

    def __init__(self, node_id):
        self._node_id = node_id

    def __enter__(self):
        self._process = send(self._node_id, signal.SIGSTOP)
        return self

    def __exit__(self, *error):
        os.kill(self._process, signal.SIGCONT)


def wait_new_process(node_id, old, timeout_s=60.0):
    """Wait until the node runs in another process than `old`."""
    return wait_until(
        lambda: (new := process_id(node_id)) != old and new, f"{node_id} runs again", timeout_s, interval_s=0.2
    )


def wait_until(condition, what, timeout_s=30.0, interval_s=0.1):
    """Poll what no event tells to another process. Returns the condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(interval_s)
