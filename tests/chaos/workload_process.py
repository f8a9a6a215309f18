"""A publisher or some consumers in a process of their own, until SIGTERM; what they learned goes to a JSON file.

    python tests/chaos/workload_process.py OUTPUT ours|official URL publish TOPIC batched|unbatched
    python tests/chaos/workload_process.py OUTPUT ours|official URL consume exclusive|shared|reader:TOPIC:NAME …

Prints `ready` when everything is open. Publishers then flush; consumers go on until nothing came for IDLE_S.
Our blocking client and the official one have the same methods, so the same code drives both.
"""

import json
import signal
import sys
import threading
import time
from collections import Counter, defaultdict

KEYS = 8
IN_FLIGHT_MAX = 200
PAUSE_S = 0.02
GAP_MIN_S = 0.25
SEND_TIMEOUT_MS = 120_000
IDLE_S = 8.0
DRAIN_MAX_S = 90.0

stopping = threading.Event()


class Publisher:
    """Sends `key:sequence:` forever and remembers what it was told."""

    def __init__(self, module, producer) -> None:
        self._module = module
        self._producer = producer
        self._slots = threading.Semaphore(IN_FLIGHT_MAX)
        self._lock = threading.Lock()
        self._last: dict[int, float] = {}
        self.sent: Counter[str] = Counter()
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.failed: list[tuple[str, int, str]] = []
        self.per_second: Counter[int] = Counter()
        self.gaps: list[tuple[float, float]] = []

    def run(self) -> None:
        sequence = 0
        padding = b"." * 100
        while not stopping.is_set():
            for number in range(KEYS):
                key = f"key-{number}"
                self._slots.acquire()
                self.sent[key] += 1
                self._producer.send_async(
                    b"%s:%d:%s" % (key.encode(), sequence, padding), self._answer(key, sequence), partition_key=key
                )
            sequence += 1
            stopping.wait(PAUSE_S)
        self._producer.flush()

    def _answer(self, key: str, sequence: int):
        def answered(result, message_id) -> None:
            now = time.monotonic()
            with self._lock:
                if result == self._module.Result.Ok:
                    self.acknowledged[key].append(sequence)
                    self.per_second[int(now)] += 1
                    partition = message_id.partition()
                    begin = self._last.get(partition, now)
                    if now - begin >= GAP_MIN_S:
                        self.gaps.append((begin, now))
                    self._last[partition] = now
                else:
                    self.failed.append((key, sequence, str(result)))
            self._slots.release()

        return answered

    def report(self) -> dict:
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "per_second": self.per_second,
            "gaps": self.gaps,
        }


class Consumption:
    """One consumer or reader in a thread."""

    def __init__(self, module, client, specification: str) -> None:
        self.kind, self.topic, self.name = specification.split(":")
        self.log: list[tuple[str, int]] = []
        self.errors: list[str] = []
        self._module = module
        if self.kind == "reader":
            self._consumer = client.create_reader(self.topic, module.MessageId.earliest)
        else:
            kind = module.ConsumerType.Shared if self.kind == "shared" else module.ConsumerType.Exclusive
            self._consumer = client.subscribe(
                self.topic, self.name, consumer_type=kind, initial_position=module.InitialPosition.Earliest
            )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        take = self._consumer.read_next if self.kind == "reader" else self._consumer.receive
        last = time.monotonic()
        stop_by = None
        while True:
            if stopping.is_set():
                stop_by = stop_by or time.monotonic() + DRAIN_MAX_S
                if time.monotonic() > min(last + IDLE_S, stop_by):
                    return
            try:
                message = take(timeout_millis=1000)
            except self._module.Timeout:
                continue
            except Exception as error:
                self.errors.append(repr(error))
                if len(self.errors) > 100:
                    return
                time.sleep(0.5)
                continue
            last = time.monotonic()
            key, sequence, _ = message.data().split(b":", 2)
            self.log.append((key.decode(), int(sequence)))
            if self.kind != "reader":
                try:
                    self._consumer.acknowledge(message)
                except Exception as error:  # it will be delivered again
                    self.errors.append(f"acknowledging: {error!r}")

    def report(self) -> dict:
        return {"kind": self.kind, "topic": self.topic, "name": self.name, "log": self.log, "errors": self.errors}


def main() -> None:
    output, peer, url, action, *rest = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if peer == "official":
        import pulsar as module

        client = module.Client(url, logger=module.ConsoleLogger(module.LoggerLevel.Error))
    else:
        import magnetar as module

        client = module.Client(url)
    if action == "publish":
        topic, batching = rest
        producer = client.create_producer(
            topic,
            send_timeout_millis=SEND_TIMEOUT_MS,
            batching_enabled=batching == "batched",
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
        )
        publisher = Publisher(module, producer)
        print("ready", flush=True)
        publisher.run()
        report = publisher.report()
    else:
        consumptions = [Consumption(module, client, specification) for specification in rest]
        for consumption in consumptions:
            consumption.thread.start()
        print("ready", flush=True)
        for consumption in consumptions:
            consumption.thread.join()
        report = [consumption.report() for consumption in consumptions]
    with open(output, "w") as file:
        json.dump(report, file)
    client.close()


if __name__ == "__main__":
    main()
