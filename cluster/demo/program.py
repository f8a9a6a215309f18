"""`make demo`: the whole way of real data, with a broker killed in the middle, and every claim checked.

1. starts Ray and a cluster of 3 bookies and 2 brokers; creates a topic of 4 partitions and, before any message, its
   durable subscription `spark`, which keeps the data;
2. publishes all flights from parallel Ray tasks, keyed by tail number, and half-way kills with SIGKILL a broker that
   owns partitions with sends in flight;
3. consumes them in a Shared subscription from Ray tasks;
4. reads the topic into Spark and computes the mean departure delay of each carrier. Another process computes the same
   from the original file with pandas, and the two are compared;
5. reads the topic once more as a stream, in micro-batches, and publishes the delays as Avro records, which come back as
   typed columns.

Ray, Spark and Java write their logs into a file of the output directory (`--output DIR`, by default `magnetar-demo`),
beside the picture of what was measured.

With `--join` it runs on the Magnetar cluster of the Ray at RAY_ADDRESS, in a topic of its own that it deletes at the
end. There, too, it kills a broker. With `--no-spark` it ends after the third step. With `--flights N` it takes the
first N flights only.

Exit status 0: every (key, sequence, hash) arrived, by both ways, nothing else did, and the figures agree. 1: not so.
2: everything else is right, but there is no Java for the Spark step.

Delivery is at least once: a batch that was stored just before the kill, and whose receipt was lost with the broker, is
sent again. Such repeats are counted and shown; Spark drops them before it computes.
"""

import argparse
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...client.core.configuration import InitialPosition
from ...protocol.errors import ClusterError, SparkUnavailable
from ...protocol.names import actor_name, broker_id
from ...runtime.ray_calls import ask, find_actor, kill_actor, remote, start_actor, wait_for
from ..planning import read_settings
from ..preparing import StartOptions
from ..ray_cluster import RayCluster, find_on_ray, process_id, start_on_ray
from . import picture
from . import tasks as demo_tasks
from .flights import FLIGHTS, FlightIdentity, flights
from .picture import Drawn, Published
from .quiet import quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
PARTITIONS = 4
PUBLISHERS = 2
CONSUMERS = 2
MICRO_BATCHES = 4
STREAM_SUBSCRIPTION = "spark-stream"
STREAM_TIMEOUT_S = 120.0
POLL_S = 0.1
PANDAS = [sys.executable, "-P", "-m", "magnetar.cluster.demo.flights"]
FEWEST_FLIGHTS = 10_000
"""Fewer are published before anybody could kill a broker half-way."""

LOG_NAME = "libraries.log"
PICTURE_NAME = "demo.png"


@dataclass
class DemoOutcome:
    """What was measured and what was wrong. Each step is shown on the console when it is done."""

    console: Console
    flights: int
    """How many have to arrive."""
    steps: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # step, figure, rate
    published: list[Published] = field(default_factory=list[Published])
    consumed: list[Published] = field(default_factory=list[Published])
    lost: int | None = None
    """Messages with a receipt that did not reach the consumers; None until they have been counted."""
    killed_s: float | None = None
    wrong: list[str] = field(default_factory=list[str])
    delays: list[tuple[str, float, float]] = field(
        default_factory=list[tuple[str, float, float]]
    )  # carrier, Spark, pandas
    left_out: str = ""
    """Why the Spark step was left out, although it was wanted."""
    with_spark: bool = True

    def step(self, name: str, what: str, rate: str) -> None:
        self.steps.append((name, what, rate))
        self.console.print(f"[green]✓[/green] {name}: {what}{', ' if rate else ''}{rate}", highlight=False)

    def check(self, good: bool, problem: str) -> None:
        if not good:
            self.wrong.append(problem)


