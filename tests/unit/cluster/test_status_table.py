"""What the operator reads."""

import io
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from magnetar.actors.auditor.service import AuditProgress
from magnetar.cluster.status_table import print_status


def member(node: str, role: str, **more: Any) -> dict[str, Any]:
    return {
        "id": node, "role": role, "incarnation": "0123456789abcdef", "host": "127.0.0.1", "port": 7000, "data": {},
        "report": {}, "silent_s": 0.1, "topics": 0, **more,
    }  # fmt: skip


def process(node: str, role: str, **more: Any) -> dict[str, Any]:
    return {"node_id": node, "role": role, "state": "running", "restarts": 0, "problem": "", **more}


def shown(**changes: Any) -> str:
    status = {
        "cluster_id": "c0ffee",
        "coordinator": {"epoch": 3, "host": "127.0.0.1", "port": 7001, "in_grace": False, "disk": {}},
        "members": [member("bookie-1", "bookie"), member("broker-1", "broker", topics=12)],
        "registered_bookies": ["bookie-1"],
        "topics": 4,
        "assignments": 12,
        "auditor": {},
        **changes,
    }
    console = Console(file=io.StringIO(), width=160)
    print_status(console, status)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, start: str) -> str:
    return next(found for found in text.splitlines() if start in found)


def test_every_process_has_a_line() -> None:
    text = shown(processes=[process("bookie-1", "bookie", restarts=2), process("admin", "admin")])
    assert "c0ffee" in text
    assert "running" in line(text, "admin")
    assert "127.0.0.1:7000" in line(text, "bookie-1")
    assert line(text, "bookie-1").rstrip().endswith("2")
    assert "12" in line(text, "broker-1")
    assert "3" in line(text, "coordinator")


def test_a_broker_shows_the_load_that_it_reported() -> None:
    text = shown(members=[member("broker-1", "broker", load=12345.6), member("broker-2", "broker")])
    assert "12,346/s" in line(text, "broker-1")
    assert "/s" not in line(text, "broker-2")


def test_what_does_not_run_says_why() -> None:
    text = shown(processes=[process("broker-1", "broker", state="waiting", problem="OSError: port taken")])
    assert "waiting" in line(text, "broker-1")
    assert "broker-1: OSError: port taken" in line(text, "problem")


def test_registered_bookies_that_are_away_are_named() -> None:
    assert "bookie-2" in line(shown(registered_bookies=["bookie-1", "bookie-2"]), "missing")


def auditor(**changes: Any) -> dict[str, Any]:
    figures = {"ledgers": 15, "incomplete": 0, "to_check": 0, "bytes_to_go": 0, "lost_bookies": [], "limbo": []}
    return {**asdict(AuditProgress(rounds=1, whole=True)), **figures, **changes}


def test_the_progress_of_repair_is_shown() -> None:
    text = shown(
        auditor=auditor(
            whole=False, running=True, round_ledgers=7, incomplete=3, bytes_to_go=2_500_000_000, to_check=900,
            copied_entries_total=1200, copied_bytes_total=34_500_000, lost_bookies=["bookie-2"], limbo=["bookie-3"],
            last_failure="[away]",
        )
    )  # fmt: skip
    assert "3 of 15 ledgers lack copies of 2.5 GB, 900 are still to be checked" in line(text, "copies")
    assert "1,200 entries, 34.5 MB" in line(text, "copies")
    assert "now at ledger 7" in line(text, "copies")
    assert "[away]" in line(text, "last failure")
    assert "bookie-2" in line(text, "lost ")
    assert "bookie-3" in line(text, "limbo ")


def test_before_the_first_round_nothing_is_claimed_about_copies() -> None:
    assert "being checked" in line(shown(auditor=auditor(rounds=0, whole=False, round_ledgers=2)), "copies")


def test_when_nothing_is_amiss_nothing_is_said_about_copies() -> None:
    assert "copies" not in shown(auditor=auditor())


