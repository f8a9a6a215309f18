"""Plays each scenario on Magnetar and compares with the recording of Pulsar. No Java is needed."""

import contextlib
from collections.abc import Iterator

import pytest

from .comparing import Difference, compare
from .differences import DIFFERENCES
from .playing import play
from .registry import RECORDINGS, Group, Scenario, all_scenarios
from .servers import magnetar_server
from .stage import Server
from .transcript import Transcript

SCENARIOS = all_scenarios()

_played: set[str] = set()
_used: set[Difference] = set()


class Servers:
    """Starts a Magnetar for each group of settings. Scenarios of a group follow each other: one runs at a time."""

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._group: Group | None = None
        self._running = contextlib.ExitStack()
        self._server: Server | None = None

    def of(self, group: Group) -> Server:
        """The one with the settings of this group."""
        if self._group is not group or self._server is None:
            self.close()
            directory = self._directories.mktemp("parity")
            self._server = self._running.enter_context(magnetar_server(directory, group.settings))
            self._group = group
        return self._server

    def close(self) -> None:
        """Stop what runs."""
        self._server = None
        self._running.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of all scenarios."""
    made = Servers(tmp_path_factory)
    yield made
    made.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: f"{one.subject}-{one.name}")
def test_magnetar_says_what_pulsar_says(servers: Servers, scenario: Scenario) -> None:
    server = servers.of(scenario.group)
    recorded = Transcript.parse(scenario.recording.read_text())
    result = compare(scenario.name, recorded, play(scenario, server, recorded.head), DIFFERENCES)
    _played.add(scenario.name)
    _used.update(result.used)
    assert not result.unexplained, "\n".join(["", *result.unexplained])


def test_each_listed_difference_still_exists() -> None:
    if len(_played) < len(SCENARIOS):
        pytest.skip("only some scenarios were played")
    assert [one for one in DIFFERENCES if one not in _used] == []


def test_each_recording_belongs_to_a_scenario_and_each_scenario_has_one() -> None:
    assert sorted(RECORDINGS.rglob("*.txt")) == sorted(one.recording for one in SCENARIOS)


def test_each_recording_names_the_settings_of_its_scenario() -> None:
    heads = {one.name: Transcript.parse(one.recording.read_text()).head for one in SCENARIOS}
    assert [one.name for one in SCENARIOS if f"settings: {one.group.name}." not in heads[one.name]] == []