@dataclass(frozen=True)
class Scene:
    """Where the demo runs. `joined` says that the cluster was there before, perhaps on other machines."""

    cluster: RayCluster
    topic: str
    joined: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m magnetar.cluster.demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("magnetar-demo"), help="where log and picture go")
    parser.add_argument("--join", action="store_true", help="run on the cluster at RAY_ADDRESS; one broker is killed")
    parser.add_argument("--no-spark", action="store_true", help="leave the Spark step out")
    parser.add_argument("--flights", type=_flights, default=FLIGHTS, help="how many; all %(default)s by default")
    options = parser.parse_args(arguments)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    log = output / LOG_NAME
    with quiet(log) as console:
        console.print(f"the logs of Ray, Spark and Java go to {log}", highlight=False)
        outcome = DemoOutcome(console, options.flights, with_spark=not options.no_spark)
        with _joined() if options.join else _started(console) as scene:
            console.print(f"cluster {scene.cluster.cluster_id} at {scene.cluster.service_url}", highlight=False)
            _run(scene, outcome)
        _show(outcome, output / PICTURE_NAME)
    return 1 if outcome.wrong else 2 if outcome.left_out else 0


def _flights(text: str) -> int:
    number = int(text)
    if not FEWEST_FLIGHTS <= number <= FLIGHTS:
        raise argparse.ArgumentTypeError(f"from {FEWEST_FLIGHTS:,} to {FLIGHTS:,} flights, not {number:,}")
    return number


@contextmanager
def _started(console: Console) -> Generator[Scene]:
    """A Ray and a cluster of its own, whatever else runs here."""
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="magnetar-demo-", ignore_cleanup_errors=True) as directory:
        with console.status("starting Ray, 3 bookies, 2 brokers …"):
            cluster = start_on_ray(directory, StartOptions(read_settings(), port=0, admin_port=0), detach=False)
        try:
            yield Scene(cluster, TOPIC, joined=False)
        finally:
            with console.status("stopping …"):
                _stop_spark()
                cluster.stop()


@contextmanager
def _joined() -> Generator[Scene]:
    """The cluster that runs, which goes on afterwards without the demo's topic."""
    scene = Scene(find_on_ray(), f"{TOPIC}-{secrets.token_hex(4)}", joined=True)
    try:
        yield scene
    finally:
        _stop_spark()
        _admin(scene.cluster, f"persistent/public/default/{scene.topic}/partitions?force=true", method="DELETE")


def _run(scene: Scene, outcome: DemoOutcome) -> None:
    expected = Counter(flight.identity for flight in flights(outcome.flights))
    outcome.check(len(expected) == outcome.flights, f"the file holds {len(expected)} flights, not {outcome.flights}")
    _admin(scene.cluster, f"persistent/public/default/{scene.topic}/partitions", PARTITIONS)
    with scene.cluster.client() as client:
        # Created before the first message: from now on nothing goes until it is acknowledged here.
        client.subscribe(scene.topic, "spark").close()
    bars = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*bars, console=outcome.console) as shown:
        _publish(scene, shown, outcome)
        _consume(scene.topic, expected, shown, outcome)
    if outcome.with_spark:
        _spark(scene, expected, outcome)


# -- publishing and the kill ---------------------------------------------------------------------------------------


def _publish(scene: Scene, shown: Progress, outcome: DemoOutcome) -> None:
    bar = shown.add_task("publish from Ray tasks", total=outcome.flights, note="")
    progress = start_actor(demo_tasks.Progress, {"num_cpus": 0})
    task = remote(demo_tasks.publish, num_cpus=0.5)
    begin = time.perf_counter()
    running: list[Awaitable[demo_tasks.Outcome]] = [
        task.remote(scene.topic, outcome.flights, part, PUBLISHERS, progress) for part in range(PUBLISHERS)
    ]
    killed = ""
    pending = running
    while pending:
        pending = wait_for(pending, POLL_S)
        done, in_flight = ask(progress.totals())
        outcome.published.append(Published(_since(begin), done))
        shown.update(bar, completed=done, note=killed)
        if not killed and done >= outcome.flights // 2 and in_flight:
            outcome.killed_s = _since(begin)
            killed = _kill_an_owner(scene)
            outcome.step("broker killed half-way", killed, f"{in_flight:,} sends in flight")
    results = ask(running)
    seconds = time.perf_counter() - begin
    outcome.check(bool(killed), "no broker could be killed with sends in flight")
    sent = sum(result["sent"] for result in results)
    received = sum(result["received"] for result in results)
    outcome.check(sent == received == outcome.flights, f"{sent} sent, {received} receipts")
    failures = [failure for result in results for failure in result["failures"]]
    outcome.check(not failures, f"sends failed: {failures}")
    outcome.step(f"publish, {PUBLISHERS} Ray tasks", f"{received:,} receipts", _rate(received, seconds))


