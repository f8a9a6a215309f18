"""Compares a transcript of Magnetar with the recording of Pulsar, line by line within each step.

A line that only one of them has must be explained by a listed difference. A difference is explained once for each
line. What is left unexplained is returned as text.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .transcript import Step, Transcript

TEXT = "# text: "
OWN_WORDS = 6
CLIENTS_LOOK_FOR = re.compile(r"the broker do not have .+ listener")
"""Pulsar's sentences that clients decide by: C++ and those on top of it. Brokers have to say them, too."""


class Difference(NamedTuple):
    """One deliberate difference.

    Both texts are regular expressions of a whole line: `pulsar` one that only Pulsar says, `magnetar` what Magnetar
    says in its place. None means that one of them says nothing. `scenarios` and `steps` are regular expressions, too.
    """

    reason: str
    pulsar: str | None
    magnetar: str | None
    scenarios: str = ".*"
    steps: str = ".*"

    def covers(self, scenario: str, step: str) -> bool:
        """Whether it holds at this step of this scenario."""
        return bool(re.fullmatch(self.scenarios, scenario) and re.fullmatch(self.steps, step))


@dataclass
class Comparison:
    """What came out: what nobody explained, and which differences were met."""

    unexplained: list[str] = field(default_factory=list)
    used: set[Difference] = field(default_factory=set)


def compare(scenario: str, pulsar: Transcript, magnetar: Transcript, listed: Iterable[Difference]) -> Comparison:
    """Compare two runs of a scenario."""
    result = Comparison()
    labels = [step.label for step in pulsar.steps], [step.label for step in magnetar.steps]
    if labels[0] != labels[1]:
        result.unexplained += [*difflib.unified_diff(*labels, "steps on Pulsar", "steps on Magnetar", lineterm="", n=1)]
        return result
    for theirs, ours in zip(pulsar.steps, magnetar.steps, strict=True):
        here = [one for one in listed if one.covers(scenario, theirs.label)]
        _compare_step(theirs, ours, here, result)
    return result


def compare_texts(pulsar: Transcript, magnetar: Transcript) -> list[str]:
    """What is wrong with the texts of our errors: none where Pulsar has one, or Pulsar's own sentence.

    Exceptions of the official client are left out: their texts are the client's. Short sentences may be alike. Those
    that clients look for have to be.
    """
    wrong: list[str] = []
    for theirs, ours in zip(pulsar.steps, magnetar.steps, strict=True):
        if any(line.startswith("error ") for line in ours.lines):
            continue
        texts, said = _texts(ours), _texts(theirs)
        refused = any(re.search(r"error(_code)?=|^status [45]", line) for line in ours.compared)
        if refused and said and not texts:
            wrong.append(f"== {ours.label}: no text, where Pulsar says: {said[0]}")
        wrong += [
            f"== {ours.label}: Pulsar's own sentence: {text}"
            for text in texts
            if text in said and text.count(" ") >= OWN_WORDS and not CLIENTS_LOOK_FOR.fullmatch(text)
        ]
    return wrong


def _texts(step: Step) -> list[str]:
    """The texts of errors, without the names of Java's exceptions."""
    lines = [line.partition(TEXT)[2] for line in step.lines if line.startswith(TEXT)]
    return [re.sub(r"^[\w.$]+Exception: ", "", line) for line in lines]


def _compare_step(theirs: Step, ours: Step, listed: list[Difference], result: Comparison) -> None:
    removed: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, theirs.compared, ours.compared, autojunk=False)
    for kind, first, last, our_first, our_last in matcher.get_opcodes():
        if kind != "equal":
            removed += theirs.compared[first:last]
            added += ours.compared[our_first:our_last]
    for difference in listed:
        if difference.pulsar is None:
            for line in [line for line in added if re.fullmatch(difference.magnetar or "", line)]:
                added.remove(line)
                result.used.add(difference)
            continue
        for line in [line for line in removed if re.fullmatch(difference.pulsar, line)]:
            if difference.magnetar is not None:
                answer = next((own for own in added if re.fullmatch(difference.magnetar, own)), None)
                if answer is None:
                    continue
                added.remove(answer)
            removed.remove(line)
            result.used.add(difference)
    if removed or added:
        texts = [line for line in ours.lines if line.startswith("#")]
        result.unexplained += [
            f"== {theirs.label}",
            *(f"- {line}" for line in removed),
            *(f"+ {line}" for line in added),
        ]
        result.unexplained += texts
