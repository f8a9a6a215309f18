"""Plays each scenario on Magnetar and compares with the recording of Pulsar. No Java is needed."""

from collections.abc import Iterator

import pytest

from .comparing import Difference, compare, compare_texts
from .differences import DIFFERENCES
from .error_texts import PAGE, ErrorText, error_texts, page, rows_of
from .playing import Plays, recording_of
from .registry import RECORDINGS, Scenario, all_scenarios
from .transcript import Transcript

SCENARIOS = all_scenarios()

_played: dict[str, Transcript] = {}
_used: set[Difference] = set()


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plays]:
    """What the scenarios of this run say. Only those are played that were chosen on the command line."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["scenario"] for call in calls if call is not None and "scenario" in call.params]
    made = Plays(chosen, lambda: tmp_path_factory.mktemp("parity"))
    yield made
    made.close()


@pytest.mark.promise("24.8")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, id=f"{one.subject}-{one.name}", marks=pytest.mark.promise(*one.promises)) for one in SCENARIOS],
)
def test_magnetar_says_what_pulsar_says(plays: Plays, scenario: Scenario) -> None:
    recorded, said = recording_of(scenario), plays.transcript(scenario)
    result = compare(scenario.name, recorded, said, DIFFERENCES)
    _played[scenario.name] = said
    _used.update(result.used)
    assert not result.unexplained, "\n".join(["", *result.unexplained])
    assert not (wrong := compare_texts(recorded, said)), "\n".join(["", *wrong])


def test_each_listed_difference_still_exists() -> None:
    if len(_played) < len(SCENARIOS):
        pytest.skip("only some scenarios were played")
    assert [one for one in DIFFERENCES if one not in _used] == []


def test_the_table_of_error_texts_is_what_both_servers_say() -> None:
    """For the scenarios that were played; the whole page if that are all."""
    committed = PAGE.read_text()
    if len(_played) == len(SCENARIOS):
        assert committed == page(_played), "run `python tests/parity/error_texts.py` and commit the page"
    said = [text for one in SCENARIOS if one.name in _played for text in error_texts(one, _played[one.name])]
    assert [row for row in rows_of(said) if row not in committed.splitlines()] == []


def test_a_row_of_error_texts_has_both_codes_and_both_texts() -> None:
    theirs = Transcript.parse(
        "== a\nstatus 404\nanother body\n# text: None | at\n== b\nstatus 200\n== c\nerror X\n# text: y"
    )
    ours = Transcript.parse(
        "== a\nstatus 409\na JSON body\n# text: none there\n== b\nERROR error=Busy\n== c\nerror X\n"
    )
    assert list(ErrorText.between("subject", "s", theirs, ours)) == [
        ErrorText("subject", "404", "409", "None | at", "none there", "s", "a"),
        ErrorText("subject", "", "Busy", "", "", "s", "b"),
    ]


def test_each_recording_belongs_to_a_scenario_and_each_scenario_has_one() -> None:
    assert sorted(RECORDINGS.rglob("*.txt")) == sorted(one.recording for one in SCENARIOS)


def test_each_recording_names_the_settings_of_its_scenario() -> None:
    heads = {one.name: recording_of(one).head for one in SCENARIOS}
    assert [one.name for one in SCENARIOS if f"settings: {one.group.name}." not in heads[one.name]] == []
