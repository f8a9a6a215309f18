"""A publisher or some consumers in a process of their own, until SIGTERM; what they learned goes to a JSON file.

    PYTHONPATH=tests python -m chaos.workload_process OUTPUT ours|official URL publish TOPIC batched|unbatched|async
    PYTHONPATH=tests python -m chaos.workload_process OUTPUT ours|official URL consume|consume-async KIND:TOPIC:NAME …

Prints `ready` when everything is open. What else is printed goes to standard error: the official client logs to
standard output, and stands still when that is a pipe which is full. Publishers then flush; consumers go on until
nothing came for a while. SIGUSR1 has the consumers remember how much they have been given until then.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import consuming, publishing


class Workload:
    """What one process does. `stop` may be called from any thread; `run` returns what was learned."""

    def __init__(self, peer: str, url: str | None, action: str, arguments: Sequence[str]) -> None:
        self._peer = peer
        self._url = url
        self._action = action
        self._arguments = arguments
        self._stopping = threading.Event()
        self._deliveries: list[consuming.Deliveries] = []

    def stop(self) -> None:
        self._stopping.set()

    def mark(self) -> None:
        for deliveries in self._deliveries:
            deliveries.mark()

    def run(self, ready: Callable[[], None]) -> Any:
        module = importlib.import_module("pulsar" if self._peer == "official" else "magnetar")
        if self._action == "publish":
            return self._publish(module, ready)
        self._deliveries = [consuming.Deliveries(specification) for specification in self._arguments]
        if self._action == "consume-async":
            asyncio.run(self._consume_async(module, ready))
        else:
            client = self._client(module)
            consumptions = [consuming.Consumption(module, client, one, self._stopping) for one in self._deliveries]
            ready()
            for consumption in consumptions:
                consumption.thread.join()
            client.close()
        return [deliveries.report() for deliveries in self._deliveries]

    def _publish(self, module: Any, ready: Callable[[], None]) -> Any:
        topic, how = self._arguments
        history = publishing.History(topic.removeprefix("chaos-"))
        if how == "async":
            asyncio.run(self._publish_async(module, topic, history, ready))
        else:
            client = self._client(module)
            publishing.publish(module, client, topic, history, ready, self._stopping, how == "batched")
            client.close()
        return history.report()

    def _client(self, module: Any) -> Any:
        if self._peer == "official":
            return module.Client(self._url, logger=module.ConsoleLogger(module.LoggerLevel.Error))
        return module.Client(self._url)

    def _async_client(self, module: Any) -> Any:
        if self._peer == "official":
            logger = module.ConsoleLogger(module.LoggerLevel.Error)
            return importlib.import_module("pulsar.asyncio").Client(self._url, logger=logger)
        return module.AsyncClient(self._url)

    async def _publish_async(
        self, module: Any, topic: str, history: publishing.History, ready: Callable[[], None]
    ) -> None:
        client = self._async_client(module)
        await publishing.publish_async(client, topic, history, ready, self._stopping)
        await client.close()

    async def _consume_async(self, module: Any, ready: Callable[[], None]) -> None:
        client = self._async_client(module)
        missing = len(self._deliveries)

        def opened() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                ready()

        await asyncio.gather(
            *(consuming.consume_async(module, client, one, opened, self._stopping) for one in self._deliveries)
        )
        await client.close()


def main() -> None:
    output, peer, url, action, *arguments = sys.argv[1:]
    workload = Workload(peer, url, action, arguments)
    signal.signal(signal.SIGTERM, lambda *_: workload.stop())
    signal.signal(signal.SIGUSR1, lambda *_: workload.mark())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    learned = workload.run(lambda: print("ready", file=told, flush=True))
    with open(output, "w") as file:
        json.dump(learned, file)


if __name__ == "__main__":
    main()
