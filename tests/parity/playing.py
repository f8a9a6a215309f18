"""Plays one scenario on one server."""

from .registry import Scenario
from .stage import Server, Stage
from .transcript import Transcript


def play(scenario: Scenario, server: Server, head: str) -> Transcript:
    """Run a scenario and return its transcript. What the scenario does not expect is raised, with the step."""
    stage = Stage(server, scenario.name.replace("_", "-"), head)
    try:
        scenario.play(stage)
    except Exception as error:
        raise AssertionError(f"the scenario {scenario.name} broke off; so far:\n{stage.transcript}") from error
    finally:
        stage.close()
    return stage.transcript
