"""Errors as an operator sees them."""

import pytest
import typer
from ray.exceptions import ActorUnavailableError, RayActorError

from magnetar.cluster.terminal.failures import clear_errors
from magnetar.protocol.errors import ClusterError


@pytest.mark.parametrize("error", [ActorUnavailableError("it moved", b"\1" * 16), RayActorError()])
def test_a_coordinator_that_is_away_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, clear_errors():
        raise error
    assert ended.value.exit_code == 1
    assert "the cluster does not answer at the moment" in " ".join(capsys.readouterr().err.split())


def test_a_mistake_of_the_operator_is_one_line_and_a_defect_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), clear_errors():
        raise ClusterError("none runs here")
    assert capsys.readouterr().err == "magnetar: none runs here\n"
    with pytest.raises(ZeroDivisionError), clear_errors():
        raise ZeroDivisionError
