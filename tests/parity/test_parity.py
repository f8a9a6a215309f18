"""Plays each scenario on Magnetar and compares with the recording of Pulsar. No Java is needed."""

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


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Magnetar with the settings of a group. Scenarios of a group follow each other, so each group has one."""
    group: Group = request.param
    with magnetar_server(tmp_path_factory.mktemp("parity"), group.settings) as running:
        yield running


@pytest.mark.parametrize(
    ("server", "scenario"),
    [pytest.param(one.group, one, id=f"{one.subject}-{one.name}") for one in SCENARIOS],
    indirect=["server"],
)
def test_magnetar_says_what_pulsar_says(server: Server, scenario: Scenario) -> None:
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
