"""A stream from topic to topic while its driver, executors and workers are killed, and brokers and bookies end.

Each row is in the target once. With `SPARK_KILL_RUNS=20` in the environment there are so many runs. Each prints what
was killed (`pytest -s`).
"""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until
from support.spark import spark4
from support.spark.killing import EXECUTOR, WORKER, KilledProgram

RUNS = int(os.environ.get("SPARK_KILL_RUNS", "1"))
ROWS = 9_000
KEYS = 11
KILLS = 5
DRIVER_KILLS_MIN = 2
STEP_TIMEOUT_S = 240.0
"""On a busy machine Spark takes more than a minute to start."""
WHOLE = "SELECT value, __key, __eventTime FROM t"
SHUFFLED = "SELECT /*+ REPARTITION(3, __key) */ value, __key FROM t"


class Run:
    """One run, with a cluster of its own."""

    def __init__(self, cluster: EmbeddedCluster, admin_url: str, place: Path, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.shuffled = seed % 2 == 1
        self.master = "local-cluster[2,1,1024]" if seed % 4 in (0, 3) else "local[2,20]"
        """Executors are processes of their own in every other run of each kind."""
        self.source, self.target = (f"persistent://public/default/{name}-{seed}" for name in ("source", "target"))
        self.checkpoint = place / "checkpoint"
        self.log = place / "log"
        read = {"admin.url": admin_url, "topic": self.source, "startingOffsets": "earliest"}
        write = {"service.url": cluster.service_url, "topic": self.target, "exactlyOnce": "true"}
        # Small micro-batches, so that kills come amid many of them. A key keeps its order if a partition is one task.
        read |= {"maxBytesPerTrigger": "100000", "minPartitions": "6" if self.shuffled else "1"}
        self.given = {
            "read": read,
            "write": write | ({"orderBy": "value"} if self.shuffled else {}),
            "sql": SHUFFLED if self.shuffled else WHOLE,
            "checkpoint": str(self.checkpoint),
            "master": self.master,
        }
        self.did: Counter[str] = Counter()
        self.programs: list[KilledProgram] = []

    def prepare(self) -> None:
        """Two topics of three partitions, which keep their messages, and the rows in one of them."""
        with magnetar.Client(self.cluster.service_url) as client:
            for topic in (self.source, self.target):
                self.cluster.run(self.cluster.coordinator_call("create_topic", topic=topic, partitions=3))
                client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
            producer = client.create_producer(self.source, batching_max_messages=20, block_if_queue_full=True)
            for number in range(ROWS):
                producer.send_async(b"%06d" % number + b"x" * 60, None, partition_key=f"k{number % KEYS}")
            producer.flush()

    def done(self) -> int:
        """Micro-batches that Spark knows to be done."""
        return len(list((self.checkpoint / "commits").glob("[0-9]*")))

    def go(self) -> None:
        """Run the query to its end, through all kills."""
        program = self._start()
        try:
            while program.process.poll() is None:
                seen = self.done()
                self._wait(lambda seen=seen, program=program: self.done() > seen or program.process.poll() is not None)
                kills = sum(self.did.values()) < KILLS or self.did["driver"] < DRIVER_KILLS_MIN
                if kills and program.process.poll() is None:
                    time.sleep(self.chance.uniform(0, 0.5))  # a kill at any moment of a micro-batch
                    program = self._hurt(program)
            assert program.process.returncode == 0, self.log.read_text()[-3_000:]
        finally:
            for one in self.programs:
                one.kill_all()

    def _start(self) -> KilledProgram:
        self.programs.append(KilledProgram(self.given, self.log))
        return self.programs[-1]

    def _wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, f"the query goes on: see {self.log}", STEP_TIMEOUT_S)

    def _hurt(self, program: KilledProgram) -> KilledProgram:
        """Kill something, and start it again if nobody else does. Returns the program that runs now."""
        executor = "workers" if self.master.startswith("local[") else "executor"
        what = self.chance.choice(["driver", "driver", "all", executor, "workers", "broker", "bookie"])
        self.did["driver" if what == "all" else what] += 1
        if what in ("driver", "all"):
            (program.kill_driver if what == "driver" else program.kill_all)()
            program = self._start()
        elif what in ("executor", "workers"):
            found = program.processes(EXECUTOR if what == "executor" else WORKER)
            program.kill(self.chance.sample(found, min(len(found), 1 if what == "executor" else 2)))
        else:
            number = self.chance.choice([1, 2] if what == "broker" else [1, 2, 3])
            self.cluster.run(getattr(self.cluster, f"stop_{what}")(number))
            self.cluster.run(getattr(self.cluster, f"start_{what}")(number))
        return program

    def check(self) -> None:
        """Each row is in the target once, in the order of its key."""
        with magnetar.Client(self.cluster.service_url) as client:
            reader = client.create_reader(self.target, magnetar.MessageId.earliest)
            found: list[magnetar.Message] = []
            while reader.has_message_available():
                found.append(reader.read_next(10_000))
        numbers = Counter(int(message.data()[:6]) for message in found)
        missing = [number for number in range(ROWS) if not numbers[number]]
        twice = [number for number, count in numbers.items() if count > 1]
        assert (missing[:5], twice[:5], len(found)) == ([], [], ROWS)
        by_key: dict[str, list[int]] = defaultdict(list)
        for message in found:
            by_key[message.partition_key()].append(int(message.data()[:6]))
        assert len(by_key) == KEYS
        if not self.shuffled:
            assert all(own == sorted(own) for own in by_key.values()), "a key keeps its order"


@pytest.mark.promise("27.4")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(RUNS))
def test_each_row_of_a_stream_is_stored_once_through_kills(tmp_path: Path, seed: int) -> None:
    reason = spark4.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    settings = {"deduplication_enabled": True, "ledger_entries_max": 60, "ledger_rollover_min_minutes": 0}
    with EmbeddedCluster(tmp_path / "cluster", brokers=2, **settings) as cluster:
        run = Run(cluster, cluster.run(cluster.start_admin()), tmp_path, seed)
        run.prepare()
        run.go()
        run.check()
    print(f"run {seed}: {ROWS} rows once, {run.done()} micro-batches, {dict(run.did)}")
