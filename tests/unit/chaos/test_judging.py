"""The judges of a chaos run, fed with wrong histories: each kind of wrong has to be complained of, and nothing else."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos.checking import Checking
from chaos.events import count_events, incarnations
from chaos.judging import Fault, Outcome, judge, plain
from chaos.publishing import GAP_MIN_S, History

PARTITION = "persistent://public/default/chaos-batched-partition-{}"
ENOUGH = {
    "failovers": 20,
    "recoveries": 20,
    "ensemble changes": 15,
    "writes with too few bookies": 5,
    "writes refused by a fence": 5,
}
COUNT = 6


def place(sequence: int) -> str:
    return f"7:{sequence}:-1"


class Told:
    """A run in which all went well; a test then spoils a part of it."""

    def __init__(self) -> None:
        keys = ["batched-0", "batched-1"]
        self.histories: dict[str, Any] = {
            "batched": {
                "sent": dict.fromkeys(keys, COUNT),
                "acknowledged": {
                    keys[0]: [[sequence, f"7:{sequence}:-1"] for sequence in range(COUNT)],
                    keys[1]: [[sequence, f"8:{sequence}:-1"] for sequence in range(COUNT - 1)],
                },
            }
        }
        self.logs: dict[str, Any] = {
            "batched": {
                PARTITION.format(number): [((key, n), f"{7 + number}:{n}:-1") for n in range(COUNT)]
                for number, key in enumerate(keys)
            }
        }
        lines = [f"{key} {n} {7 + number}:{n}:-1 0" for number, key in enumerate(keys) for n in range(COUNT)]
        self.reports: list[Any] = [
            self.report("exclusive", "one", list(lines)),
            self.report("shared", "two", lines[::2]),
            self.report("shared", "two", lines[1::2]),
            self.report("reader", "three", lines[:COUNT], "chaos-batched-partition-0"),
        ]
        self.backlogs: list[tuple[str, str, int]] = []

    @staticmethod
    def report(kind: str, name: str, log: list[str], topic: str = "chaos-batched") -> dict[str, Any]:
        return {"kind": kind, "topics": [topic], "name": name, "log": log, "mark": len(log), "gaps": [], "errors": []}

    def judged(self, **changes: Any) -> tuple[int, str, Outcome]:
        """(exit status, what was printed, the outcome)."""
        outcome = Outcome(10, 60.0, 1, [Fault("broker-1", "kill", 1.0, 1.0)], events=dict(ENOUGH))
        outcome.reference_rate, outcome.rate, outcome.backlogs = 100.0, 50.0, self.backlogs
        Checking(outcome, self.histories, self.logs).take_deliveries(self.reports)
        for name, value in changes.items():
            setattr(outcome, name, value)
        console = Console(file=io.StringIO(), width=150)
        status = judge(outcome, console)
        assert isinstance(console.file, io.StringIO)
        return status, console.file.getvalue(), outcome


def test_a_run_in_which_all_went_well_passes() -> None:
    status, printed, outcome = Told().judged()
    assert status == 0 and "MISSED" not in printed
    assert plain(outcome)["logs"]["batched"]["messages"] == 2 * COUNT


def _lose_from_the_log(run: Told) -> None:
    del run.logs["batched"][PARTITION.format(0)][2]
    run.reports[0]["log"].pop(2)  # and from what was delivered: nobody saw it


def _lose_a_whole_key(run: Told) -> None:
    run.logs["batched"][PARTITION.format(1)].clear()


def _skip_a_delivery(run: Told) -> None:
    run.reports[0]["log"].pop(3)


def _skip_a_shared_delivery(run: Told) -> None:
    run.reports[1]["log"].pop(0)


def _skip_the_end_for_a_reader(run: Told) -> None:
    run.reports[3]["log"].pop()


def _reorder_the_log(run: Told) -> None:
    log = run.logs["batched"][PARTITION.format(0)]
    log[1], log[2] = log[2], log[1]


def _reorder_deliveries(run: Told) -> None:
    log = run.reports[0]["log"]
    log[1], log[2] = log[2], log[1]


def _reorder_for_a_reader(run: Told) -> None:
    log = run.reports[3]["log"]
    log[0], log[5] = log[5], log[0]


def _invent_in_the_log(run: Told) -> None:
    run.logs["batched"][PARTITION.format(0)].append((("batched-0", COUNT), place(COUNT)))


def _invent_a_delivery(run: Told) -> None:
    run.reports[1]["log"].append(f"batched-9 0 {place(3)} 0")


def _tell_a_wrong_place(run: Told) -> None:
    run.histories["batched"]["acknowledged"]["batched-0"][1][1] = place(2)


def _deliver_with_a_wrong_id(run: Told) -> None:
    run.reports[0]["log"][1] = f"batched-0 1 {place(2)} 0"


def _rewind_before_the_first_fault(run: Told) -> None:
    run.reports[1]["log"] = ["batched-0 2 7:2:-1 0", "batched-0 0 7:0:-1 0", *run.reports[1]["log"][2:]]


def _leave_a_backlog(run: Told) -> None:
    run.backlogs.append((PARTITION.format(0), "one", 1))


WRONGS = [
    (_lose_from_the_log, "acknowledged, then lost, in the logs"),
    (_lose_a_whole_key, "acknowledged, then lost, in the logs"),
    (_skip_a_delivery, "acknowledged, then lost, at subscriptions"),
    (_skip_a_shared_delivery, "acknowledged, then lost, at subscriptions"),
    (_skip_the_end_for_a_reader, "acknowledged, then lost, at subscriptions"),
    (_reorder_the_log, "out of order, in the logs"),
    (_reorder_deliveries, "out of order, at subscriptions"),
    (_reorder_for_a_reader, "out of order, at subscriptions"),
    (_invent_in_the_log, "never sent, yet there, in the logs"),
    (_invent_a_delivery, "never sent, yet there, at subscriptions"),
    (_tell_a_wrong_place, "not where receipt or delivery said, in the logs"),
    (_deliver_with_a_wrong_id, "not where receipt or delivery said, at subscriptions"),
    (_rewind_before_the_first_fault, "rewinds at Shared consumers before the first fault"),
    (_leave_a_backlog, "subscriptions with a wrong backlog at the end"),
]


@pytest.mark.parametrize("spoil, complaint", WRONGS, ids=[spoil.__name__.strip("_") for spoil, _ in WRONGS])
def test_each_wrong_history_is_complained_of(spoil: Any, complaint: str) -> None:
    run = Told()
    spoil(run)
    status, printed, _ = run.judged()
    assert status == 1
    missed = [line.split("│")[1].strip() for line in printed.splitlines() if "MISSED" in line]
    assert complaint in missed
    assert set(missed) <= {row for _, row in WRONGS}


def test_more_rewinds_than_incarnations_are_complained_of() -> None:
    run = Told()
    log = [f"batched-0 {n} {place(n)} 0" for n in (0, 2, 1, 4, 3)]
    run.reports[1] = run.report("shared", "two", log)
    run.reports[1]["mark"] = 1
    run.reports[2]["log"] = [f"batched-0 5 {place(5)} 0", *[f"batched-1 {n} 8:{n}:-1 0" for n in range(COUNT)]]
    assert run.judged(events={**ENOUGH, "failovers": 20})[0] == 0
    status, printed, _ = run.judged(events={**ENOUGH, "failovers": 1})
    assert status == 1 and "more rewinds than incarnations (1)" in printed
    assert run.judged(events={**ENOUGH, "failovers": 1, "topics moved": 1})[0] == 2, "too few failovers only"


def test_what_comes_twice_is_counted_and_forgiven() -> None:
    run = Told()
    run.logs["batched"][PARTITION.format(0)].append((("batched-0", 1), "9:0:-1"))
    run.reports[0]["log"].append("batched-0 1 9:0:-1 0")
    run.reports[1]["log"].append("batched-0 0 7:0:-1 3")
    status, _, outcome = run.judged()
    assert status == 0
    assert outcome.logs["batched"].duplicates == 1
    assert outcome.subscriptions["two of chaos-batched"].duplicates == 1


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"rate": 29.0}, "publish rate over the fault-free one"),
        ({"rate": 0.0, "reference_rate": 0.0}, "publish rate over the fault-free one"),
        ({"stalls_after_last_fault_s": {"a": 1.0, "b": 10.1}}, "longest stall after a round's last fault"),
        *[({"events": {**ENOUGH, name: 4}}, name) for name in ("failovers", "recoveries", "writes refused by a fence")],
        ({"events": {**ENOUGH, "ensemble changes": 14}}, "ensemble changes or too few bookies"),
        ({"events": {}}, "failovers"),
    ],
)
def test_a_slow_run_and_one_with_too_few_faults_do_not_count(changes: dict[str, Any], complaint: str) -> None:
    status, printed, _ = Told().judged(**copy.deepcopy(changes))
    assert status == 2 and complaint in printed


def test_a_run_that_is_slow_and_unsafe_is_unsafe() -> None:
    run = Told()
    _skip_a_delivery(run)
    assert run.judged(rate=1.0)[0] == 1


def test_events_are_counted_from_the_logs_of_all_processes_that_there_were(tmp_path: Path) -> None:
    (tmp_path / "worker-1.err").write_text(
        """x session_methods: broker-1 registered (incarnation aa, 127.0.0.1:1)
