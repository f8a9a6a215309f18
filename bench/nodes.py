"""`make bench-nodes`: what a lost Ray node costs, on four nodes of one machine that have addresses of their own.

    python bench/nodes.py [--only NAME …] [--runs 10]

    killed        a node with the topic's broker and a bookie is killed whole: the producer's longest time without a
                  receipt
    coordinator   the same where the node has the coordinator, too, with the metadata in PostgreSQL on another host
    cut           the node of the topic's broker is cut off, both ways and each way: our client with the keep-alive at
                  30 s and at 5 s, and the official client, whose keep-alive is always 30 s
    back          the node returns after a minute, killed or cut off before: until its bookie and its broker run and
                  each closed ledger has all its copies
    rolling       `magnetar restart` of every process on three nodes, under load: failed publishes, and the longest
                  time that a producer went without a receipt, for our client and the official one

Each run has new Ray nodes and a new cluster. It needs root, and as much time as the clients need to notice: with
everything about half an hour. Results go to bench/results/nodes/latest.json.
"""

import argparse
import contextlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

import pulsar
from prober import Prober
from rich.console import Console
from rich.table import Table
from rows import RESULTS, Report, Row

import magnetar
from magnetar.actors.processes.supervisor import NodeState
from magnetar.cluster.draining import line_of
from magnetar.protocol.cluster_status import RestartView
from magnetar.protocol.names import broker_id
from support.nodes.database import Database
from support.nodes.namespaces import reason_to_skip
from support.nodes.network import Cut, Host
from support.nodes.owning import owner
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers import postgresql_server

NODES = 4
ROLLING_NODES = 3
SETTLE_S = 1.5
NOTICE_MAX_S = 150.0
AWAY_S = 60.0
BACK_MAX_S = 180.0
FILL_S = 5.0
COPIES = 3
SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": 200, "managedLedgerMinLedgerRolloverTimeMinutes": 0}

console = Console(width=130 if not sys.stdout.isatty() else None)


