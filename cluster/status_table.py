"""`magnetar status` and `magnetar settings` as tables."""

from collections.abc import Collection, Sequence

from rich import filesize
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..protocol.cluster_status import (
    AuditorStatus,
    ClusterStatus,
    CoordinatorStatus,
    DiskReport,
    MemberStatus,
    ProcessStatus,
)
from ..protocol.names import COORDINATOR_ID, ROLE_ADMIN, ROLE_BOOKIE, ROLE_COORDINATOR


def print_status(console: Console, status: ClusterStatus) -> None:
    """The cluster: one line a process, then what it holds. `status` is what `Cluster.status` returns."""
    coordinator = status["coordinator"]
    table = Table(title=f"cluster {status['cluster_id']}", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("actor", "state", "address", "epoch", "topics", "load", "disk", "restarts"):
        number = column in ("topics", "load", "restarts")
        table.add_column(column, justify="right" if number else "left", no_wrap=column != "state")
    table.add_row(
        COORDINATOR_ID,
        "grace" if coordinator["in_grace"] else "running",
        _address(coordinator),
        str(coordinator["epoch"]),
        "",
        "",
        _disk(coordinator["disk"]),
        "",
    )
    members = {member["id"]: member for member in status["members"]}
    processes = {process["node_id"]: process for process in status.get("processes", ())}
    for node in sorted({*members, *processes}, key=_order):
        member = members.get(node)
        process = processes.get(node)
        table.add_row(
            node,
            _state(member, process),
            _address(member) if member else "",
            member["incarnation"][:8] if member else "",
            str(member["topics"]) if member and member["role"] == "broker" else "",
            f"{member['load']:,.0f}/s" if member and "load" in member else "",
            _disk(member["report"].get("disk", {})) if member else "",
            str(process["restarts"]) if process else "",
        )
    console.print(table)
    for line in _lines(status):
        console.print(line, highlight=False, soft_wrap=True)


def _lines(status: ClusterStatus) -> list[str]:
    lines = [f"topics     {status['topics']}, of which {status['assignments']} partitions are assigned"]
    lines += _versions(status)
    machines = {member["host"] for member in status["members"] if member["role"] == ROLE_BOOKIE}
    lines += _copies(status.get("auditor"), machines)
    lines += _damage(status["members"])
    lines += _restored(status)
    missing = sorted(set(status["registered_bookies"]) - {member["id"] for member in status["members"]})
    if missing:
        lines.append(f"[yellow]missing    {', '.join(missing)}[/yellow]")
    full = [member["id"] for member in status["members"] if member["report"].get("disk", {}).get("full")]
    if full:
        lines.append(
            f"[yellow]disk full  {', '.join(sorted(full))}: read-only until below diskUsageWarnThreshold[/yellow]"
        )
    for process in status.get("processes", ()):
        if process["state"] != "running" and process["problem"]:
            lines.append(f"[yellow]problem    {process['node_id']}: {escape(process['problem'])}[/yellow]")
    for bookie, reason in status.get("desired", {}).get("left_over", {}).items():
        lines.append(f"[yellow]left over  {bookie} has ended, but {escape(reason)}[/yellow]")
    for node in status.get("left_out", ()):
        lines.append(f"[yellow]left out   Ray node {node['address']}: {escape(node['problem'])}[/yellow]")
    places = ("service", "service_url"), ("admin", "admin_url"), ("data", "data_directory"), ("logs", "log_directory")
    for label, key in places:
        if status.get(key):
            lines.append(f"{label:<10} {status[key]}")
    if "ray" in status:
        lines.append(f"ray        {status['ray']['address']} ({status['ray']['kind']})")
    return lines


def _versions(status: ClusterStatus) -> list[str]:
    """The release that runs; while there are several, which process runs which."""
    found: dict[str, list[str]] = {}
    for member in status["members"]:
        found.setdefault(member["data"].get("version", "older"), []).append(member["id"])
    found.setdefault(status["coordinator"].get("version", "older"), []).append(COORDINATOR_ID)
    if len(found) == 1:
        return [f"version    {', '.join(found)}"]
    running = "; ".join(f"{version}: {', '.join(sorted(found[version], key=_order))}" for version in sorted(found))
    return [f"[yellow]versions   {running}; `magnetar restart` gives all the installed one[/yellow]"]


def _restored(status: ClusterStatus) -> list[str]:
    """What the metadata does not know because it was restored from an older state, and what can be done."""
    counts = {member["id"]: member["report"].get("unknown_ledgers", 0) for member in status["members"]}
    unknown = {bookie: count for bookie, count in counts.items() if count}
    ranges = status.get("restored_ledgers", [])
    if not unknown and not ranges:
        return []
    ids = ", ".join(f"{first} to {end - 1}" for first, end in ranges) or "not yet known"
    held = ", ".join(f"{bookie} {count}" for bookie, count in unknown.items()) or "none so far"
    return [
        f"[yellow]restored   the metadata is older than the ledgers on the bookies; ids in doubt: {ids}[/yellow]",
        f"[yellow]           ledgers kept without a record: {held}[/yellow]",
        "[yellow]           restore a newer backup, or give them up: `magnetar accept-lost-ledgers`[/yellow]",
    ]


def _copies(auditor: AuditorStatus | None, machines: Collection[str]) -> list[str]:
    """Whether every entry lies on as many bookies as it should, and how far its repair has come.

    Where all bookies are on one machine, nothing is said of copies that are on one machine.
    """
    if not auditor:
        return []
    if not auditor["rounds"]:
        return [f"copies     being checked ({auditor['round_ledgers']} ledgers so far)"]
    lines: list[str] = []
    copied = f"{auditor['copied_entries_total']:,} entries, {filesize.decimal(auditor['copied_bytes_total'])}"
    done = f"copied since the coordinator started: {copied}"
    if auditor["running"]:
        done += f"; now at ledger {auditor['round_ledgers']}"
    if auditor["incomplete"]:
        to_go = filesize.decimal(auditor["bytes_to_go"])
        lacking = f"{auditor['incomplete']} of {auditor['ledgers']} ledgers lack copies of {to_go}"
        if auditor["to_check"]:
            lacking += f", {auditor['to_check']:,} are still to be checked"
        lines.append(f"[yellow]copies     {lacking} ({done})[/yellow]")
        if auditor["last_failure"]:
            lines.append(f"[yellow]           last failure: {escape(auditor['last_failure'])}[/yellow]")
    elif not auditor["whole"]:
        lines.append(f"copies     being checked again, because the list of bookies changed ({done})")
    elif auditor["copied_entries_total"]:
        lines.append(f"copies     complete ({done})")
    if auditor.get("crowded") and len(machines) > 1:
        lines.append(
            f"[yellow]crowded    {auditor['crowded']} ledgers have two copies on one machine: they move when there is "
            "a bookie on another one[/yellow]"
        )
    if auditor["lost_bookies"]:
        lines.append(
            f"[yellow]lost       {', '.join(auditor['lost_bookies'])}: the auditor copies their ledgers to other "
            "bookies[/yellow]"
        )
    if auditor["limbo"]:
        lines.append(
            f"[yellow]limbo      {', '.join(auditor['limbo'])}: may have lost data; the auditor copies it back[/yellow]"
        )
    return lines


def _damage(members: Sequence[MemberStatus]) -> list[str]:
    """Damaged entries of each bookie, and what the scrubs have done."""
    reports = {member["id"]: member["report"].get("scrub") for member in members}
    scrubs = {bookie: scrub for bookie, scrub in sorted(reports.items()) if scrub}
    lines = [
        f"[yellow]damaged    {bookie}: {damaged:,} entries; the auditor copies them from other bookies[/yellow]"
        for bookie, scrub in scrubs.items()
        if (damaged := scrub.get("damaged", 0))
    ]
    repaired = sum(scrub.get("repaired", 0) for scrub in scrubs.values())
    read = sum(scrub.get("scrubbed_bytes", 0) for scrub in scrubs.values())
    if read or repaired:
        share = min(scrub.get("pass_share", 1.0) for scrub in scrubs.values())
        passes = min(scrub.get("passes", 0) for scrub in scrubs.values())
        now = f"pass {passes + 1} at {share:.0%}" if share < 1 else f"{passes} passes"
        lines.append(f"scrub      {now}; {filesize.decimal(read)} read again, {repaired:,} damaged entries repaired")
    return lines


def _state(member: MemberStatus | None, process: ProcessStatus | None) -> str:
    if process and process["state"] != "running":
        return f"[yellow]{process['state']}[/yellow]"
    if member is None:
        # The admin has no session: it asks, and nothing depends on it.
        sessionless = process is not None and process["role"] in (ROLE_ADMIN, ROLE_COORDINATOR)
        return "running" if sessionless else "[yellow]no session[/yellow]"
    report = member["report"]
    if report.get("writable") is False:
        why = "limbo" if report.get("limbo") else "disk full" if report.get("disk", {}).get("full") else ""
        return f"[yellow]read-only{f': {why}' if why else ''}[/yellow]"
    return "running"


def _address(member: MemberStatus | CoordinatorStatus) -> str:
    return f"{member['host']}:{member['port']}" if member["port"] else ""


def _disk(usage: DiskReport) -> str:
    used, free = usage.get("used", 0), usage.get("free", 0)
    if not used + free:
        return ""
    return f"{used / (used + free):.0%}"


def _order(node: str) -> tuple[str, int, str]:
    role, _, number = node.rpartition("-")
    return (role or node, int(number) if number.isdigit() else 0, node)