def _kill_an_owner(scene: Scene) -> str:
    """SIGKILL the broker that owns the first partition; returns its name with its partitions.

    Ray kills a broker that may be on another machine. Nothing is closed in that case, either.
    """
    owners: dict[str, list[int]] = {}
    for partition in range(PARTITIONS):
        path = f"lookup/v2/topic/persistent/public/default/{scene.topic}-partition-{partition}"
        answer = _admin(scene.cluster, path, prefix="")
        owners.setdefault(answer["brokerUrl"], []).append(partition)
    url, partitions = next(iter(owners.items()))
    name = broker_id(scene.cluster.service_urls.index(url) + 1)
    if scene.joined:
        kill_actor(find_actor(actor_name(name)))
    else:
        os.kill(process_id(name), signal.SIGKILL)
    return f"{name} (partitions {', '.join(map(str, partitions))})"


# -- consuming -----------------------------------------------------------------------------------------------------


def _consume(topic: str, expected: "Counter[FlightIdentity]", shown: Progress, outcome: DemoOutcome) -> None:
    bar = shown.add_task("consume, Shared, in Ray tasks", total=outcome.flights, note="")
    progress = start_actor(demo_tasks.Progress, {"num_cpus": 0})
    task = remote(demo_tasks.consume, num_cpus=0.5)
    begin = time.perf_counter()
    seconds = 0.0
    running: list[Awaitable[list[FlightIdentity]]] = [
        task.remote(topic, "workers", number, outcome.flights, progress) for number in range(CONSUMERS)
    ]
    pending = running
    while pending:
        pending = wait_for(pending, POLL_S)
        done, _ = ask(progress.totals())
        if not seconds:
            outcome.consumed.append(Published(_since(begin), min(done, outcome.flights)))
        if done >= outcome.flights and not seconds:
            seconds = time.perf_counter() - begin
        shown.update(bar, completed=min(done, outcome.flights))
    arrived: Counter[FlightIdentity] = Counter()
    for seen in ask(running):
        arrived.update(seen)
    repeats = _compare(expected, arrived, "the consumers", outcome)
    outcome.lost = (expected - arrived).total()
    note = f"{len(arrived):,} messages, {repeats:,} repeats"
    outcome.step(f"consume, Shared, {CONSUMERS} Ray tasks", note, _rate(len(arrived), seconds))


def _compare(
    expected: "Counter[FlightIdentity]", arrived: "Counter[FlightIdentity]", where: str, outcome: DemoOutcome
) -> int:
    """Check that all of `expected` and nothing else arrived; returns how many arrived more than once."""
    missing = expected - arrived
    strangers = arrived.keys() - expected.keys()
    outcome.check(not missing, f"{missing.total()} messages did not reach {where}, such as {next(iter(missing), None)}")
    outcome.check(not strangers, f"{len(strangers)} messages that nobody sent reached {where}")
    return (arrived - expected).total()


# -- Spark ---------------------------------------------------------------------------------------------------------


