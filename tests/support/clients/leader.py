"""A leader in a process of its own: it waits for exclusive access, then writes until it is killed or fenced."""

import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

TIMEOUT_S = 30.0

PROGRAM = """
import sys
import magnetar

with magnetar.Client(sys.argv[1]) as client:
    wait = magnetar.ProducerAccessMode.WaitForExclusive
    producer = client.create_producer(sys.argv[2], producer_name="leader", access_mode=wait)
    number = 0
    while True:
        try:
            producer.send(b"leader %d" % number)
        except magnetar.ProducerFenced:
            print("fenced", flush=True)
            break
        print(number, flush=True)
        number += 1
"""


class LeaderProcess:
    """See the module. `acknowledged` grows as its receipts are read from its output."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.fenced = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, service_url, topic], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for(self, messages: int) -> None:
        """Until so many messages have their receipt."""
        while len(self.acknowledged) < messages:
            assert self._read(), f"the leader ended after {len(self.acknowledged)} messages"

    def kill(self) -> None:
        """SIGKILL; `acknowledged` is complete afterwards."""
        self._process.kill()
        self.wait_for_end()

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)

    def wait_for_end(self) -> None:
        """Until it has ended."""
        while self._read():
            pass
        self._process.wait(TIMEOUT_S)

    def _read(self) -> bool:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line == "fenced":
            self.fenced = True
        elif line:
            self.acknowledged.append(b"leader " + line.encode())
        return bool(line)


def check_log(log: list[bytes], acknowledged: list[bytes], elected: bytes) -> None:
    """Everything that the leader got a receipt for lies before the first message of its successor, and nothing of the
    leader lies behind that. One message of the leader may be there without a receipt."""
    end = log.index(elected)
    assert log[: len(acknowledged)] == acknowledged
    assert len(acknowledged) <= end <= len(acknowledged) + 1
    assert log[end:] == [elected]