x session_methods: broker-1 (incarnation aa) lost its session: it sent no heartbeat for 3.0 s
x session_methods: broker-1 registered (incarnation bb, 127.0.0.1:1)
x rebalancing: rebalancing: 3 topics move
x ledger 7 is recovered: its last entry is 3
x ledger 8: 4 writes were refused by the fence
Traceback (most recent call last):
"""
    )
    (tmp_path / "worker-2.err").write_text(
        """x session_methods: broker-1 registered (incarnation bb, 127.0.0.1:1)
x session_methods: broker-2 registered (incarnation cc, 127.0.0.1:1)
x ledger 9: ensemble change at entry 4: b1 for b2
x ledger 9 has fewer bookies from entry 5 on
x ledger 9: 2 writes were refused by the fence
"""
    )
    (tmp_path / "driver.log").write_text("ledger 1 is recovered: its last entry is 3")
    counts = count_events([tmp_path])
    assert counts["failovers"] == 1 and counts["sessions of brokers lost"] == 1
    assert counts["recoveries"] == 1 and counts["ensemble changes"] == 1 and counts["writes with too few bookies"] == 1
    assert counts["writes refused by a fence"] == 6 and counts["writers fenced"] == 2
    assert counts["topics moved"] == 3 and counts["tracebacks in logs"] == 1


def test_a_topic_begins_again_once_for_each_ended_broker_and_round_of_moves(tmp_path: Path) -> None:
    log = tmp_path / "worker-1.err"
    log.write_text(
        """x session_methods: broker-1 registered (incarnation aa, 127.0.0.1:1)
