"""Breadth-first search to the end, or to a shortest way to a violation."""

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from .nodes import Violation, thaw_metadata
from .report import Options, Report
from .system import BOOKIE, RECORD_BITS, State, System
from .transcript import describe, describe_state

Way = tuple[Any, State]
"""(labels of what happened, state)."""


class Search(System):
    """A system with a choice of steps; `successors` says which."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.report = Report(options)

    @abstractmethod
    def successors(self, state: State) -> Iterator[Way]:
        """(labels, state) for each step. Raises Violation."""

    def starts(self) -> list[Way]:
        """(labels, state) of each beginning."""
        return [((), self.initial())]

    def canonical(self, state: State) -> State:
        """The representative of all states that are alike."""
        return state

    def run(self) -> Report:
        """Explore breadth first, to the end or to the first violation."""
        report = self.report
        began = time.process_time()
        parents: dict[State, State | None] = {}
        level: list[State] = []
        for _, first in self.starts():
            image = self.canonical(first)
            if image not in parents:
                parents[image] = None
                level.append(image)
        while level and not report.violation and len(parents) < self.options.states_max:
            following: list[State] = []
            for state in level:
                try:
                    for _, successor in self.successors(state):
                        report.transitions += 1
                        image = self.canonical(successor)
                        if image in parents:
                            continue
                        parents[image] = state
                        following.append(image)
                        report.violation = self.check(image)
                        if report.violation:
                            report.transcript = self._transcript(parents, image)
                            break
                except Violation as violation:
                    report.violation = str(violation.args[0])
                    report.transcript = self._transcript(parents, state, raising=True)
                if report.violation:
                    break
            level = following
            report.depth += bool(level)
        report.states, report.complete = len(parents), not level and not report.violation
        report.seconds = time.process_time() - began
        report.outcomes = {self.outcome(state) for state in parents}
        return report

    def _transcript(self, parents: dict[State, State | None], last: State, raising: bool = False) -> list[str]:
        """The way to a state, told with one fixed name for each bookie, and the step from it that raises."""
        path: list[State] = []
        at: State | None = last
        while at is not None:
            path.append(at)
            at = parents[at]
        path.reverse()
        lines: list[str] = []
        ways = self.starts()
        state = self.initial()
        for wanted in path:
            for labels, successor in ways:
                if self.canonical(successor) == wanted:
                    lines.extend(describe(label) for label in labels)
                    state = successor
                    break
            else:
                raise AssertionError("a step of the counter-example cannot be repeated")
            record = thaw_metadata((self.values[state[3]], tuple(self.values[c][RECORD_BITS] for c in state[4:])))
            bookies = [self.values[column][BOOKIE] for column in state[4:]]
            if lines:
                lines[-1] += describe_state(record, bookies, self.values[state[0]][0][1])
            ways = self._ways(state)
        if raising:
            try:
                for _ in self.successors(state):
                    continue
            except Violation as violation:
                lines.extend(describe(label) for label in violation.args[1])
        return lines

    def _ways(self, state: State) -> list[Way]:
        """The successors up to one that raises."""
        found: list[Way] = []
        try:
            found.extend(self.successors(state))
        except Violation:
            return found
        return found
