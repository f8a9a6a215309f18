"""`magnetar admin` on the command line: help, suggestions, completion."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from magnetar.cluster.admin.commands import COMMANDS
from magnetar.cluster.admin.nouns import NOUNS
from magnetar.cluster.command_line import app


def test_help_names_every_noun_and_verb() -> None:
    overview = CliRunner().invoke(app, ["admin", "--help"]).output
    assert all(noun in overview for noun in NOUNS)
    for noun in NOUNS:
        shown = CliRunner().invoke(app, ["admin", noun, "--help"], env={"COLUMNS": "200"}).output
        assert [one.verb for one in COMMANDS if one.noun == noun and one.verb not in shown] == []


def test_every_command_has_its_options_and_help_for_each() -> None:
    admin = typer.main.get_command(app).commands["admin"]  # type: ignore[attr-defined]
    for command in COMMANDS:
        built = admin.commands[command.noun].commands[command.verb]
        assert built.help
        options = {flag: one.help for one in built.params for flag in (*one.opts, *one.secondary_opts)}
        for argument in command.arguments:
            flags = [part for flag in argument.flags for part in flag.split("/")] or [argument.name]
            assert all(options[flag] for flag in flags), (command.noun, command.verb, argument.name)


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        (["topcs"], "'topics'"),
        (["topics", "stat", "x"], "'stats'"),
        (["namespaces", "set-retenton", "a/b"], "'set-retention'"),
        (["topic-policies"], "'topicPolicies'"),
    ],
)
def test_an_unknown_noun_or_verb_suggests_the_nearest(typed: list[str], suggestion: str) -> None:
    done = CliRunner().invoke(app, ["admin", *typed])
    assert done.exit_code == 2
    assert "No such command" in done.output and suggestion in done.output


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("magnetar perf", {"perf"}),
        ("magnetar admin top", {"topics", "topicPolicies"}),
        ("magnetar admin topics st", {"stats", "stats-internal"}),
        ("magnetar admin topicPolicies set-retention --t", {"--time"}),
    ],
)
def test_completion_covers_nouns_verbs_and_options(typed: str, completed: set[str]) -> None:
    environment = {
        "_MAGNETAR_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = CliRunner().invoke(app, [], prog_name="magnetar", env=environment)
    assert set(done.output.split()) == completed


def test_a_command_that_is_given_a_url_loads_neither_ray_nor_the_client() -> None:
    code = (
        "import sys\n"
        "from magnetar.cluster.command_line import main\n"
        "sys.argv = ['magnetar', 'admin', '--admin-url', 'http://127.0.0.1:1', 'tenants', 'list']\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    status = ended.code\n"
        "print(status, sorted({'ray', 'pyspark', 'aiohttp', 'magnetar.client.aio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 []\n", done.stderr
    assert "ConnectError: the admin HTTP at http://127.0.0.1:1 does not answer" in done.stderr
