"""Plays scenarios on a server, and several at a time on a Magnetar of their own.

Scenarios mostly wait: that nothing comes, or that something is late. So those of a group are played several at a time.
Each has a namespace of its own.
"""

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .registry import Group, Scenario
from .servers import magnetar_server
from .stage import Server, Stage
from .tool.commands import Commands, Replayed
from .transcript import Transcript

AT_A_TIME = 6


def play(scenario: Scenario, server: Server, head: str, commands: Commands) -> Transcript:
    """Run a scenario and return its transcript. What the scenario does not expect is raised, with the step."""
    stage = Stage(server, scenario.name.replace("_", "-"), head, commands)
    try:
        scenario.play(stage)
    except Exception as error:
        raise AssertionError(f"the scenario {scenario.name} broke off; so far:\n{stage.transcript}") from error
    finally:
        stage.close()
    return stage.transcript


def recording_of(scenario: Scenario) -> Transcript:
    """What Pulsar said."""
    return Transcript.parse(scenario.recording.read_text())


def _replay(scenario: Scenario, server: Server) -> Transcript:
    recording = recording_of(scenario)
    return play(scenario, server, recording.head, Replayed(recording, server.admin_url))


class Plays:
    """Starts a Magnetar for each group of settings, and plays those of the chosen scenarios that belong to it."""

    def __init__(self, chosen: Iterable[Scenario], new_directory: Callable[[], Path]) -> None:
        self._chosen = list(chosen)
        self._new_directory = new_directory
        self._group: Group | None = None
        self._running = contextlib.ExitStack()
        self._plays: dict[str, Future[Transcript]] = {}

    def transcript(self, scenario: Scenario) -> Transcript:
        """What Magnetar said."""
        if self._group is not scenario.group:
            self.close()
            self._begin(scenario.group)
        return self._plays[scenario.name].result()

    def _begin(self, group: Group) -> None:
        server = self._running.enter_context(magnetar_server(self._new_directory(), group.settings))
        executor = self._running.enter_context(ThreadPoolExecutor(AT_A_TIME, "scenario"))
        self._running.callback(lambda: executor.shutdown(cancel_futures=True))
        self._group = group
        self._plays = {one.name: executor.submit(_replay, one, server) for one in self._chosen if one.group is group}

    def close(self) -> None:
        """Stop what runs."""
        self._group = None
        self._running.close()
