"""Errors as one line."""

import pytest
import typer

from magnetar.cluster.terminal.addresses import Finder, admin_url_of
from magnetar.cluster.terminal.failures import clear_errors
from magnetar.protocol.errors import ClusterError, InvalidUrl, TopicNotFound


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TopicNotFound("the topic [a] is\nmissing"), "magnetar: TopicNotFound: the topic [a] is missing"),
        (ClusterError("no cluster runs"), "magnetar: no cluster runs"),
        (FileNotFoundError(2, "No such file", "x"), "magnetar: FileNotFoundError: [Errno 2] No such file: 'x'"),
    ],
)
def test_an_error_is_one_line_with_its_class(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, clear_errors():
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"{line}\n"


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), clear_errors():
        raise ZeroDivisionError


def test_an_admin_url_is_checked_and_a_running_cluster_is_only_searched_without_one() -> None:
    def find() -> None:
        raise ClusterError("no cluster runs")

    finder = Finder(find)  # type: ignore[arg-type]
    assert admin_url_of(finder, "http://host:1/") == "http://host:1"
    with pytest.raises(InvalidUrl, match="http://host:port"):
        admin_url_of(finder, "host:8080")
    with pytest.raises(ClusterError):
        admin_url_of(finder, None)
