"""The commands of the guide to the command line, and of the README, as they stand there."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checks.document_examples import commands, named
from support.servers.command_line import CommandLine, command_line

GUIDE = "docs/guides/command-line.md"
PRINTED = {
    "messages": ["2 messages successfully produced", "key:[customer-7], properties:[country=it], content:one", "a, b"],
    "schemas": ["content:Rome"],
    "measure": ["Aggregated throughput stats", "500 records received"],
    "admin": ["payments-partition-3", "retentionTimeInMinutes", "msgBacklog", '"msgBacklog": ', "ok", "STRING"],
}


@pytest.fixture(scope="module")
def magnetar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("data")) as found:
        yield found


def run(magnetar: CommandLine, page: str, name: str) -> str:
    """Everything that a block of commands prints."""
    lines = [shlex.split(line) for line in commands(page, name)]
    assert {words[0] for words in lines} == {"magnetar"}
    return "".join(magnetar(*words[1:]) for words in lines)


@pytest.mark.promise("32.13")
def test_the_guide_works_from_its_beginning_to_its_end(
    magnetar: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named(GUIDE, "commands") == list(PRINTED)
    for name, texts in PRINTED.items():
        printed = run(magnetar, GUIDE, name)
        assert [text for text in texts if text not in printed] == [], printed
    assert (tmp_path / "publish.png").stat().st_size and (tmp_path / "latencies.hlog").stat().st_size


def test_the_commands_of_the_readme_print_what_they_should(magnetar: CommandLine) -> None:
    printed = run(magnetar, "README.md", "terminal")
    assert "content:hello" in printed and "content:world" in printed and "readers" in printed
