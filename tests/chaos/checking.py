"""What publishers were told and what consumers were given, against the logs as they are read at the end. Pure: fills an
`Outcome`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from support.checks.chaos_checks import Delivery, Message, compare, find_misplaced, find_rewinds, stall_after

from .judging import Outcome

SHARED_KINDS = ("shared", "batch")

Log = Sequence[tuple[Message, str]]
"""Messages with their places, in the order of the log."""


class Checking:
    """histories: what each publisher reports, by name; its topic is `chaos-NAME`. logs: by publisher and partition (in
    full), from the first entry to the last.
    """

    def __init__(self, outcome: Outcome, histories: Mapping[str, Any], logs: Mapping[str, Mapping[str, Log]]) -> None:
        self.entries: dict[str, int] = {}
        """Entries of each partition's log."""
        self._outcome = outcome
        self._histories = histories
        self._places: dict[str, dict[Message, set[str]]] = {}
        """Where each message lies, by partition."""
        for name, history in histories.items():
            self._check_log(name, history, logs[name])

    def _check_log(self, name: str, history: Any, logs: Mapping[str, Log]) -> None:
        for partition, log in logs.items():
            places = self._places[partition.rpartition("/")[2]] = {}
            for message, place in log:
                places.setdefault(message, set()).add(place)
            self.entries[partition] = len({place.rpartition(":")[0] for _, place in log})
        told = [
            ((key, sequence), place)
            for key, receipts in history["acknowledged"].items()
            for sequence, place in receipts
        ]
        acknowledged, sent, places = self._expected([f"chaos-{name}"])
        acknowledged |= _sequences(history)  # of keys that no log has, too
        found = compare(acknowledged, sent, [[message for message, _ in log] for log in logs.values()])
        found.misplaced.extend(
            (message, place) for message, place in find_misplaced(told, places) if message in places
        )  # what is in no log at all is lost
        self._outcome.logs[name] = found

    def take_deliveries(self, reports: Sequence[Any]) -> None:
        """What one process's consumers were given; those of one Shared subscription together."""
        outcome = self._outcome
        together: dict[tuple[str, str], list[list[Delivery]]] = {}
        for report in reports:
            deliveries = [_delivery(line) for line in report["log"]]
            name = f"{report['name']} of {'+'.join(report['topics'])}"
            if report["errors"]:
                outcome.problems.append(f"{name}: {len(report['errors'])} errors: {report['errors'][0]}")
            for last, following in outcome.lasts:
                stall = stall_after([(begin, end) for begin, end in report["gaps"]], last, following)
                outcome.delivery_stall_after_last_fault_s = max(outcome.delivery_stall_after_last_fault_s, stall)
            group = together.setdefault((name, report["kind"]), [])
            group.append(deliveries)
            if report["kind"] in SHARED_KINDS:
                consumer = f"{name}, consumer {len(group)}"
                outcome.early_rewinds[consumer] = find_rewinds(deliveries[: report["mark"]])
                outcome.rewinds[consumer] = find_rewinds(deliveries)
        for (name, kind), group in together.items():
            acknowledged, sent, places = self._expected(name.partition(" of ")[2].split("+"))
            messages = [[delivery.message for delivery in one] for one in group]
            found = compare(acknowledged, sent, messages, ordered=kind not in SHARED_KINDS)
            told = ((delivery.message, delivery.place) for one in group for delivery in one)
            found.misplaced.extend(find_misplaced(told, places))
            outcome.subscriptions[name] = found

    def _expected(self, topics: Sequence[str]) -> tuple[dict[str, list[int]], dict[str, int], dict[Message, set[str]]]:
        """Of these topics or partitions: what was acknowledged and what sent, by key, and where each message lies."""
        acknowledged: dict[str, list[int]] = {}
        sent: dict[str, int] = {}
        places: dict[Message, set[str]] = {}
        for topic in topics:
            history = self._histories[topic.removeprefix("chaos-").split("-partition-")[0]]
            for partition, messages in self._places.items():
                if partition == topic or partition.startswith(f"{topic}-partition-"):
                    places |= messages
            keys = {key for key, _ in places}
            acknowledged |= {key: told for key, told in _sequences(history).items() if key in keys}
            sent |= history["sent"]
        return acknowledged, sent, places


def _sequences(history: Any) -> dict[str, list[int]]:
    """What was acknowledged, by key."""
    return {key: [sequence for sequence, _ in receipts] for key, receipts in history["acknowledged"].items()}


def _delivery(line: str) -> Delivery:
    key, sequence, place, redeliveries = line.split(" ")
    return Delivery(key, int(sequence), place, int(redeliveries))
