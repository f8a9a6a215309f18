"""Plays each scenario on Magnetar and compares with the recording of Pulsar. No Java is needed.

Scenarios mostly wait: that nothing comes, or that something is late. So those of a group are played several at a time.
Each has a namespace of its own.
"""

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from .comparing import Difference, compare, compare_texts
from .differences import DIFFERENCES
from .playing import play
from .registry import RECORDINGS, Group, Scenario, all_scenarios
from .servers import magnetar_server
from .transcript import Transcript

SCENARIOS = all_scenarios()
AT_A_TIME = 6

_played: set[str] = set()
_used: set[Difference] = set()


class Plays:
    """Starts a Magnetar for each group of settings, and plays those of the chosen scenarios that belong to it."""

    def __init__(self, chosen: Iterable[Scenario], directories: pytest.TempPathFactory) -> None:
        self._chosen = list(chosen)
        self._directories = directories
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
        server = self._running.enter_context(magnetar_server(self._directories.mktemp("parity"), group.settings))
        executor = self._running.enter_context(ThreadPoolExecutor(AT_A_TIME, "scenario"))
        self._running.callback(lambda: executor.shutdown(cancel_futures=True))
        self._group = group
        self._plays = {
            one.name: executor.submit(play, one, server, recording_of(one).head)
            for one in self._chosen
            if one.group is group
        }

    def close(self) -> None:
        """Stop what runs."""
        self._group = None
        self._running.close()


def recording_of(scenario: Scenario) -> Transcript:
    """What Pulsar said."""
    return Transcript.parse(scenario.recording.read_text())


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plays]:
    """What the scenarios of this run say. Only those are played that were chosen on the command line."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["scenario"] for call in calls if call is not None and "scenario" in call.params]
    made = Plays(chosen, tmp_path_factory)
    yield made
    made.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: f"{one.subject}-{one.name}")
def test_magnetar_says_what_pulsar_says(plays: Plays, scenario: Scenario) -> None:
    recorded, said = recording_of(scenario), plays.transcript(scenario)
    result = compare(scenario.name, recorded, said, DIFFERENCES)
    _played.add(scenario.name)
    _used.update(result.used)
    assert not result.unexplained, "\n".join(["", *result.unexplained])
    assert not (wrong := compare_texts(recorded, said)), "\n".join(["", *wrong])


def test_each_listed_difference_still_exists() -> None:
    if len(_played) < len(SCENARIOS):
        pytest.skip("only some scenarios were played")
    assert [one for one in DIFFERENCES if one not in _used] == []


def test_each_recording_belongs_to_a_scenario_and_each_scenario_has_one() -> None:
    assert sorted(RECORDINGS.rglob("*.txt")) == sorted(one.recording for one in SCENARIOS)


def test_each_recording_names_the_settings_of_its_scenario() -> None:
    heads = {one.name: recording_of(one).head for one in SCENARIOS}
    assert [one.name for one in SCENARIOS if f"settings: {one.group.name}." not in heads[one.name]] == []
