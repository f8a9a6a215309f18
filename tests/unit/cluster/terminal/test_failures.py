"""Errors as an operator sees them."""

import pytest
import typer
from ray.exceptions import ActorUnavailableError, RayActorError, RaySystemError, RayTaskError

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


def test_an_error_of_ray_is_one_line_and_a_defect_in_an_actor_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), clear_errors():
        raise RaySystemError("no answer\nfrom it")
    assert capsys.readouterr().err == "magnetar: Ray reports RaySystemError: System error: no answer from it\n"
    with pytest.raises(RayTaskError), clear_errors():
        raise RayTaskError("status", "the traceback of the other side", ZeroDivisionError())
