"""Records scenarios on a real Pulsar: `python tests/parity/record.py [NAME…]`, all of them without a name.

Scenarios that run `pulsar-admin` are then played on Magnetar as well, with the tool: it must print the same.

`--on magnetar` shows what Magnetar says instead and records nothing. `--broker` and `--admin` name a Pulsar that runs
already, with the settings of the group `--group`; scenarios of other groups are left out then.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from parity.comparing import compare
from parity.differences import DIFFERENCES, PRINTED
from parity.playing import play
from parity.registry import RECORDINGS, Group, Scenario, all_scenarios
from parity.servers import PULSAR_VERSION, OracleError, magnetar_server, pulsar_server
from parity.stage import Server
from parity.tool.commands import printed_only
from parity.tool.live import Live
from parity.transcript import Transcript


def head_of(scenario: Scenario) -> str:
    """What stands at the head of a recording."""
    return f"Recorded from Apache Pulsar {PULSAR_VERSION}, settings: {scenario.group.name}."


@contextlib.contextmanager
def server_of(group: Group, options: argparse.Namespace) -> Iterator[Server]:
    """The server that was asked for, with the settings of a group."""
    if options.broker:
        yield Server(options.broker, options.admin)
        return
    with tempfile.TemporaryDirectory(prefix="parity-", ignore_cleanup_errors=True) as directory:
        make = pulsar_server if options.on == "pulsar" else magnetar_server
        with make(Path(directory), group.settings) as server:
            yield server


@contextlib.contextmanager
def commands_of(server: Server) -> Iterator[Live]:
    """Runs `pulsar-admin` on a server."""
    with tempfile.TemporaryDirectory(prefix="pulsar-admin-") as directory, Live(server, Path(directory)) as commands:
        yield commands


def run(chosen: list[Scenario], options: argparse.Namespace) -> int:
    """Play the scenarios, one server for each group. Returns how many broke off, or made the tool print otherwise."""
    failed = 0
    for group, members in groupby(chosen, key=lambda one: one.group):
        again: list[Scenario] = []
        with server_of(group, options) as server, commands_of(server) as commands:
            for scenario in members:
                transcript = played(scenario, server, commands)
                if transcript is None:
                    failed += 1
                    continue
                if options.on == "magnetar" or options.show:
                    print(f"{scenario.name}\n{transcript}", flush=True)
                if options.on == "pulsar":
                    scenario.recording.parent.mkdir(exist_ok=True)
                    scenario.recording.write_text(str(transcript))
                    print(f"recorded {scenario.recording.relative_to(RECORDINGS)}", flush=True)
                if any(step.lines for step in printed_only(transcript).steps):
                    again.append(scenario)
        failed += check_tool(again, group)
    return failed


def played(scenario: Scenario, server: Server, commands: Live) -> Transcript | None:
    """What was said; None if the scenario broke off."""
    try:
        return play(scenario, server, head_of(scenario), commands)
    except AssertionError as error:
        print(f"{error}\n{error.__cause__!r}", flush=True)
        return None


def check_tool(scenarios: list[Scenario], group: Group) -> int:
    """Play scenarios on Magnetar with the tool. Returns for how many it sends or prints something else."""
    failed = 0
    if not scenarios:
        return 0
    with tempfile.TemporaryDirectory(prefix="parity-", ignore_cleanup_errors=True) as directory:
        with magnetar_server(Path(directory), group.settings) as server, commands_of(server) as commands:
            for scenario in scenarios:
                said = played(scenario, server, commands)
                if said is None:
                    failed += 1
                    continue
                recorded = Transcript.parse(scenario.recording.read_text())
                wrong = compare(scenario.name, recorded, said, DIFFERENCES).unexplained
                wrong += compare(
                    scenario.name, printed_only(recorded), printed_only(said), (*DIFFERENCES, *PRINTED)
                ).unexplained
                failed += bool(wrong)
                verdict = "differs" if wrong else "is the same"
                print("\n".join([f"{scenario.name}: pulsar-admin on Magnetar {verdict}", *wrong]), flush=True)
    return failed


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Record scenarios on a real Pulsar.")
    parser.add_argument("names", nargs="*", help="scenarios or subjects; all without a name")
    parser.add_argument("--on", choices=["pulsar", "magnetar"], default="pulsar")
    parser.add_argument("--broker", help="service URL of a server that runs already")
    parser.add_argument("--admin", help="its admin URL")
    parser.add_argument("--group", default="plain", help="which settings that server has")
    parser.add_argument("--show", action="store_true", help="print the recordings")
    options = parser.parse_args()
    scenarios = all_scenarios()
    known = {one.name for one in scenarios} | {one.subject for one in scenarios}
    if unknown := sorted(set(options.names) - known):
        parser.error(f"there is no scenario or subject {', '.join(unknown)}")
    if bool(options.broker) != bool(options.admin):
        parser.error("give both --broker and --admin")
    names = set(options.names) or known
    chosen = [one for one in scenarios if {one.name, one.subject} & names]
    if options.broker:
        chosen = [one for one in chosen if one.group.name == options.group]
    try:
        return 1 if run(chosen, options) else 0
    except OracleError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