x session_methods: broker-2 registered (incarnation cc, 127.0.0.1:2)
x rebalancing: rebalancing: 3 topics move, in 2 slots
x balancer: balancing the load {'broker-1': 3.0}: 2 topics move
"""
    )
    assert incarnations(count_events([tmp_path])) == 2, "five topics moved, each once a round"
    with log.open("a") as lines:
        lines.write("x session_methods: broker-1 (incarnation aa) lost its session: its connection closed\n")
    assert incarnations(count_events([tmp_path])) == 3
    with log.open("a") as lines:
        lines.write("x session_methods: broker-1 registered (incarnation bb, 127.0.0.1:1)\n")
    assert incarnations(count_events([tmp_path])) == 3, "the loss of a session and the replacement are one"
    with log.open("a") as lines:
        lines.write("x session_methods: broker-2 registered (incarnation dd, 127.0.0.1:2)\n")
    assert incarnations(count_events([tmp_path])) == 4, "a broker may come back before its session is lost"


def test_a_publisher_remembers_gaps_between_its_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("chaos.publishing.time.monotonic", lambda: now)

    class Id:
        def __init__(self, partition: int) -> None:
            self._partition = partition

        def partition(self) -> int:
            return self._partition

        def ledger_id(self) -> int:
            return 7

        def entry_id(self) -> int:
            return 3

        def batch_index(self) -> int:
            return 1

    history = History("x")
    key = history.keys[0]
    assert history.next(key, 0).startswith(b"x-0:0:.")
    history.acknowledge(key, 0, Id(0))
    now += GAP_MIN_S / 2
    history.acknowledge(key, 1, Id(0))
    now += 5.0
    history.acknowledge(key, 2, Id(1))
    history.acknowledge(key, 3, Id(0))
    history.fail(key, 4, "Timeout")
    report = history.report()
    assert report["gaps"] == [(100.0 + GAP_MIN_S / 2, 105.0 + GAP_MIN_S / 2)]
    assert report["acknowledged"][key] == [(n, "7:3:1") for n in range(4)]
    assert report["failed"] == [(key, 4, "Timeout")] and report["sent"] == {key: 1}
    assert sum(report["per_second"].values()) == 4