def _spark(scene: Scene, expected: "Counter[FlightIdentity]", outcome: DemoOutcome) -> None:
    from ...spark import read_topic, session

    pandas = subprocess.Popen([*PANDAS, str(outcome.flights)], stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        with outcome.console.status("starting Spark …"):
            spark = session("magnetar-demo", executor_memory="1g", configs={"spark.sql.shuffle.partitions": "4"})
    except SparkUnavailable as error:
        pandas.kill()
        outcome.left_out = str(error)
        return
    with outcome.console.status("reading the topic into Spark …"):
        begin = time.perf_counter()
        frame = read_topic(spark, scene.topic).persist()
        rows = frame.count()
        seconds = time.perf_counter() - begin
    outcome.step("read into Spark", f"{rows:,} rows", _rate(rows, seconds))
    with outcome.console.status("computing in Spark …"):
        begin = time.perf_counter()
        ours, identities = _spark_delays(frame)
        outcome.step("mean delay by carrier, Spark", f"{len(ours)} carriers", f"{_since(begin):.1f} s")
    repeats = _compare(expected, identities, "Spark", outcome)
    _stream(scene, rows, outcome)
    _written_back(spark, scene, ours, outcome)
    number = outcome.flights
    outcome.check(rows == number + repeats, f"Spark has {rows} rows: {number} flights and {repeats} repeats")
    answer, _ = pandas.communicate(timeout=120)
    outcome.check(pandas.returncode == 0, "pandas failed")
    theirs: dict[str, float] = json.loads(answer) if pandas.returncode == 0 else {}
    outcome.check(ours.keys() == theirs.keys(), f"carriers: {sorted(ours)} in Spark, {sorted(theirs)} in pandas")
    for carrier in sorted(ours.keys() & theirs.keys()):
        outcome.delays.append((carrier, ours[carrier], theirs[carrier]))
        same = math.isclose(ours[carrier], theirs[carrier], rel_tol=1e-9)
        outcome.check(same, f"{carrier}: {ours[carrier]} in Spark, {theirs[carrier]} in pandas")


def _stream(scene: Scene, rows: int, outcome: DemoOutcome) -> None:
    """Read the topic as a stream, to its end: each row comes in one micro-batch."""
    from ...spark import stream

    counts: list[int] = []
    begin = time.perf_counter()
    with outcome.console.status("streaming the topic through Spark …"):
        query = stream(
            scene.topic,
            STREAM_SUBSCRIPTION,
            lambda frame, _: counts.append(frame.count()),
            start="earliest",
            trigger="availableNow",
            columns=["__publishTime"],
            max_messages_per_trigger=rows // MICRO_BATCHES + 1,
        )
        outcome.check(query.await_termination(STREAM_TIMEOUT_S), "the stream did not come to the end of the topic")
    rate = _rate(sum(counts), time.perf_counter() - begin)
    outcome.step("streamed through Spark", f"{sum(counts):,} rows in {len(counts)} micro-batches", rate)
    outcome.check(sum(counts) == rows, f"the stream had {sum(counts)} rows, and the topic {rows}")


def _written_back(spark: "SparkSession", scene: Scene, delays: "dict[str, float]", outcome: DemoOutcome) -> None:
    """Publish the delays as Avro records, and read them as typed columns."""
    from ...spark import read_topic, write_topic

    topic = f"{scene.topic}-delays"
    with outcome.console.status("writing the delays back …"):
        with scene.cluster.client() as client:  # a subscription keeps them
            client.subscribe(topic, STREAM_SUBSCRIPTION, initial_position=InitialPosition.Earliest).close()
        write_topic(spark.createDataFrame(sorted(delays.items()), "carrier string, delay double"), topic, schema="avro")
        table = read_topic(spark, topic, schema="auto", columns=["carrier", "delay"])
        found = {row["carrier"]: row["delay"] for row in table.collect()}
    outcome.step("written back and read as typed columns", f"{len(found)} carriers", table.schema.simpleString())
    outcome.check(found == delays, f"the topic {topic} has other delays: {found}")
    if scene.joined:
        _admin(scene.cluster, f"persistent/public/default/{topic}?force=true", method="DELETE")


def _spark_delays(frame: "DataFrame") -> "tuple[dict[str, float], Counter[FlightIdentity]]":
    """Mean delay by carrier, computed by Spark without repeats; and which messages Spark holds."""
    from pyspark.sql import functions as F

    from .flights import HASH_DIGITS

    once = frame.dropDuplicates(["__key", "__sequenceId"])
    flight = F.from_json(F.col("value").cast("string"), "carrier STRING, dep_delay STRING")
    delay = F.expr("try_cast(flight.dep_delay AS DOUBLE)").alias("delay")
    means = once.select(flight.alias("flight")).select("flight.carrier", delay).groupBy("carrier").agg(F.mean("delay"))
    digest = F.substring(F.sha2("value", 256), 1, HASH_DIGITS)
    identities = Counter((row[0], row[1], row[2]) for row in frame.select("__key", "__sequenceId", digest).collect())
    return {row[0]: row[1] for row in means.collect()}, identities


def _stop_spark() -> None:
    """End Spark, if it was started, before the Ray that it runs on."""
    if "raydp" in sys.modules:
        from ...spark import stop

        stop()


# -- small things --------------------------------------------------------------------------------------------------


def _admin(
    cluster: RayCluster, path: str, body: object = None, prefix: str = "admin/v2/", method: str | None = None
) -> Any:
    """GET, or PUT when there is a body, or another method. Raises ClusterError."""
    request = urllib.request.Request(
        f"{cluster.admin_url}/{prefix}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method or ("GET" if body is None else "PUT"),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
    except OSError as error:
        raise ClusterError(f"the admin HTTP refused {path}: {error}") from error
    return json.loads(content) if content else None


def _since(begin: float) -> float:
    return time.perf_counter() - begin


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds else ""


def _statement(outcome: DemoOutcome) -> str:
    """What the run shows, for the head of the picture."""
    killed = ", one broker killed half-way" if outcome.killed_s is not None else ""
    lost = "the run did not end" if outcome.lost is None else f"{outcome.lost:,} lost"
    return f"{outcome.flights:,} flights through Magnetar{killed}: {lost}"


def _show(outcome: DemoOutcome, image: Path) -> None:
    console = outcome.console
    steps = Table(title=f"{outcome.flights:,} flights", title_justify="left")
    for column in ("step", "what", "rate"):
        steps.add_column(column, justify="left" if column == "step" else "right")
    for step in outcome.steps:
        steps.add_row(*step)
    console.print(steps)
    if outcome.delays:
        delays = Table(title="mean departure delay, minutes", title_justify="left")
        for column in ("carrier", "Spark, from the topic", "pandas, from the file"):
            delays.add_column(column, justify="left" if column == "carrier" else "right")
        for carrier, ours, theirs in outcome.delays:
            delays.add_row(carrier, f"{ours:.4f}", f"{theirs:.4f}")
        console.print(delays)
    by_carrier = [(carrier, ours) for carrier, ours, _ in outcome.delays]
    console.print(picture.text(outcome.published, outcome.killed_s, by_carrier), highlight=False, soft_wrap=True)
    try:
        run = Drawn(_statement(outcome), outcome.published, outcome.consumed, outcome.killed_s, by_carrier)
        picture.draw(image, run)
        console.print(f"the picture is {image}", highlight=False)
    except (ClusterError, OSError) as error:
        console.print(f"[yellow]no picture:[/yellow] {error}", highlight=False)
    for problem in outcome.wrong:
        console.print(f"[red]wrong:[/red] {problem}", highlight=False)
    if outcome.left_out:
        console.print(f"[yellow]the Spark step was left out:[/yellow] {outcome.left_out}", highlight=False)
    if not outcome.wrong and not outcome.left_out:
        figures = ", and the figures agree" if outcome.with_spark else ""
        console.print(f"[green]every flight arrived{figures}[/green]")