def test_copies_on_one_machine_are_shown_where_there_are_several_machines() -> None:
    bookies = [member("bookie-1", "bookie"), {**member("bookie-2", "bookie"), "host": "10.0.0.2"}]
    assert "7 ledgers" in line(shown(auditor=auditor(crowded=7), members=bookies), "crowded")
    assert "crowded" not in shown(auditor=auditor(crowded=7), members=bookies[:1])
    assert "crowded" not in shown(auditor=auditor(crowded=0), members=bookies)


def test_disks_and_read_only_bookies() -> None:
    disk = {"used": 30_000_000_000, "free": 70_000_000_000, "total": 100_000_000_000}
    report = {"disk": disk, "writable": False}
    text = line(shown(members=[member("bookie-1", "bookie", report=report)]), "bookie-1")
    assert "read-only" in text
    assert "30%" in text


def test_damaged_entries_and_the_progress_of_scrubs_are_shown() -> None:
    scrub = {"damaged": 0, "found": 4, "repaired": 4, "passes": 2, "pass_share": 0.25, "scrubbed_bytes": 5_000_000}
    hurt = {**scrub, "damaged": 1234, "pass_share": 0.5}
    members = [member(f"bookie-{n}", "bookie", report={"scrub": one}) for n, one in ((1, scrub), (2, hurt))]
    text = shown(members=members)
    assert "bookie-2: 1,234 entries" in line(text, "damaged")
    assert "pass 3 at 25%; 10.0 MB read again, 8 damaged entries repaired" in line(text, "scrub")


def test_bookies_are_in_the_order_of_their_numbers() -> None:
    text = shown(members=[member(f"bookie-{number}", "bookie") for number in (10, 2, 1)])
    assert text.index("bookie-1 ") < text.index("bookie-2 ") < text.index("bookie-10 ")


def test_metadata_older_than_its_ledgers_says_what_is_kept_and_what_to_do() -> None:
    keeping = member("bookie-2", "bookie", report={"unknown_ledgers": 3})
    text = shown(members=[member("bookie-1", "bookie"), keeping], restored_ledgers=[[101, 1049000]])
    assert "101 to 1048999" in line(text, "restored")
    assert "bookie-2 3" in line(text, "kept without a record") and "bookie-1" not in line(text, "kept without a record")
    assert "magnetar accept-lost-ledgers" in text
    assert "restored" not in shown()


def test_a_bookie_whose_disk_is_full_is_read_only_and_says_why() -> None:
    report = {"writable": False, "limbo": "", "disk": {"used": 95, "free": 5, "full": True}}
    text = shown(members=[member("bookie-1", "bookie", report=report)])
    assert "read-only: disk full" in line(text, "bookie-1 ")
    assert "bookie-1" in line(text, "disk full  ")


def test_a_bookie_in_limbo_is_read_only_and_says_why() -> None:
    report = {"writable": False, "limbo": "an empty disk", "disk": {"used": 5, "free": 95, "full": False}}
    text = shown(members=[member("bookie-1", "bookie", report=report)])
    assert "read-only: limbo" in line(text, "bookie-1 ")
    assert "disk full" not in text


@pytest.mark.promise("30.12")
def test_the_version_is_shown_and_while_there_are_several_who_runs_which() -> None:
    coordinator = {"epoch": 3, "host": "h", "port": 1, "in_grace": False, "disk": {}, "version": "1.0"}
    old, new = {"version": "1.0"}, {"version": "1.1"}
    members = [member("bookie-1", "bookie", data=old), member("bookie-2", "bookie", data=old)]
    assert line(shown(coordinator=coordinator, members=members), "version").split() == ["version", "1.0"]
    members = [*members, member("bookie-10", "bookie", data=new), member("broker-1", "broker")]
    text = line(shown(coordinator=coordinator, members=members), "versions")
    assert "1.0: bookie-1, bookie-2, coordinator; 1.1: bookie-10; older: broker-1; `magnetar restart`" in text


def test_a_node_that_is_left_out_has_a_line_that_says_why() -> None:
    node = {"ray_node_id": "b", "address": "10.0.0.2", "problem": "the cookie [x] cannot be read"}
    assert "left out   Ray node 10.0.0.2: the cookie [x] cannot be read" in shown(left_out=[node])
    assert "left out" not in shown(left_out=[])