def topics_of(cluster: NodesCluster, broker: str, count: int) -> list[str]:
    """New topics that this broker owns."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        topic = f"lost-node-{number}"
        number += 1
        with cluster.client() as client:
            client.create_producer(topic).close()
        if owner(cluster, topic) == broker:
            found.append(topic)
    return found


def victim(cluster: NodesCluster, node: Host | None = None) -> tuple[Host, str]:
    """A node, and its broker. It has a bookie, but neither the coordinator nor the head, unless `node` is given."""
    places = cluster.places()
    kept = {cluster.hosts.head, places["coordinator"]}
    for process, place in sorted(places.items()):
        with_bookie = any(other.startswith("bookie") for other, there in places.items() if there is place)
        wanted = place not in kept if node is None else place is node
        if process.startswith("broker") and with_bookie and wanted:
            return place, process
    raise RuntimeError("no node has a broker and a bookie only")


@contextlib.contextmanager
def probing(cluster: NodesCluster, broker: str, *kinds: tuple[Any, dict[str, Any]]) -> Iterator[list[Prober]]:
    """A prober of each kind (module and options of its client), on topics of this broker, that has receipts."""
    with contextlib.ExitStack() as stack:
        probers: list[Prober] = []
        for topic, (module, options) in zip(topics_of(cluster, broker, len(kinds)), kinds, strict=True):
            if module is pulsar:
                options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options}
            client = module.Client(cluster.service_url, **options)
            probers.append(stack.enter_context(Prober(module, client, topic)))
        time.sleep(SETTLE_S)
        for prober in probers:
            prober.restart()
        yield probers


def wait_for_receipts(probers: list[Prober], since: float) -> None:
    """Until each has had one SETTLE_S after `since`, at most NOTICE_MAX_S."""
    deadline = since + NOTICE_MAX_S
    while any(prober.last < since + SETTLE_S for prober in probers) and time.monotonic() < deadline:
        time.sleep(0.05)


def killed(report: Report, runs: int) -> None:
    for how, silently in (("", False), (", its peers are not told", True)):
        gaps: list[float] = []
        for _ in range(runs):
            with RayHosts(NODES) as hosts, hosts.client.network():
                cluster = hosts.start_cluster(brokers=NODES, bookies=NODES)
                gaps.append(gap_of_kill(hosts, cluster, *victim(cluster), silently))
        report.rows.append(nine_of_ten(f"node killed{how}: publish gap", gaps, 5.0 if silently else 1.0))


def coordinator(report: Report, runs: int) -> None:
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        raise RuntimeError(reason)
    gaps: list[float] = []
    for _ in range(runs):
        with RayHosts(NODES) as hosts, hosts.client.network():
            home = hosts.nodes[1]
            url = Database(hosts.network).url
            cluster = hosts.start_cluster(at=home, brokers=NODES, bookies=NODES, metadata=url)
            assert cluster.places()["coordinator"] is home, "the coordinator runs elsewhere"
            gaps.append(gap_of_kill(hosts, cluster, *victim(cluster, home), False, takes_coordinator=True))
    report.rows.append(nine_of_ten("node with the coordinator killed: publish gap", gaps, 5.0))


def gap_of_kill(
    hosts: RayHosts, cluster: NodesCluster, node: Host, broker: str, silently: bool, *, takes_coordinator: bool = False
) -> float:
    with probing(cluster, broker, (magnetar, {})) as probers, cluster.client() as client:
        since = time.monotonic()
        hosts.kill(node, silently=silently)
        if takes_coordinator:  # a new topic takes a coordinator
            client.create_producer("after-the-kill").send(b"")
            console.print(f"  a new topic {time.monotonic() - since:.2f} s after the kill")
        wait_for_receipts(probers, since)
        console.print(f"  killed {node.name}: {probers[0].longest_s:.2f} s {probers[0].failed[:1] or ''}")
        return round(probers[0].longest_s, 3)


def nine_of_ten(name: str, gaps: list[float], target: float) -> Row:
    figure = sorted(gaps)[math.ceil(len(gaps) * 0.9) - 1]
    return Row(name, figure, "lower", target, gaps, "s", f"9 of {len(gaps)}" if len(gaps) == 10 else "")


def cut(report: Report, runs: int) -> None:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "our client": (magnetar, {"keep_alive_interval_s": 30.0}),
        "our client, keep-alive 5 s": (magnetar, {"keep_alive_interval_s": 5.0}),
        "official client": (pulsar, {}),
    }
    for how in Cut:
        gaps: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(max(1, runs // 5)):
            with RayHosts(NODES) as hosts, hosts.client.network():
                cluster = hosts.start_cluster(brokers=NODES, bookies=NODES)
                node, broker = victim(cluster)
                with probing(cluster, broker, *kinds.values()) as probers:
                    since = time.monotonic()
                    hosts.cut(node, how)
                    wait_for_receipts(probers, since)
                    for name, prober in zip(kinds, probers, strict=True):
                        gaps[name].append(round(prober.longest_s, 2))
                        console.print(f"  cut {how}, {name}: {prober.longest_s:.2f} s {prober.failed[:1] or ''}")
                    hosts.heal(node)
        for name, found in gaps.items():
            target = 5.0 if name == "our client" else NOTICE_MAX_S
            report.rows.append(Row(f"cut {how}: publish gap, {name}", max(found), "lower", target, found, "s"))


def back(report: Report, runs: int) -> None:
    for how in ("killed", "cut off"):
        found = [seconds_until_back(how) for _ in range(max(1, runs // 5))]
        report.rows.append(Row(f"node back, {how} before: whole again", max(found), "lower", 30.0, found, "s"))


def seconds_until_back(how: str) -> float:
    with RayHosts(NODES) as hosts, hosts.client.network():
        cluster = hosts.start_cluster(brokers=NODES, bookies=NODES, settings=SMALL_LEDGERS)
        node, broker = victim(cluster)
        expected = set(cluster.places())
        with probing(cluster, broker, (magnetar, {})):
            time.sleep(FILL_S)
            if how == "killed":
                hosts.kill(node)
            else:
                hosts.cut(node)
            time.sleep(AWAY_S)
            since = time.monotonic()
            return_node(cluster, node, how)
            ray_s = time.monotonic() - since
            running_s, whole_s = (
                seconds_until(condition, since, lambda: hosts.look_after(node))
                for condition in (
                    lambda: set(cluster.places()) == expected and supervised(cluster),
                    lambda: is_whole(cluster),
                )
            )
            console.print(f"  back after {how}: Ray {ray_s:.1f} s, running {running_s:.1f} s, whole {whole_s:.1f} s")
            return round(max(running_s, whole_s), 1)


def supervised(cluster: NodesCluster) -> bool:
    """Whether each process is one that Ray has. One that Ray gave up goes on until its raylet ends."""
    return all(process["state"] == NodeState.RUNNING for process in cluster.status()["processes"])


def is_whole(cluster: NodesCluster) -> bool:
    """Whether each closed ledger has all its copies."""
    missing = cluster.ask("missing_copies", copies=COPIES)
    if missing:
        raise RuntimeError(f"{len(missing)} copies are missing, the first of them {missing[:3]}")
    return True


def return_node(cluster: NodesCluster, node: Host, how: str) -> None:
    if how == "killed":
        cluster.hosts.bring_back(node)
    else:
        cluster.hosts.heal(node)


def seconds_until(condition: Callable[[], bool], since: float, meanwhile: Callable[[], None]) -> float:
    """Seconds from `since` until the condition holds, BACK_MAX_S if it does not."""
    problem = "it does not hold"
    while time.monotonic() - since < BACK_MAX_S:
        meanwhile()
        try:
            if condition():
                return time.monotonic() - since
        except RuntimeError as error:
            problem = str(error)
        time.sleep(0.2)
    console.print(f"  given up: {problem}")
    return BACK_MAX_S


def rolling(report: Report, runs: int) -> None:
    kinds: dict[str, Any] = {"our client": magnetar, "official client": pulsar}
    gaps: dict[str, list[float]] = {name: [] for name in kinds}
    failed = 0
    for _ in range(max(1, runs // 5)):
        with RayHosts(ROLLING_NODES) as hosts, hosts.client.network(), contextlib.ExitStack() as stack:
            cluster = hosts.start_cluster(brokers=ROLLING_NODES, bookies=ROLLING_NODES)
            probers: dict[str, list[Prober]] = {name: [] for name in kinds}
            for number in range(ROLLING_NODES):  # a topic on each broker, for each client
                for prober, name in zip(
                    stack.enter_context(
                        probing(cluster, broker_id(number + 1), *((one, {}) for one in kinds.values()))
                    ),
                    kinds,
                    strict=True,
                ):
                    probers[name].append(prober)
            for name, gap in longest_while_restarting(cluster, probers).items():
                gaps[name].append(gap)
            failures = [text for found in probers.values() for prober in found for text in prober.failed]
            console.print(f"  failed publishes: {failures[:3] or 'none'}")
            failed += len(failures)
    report.rows.append(Row("rolling restart: failed publishes", failed, "lower", 0, [failed]))
    for name, found in gaps.items():
        target = 1.0 if name == "our client" else NOTICE_MAX_S
        report.rows.append(Row(f"rolling restart: publish gap, {name}", max(found), "lower", target, found, "s"))


def longest_while_restarting(cluster: NodesCluster, probers: dict[str, list[Prober]]) -> dict[str, float]:
    """The longest gap of each kind of prober while every process is restarted; printed for each process."""
    longest = dict.fromkeys(probers, 0.0)

    def show(process: str, view: RestartView | None) -> None:
        if view is None:
            return
        now = {name: round(max(prober.longest_s for prober in found), 3) for name, found in probers.items()}
        console.print(f"  {line_of(view)}; gaps {now}")
        for name, found in probers.items():
            longest[name] = max(longest[name], now[name])
            for prober in found:
                prober.restart()

    cluster.restart(on_progress=show)
    wait_for_receipts([prober for found in probers.values() for prober in found], time.monotonic())
    return {name: max(longest[name], *(round(one.longest_s, 3) for one in found)) for name, found in probers.items()}


BENCHMARKS = {"killed": killed, "coordinator": coordinator, "cut": cut, "back": back, "rolling": rolling}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--runs", type=int, default=10, help="kills of each kind; cuts and returns take a fifth of it")
    options = parser.parse_args()
    reason = reason_to_skip()
    if reason is not None:
        console.print(reason)
        return 2
    report = Report()
    for name in options.only:
        console.print(name)
        try:
            BENCHMARKS[name](report, options.runs)
        except Exception as error:
            traceback.print_exc()
            report.problems[name] = f"{type(error).__name__}: {error}"
    table = Table()
    for column in ("figure", "measured", "target", "single figures"):
        table.add_column(column)
    for row in report.rows:
        mark = "≤" if row.better == "lower" else "≥"
        table.add_row(row.row, f"{row.figure} {row.unit}", f"{mark} {row.target:g}", str(row.samples))
    console.print(table)
    console.print(f"results in {report.save(RESULTS / 'nodes')}")
    return 0 if not report.problems and all(row.ok for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
