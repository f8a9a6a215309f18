"""Documents that name things of the code: what they name exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from magnetar.cluster.command_line import app
from magnetar.cluster.planning import load_settings
from magnetar.runtime.settings.declarations import Settings
from support.checks.document_examples import unmarked

ROOT = Path(__file__).resolve().parents[2]
FEATURES = (ROOT / "docs" / "FEATURES.md").read_text()
ROWS = re.findall(r"^\| (\d+\.\d+) \| .+ \| (\S[^|]*\S) \| (.*) \|$", FEATURES, re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_every_row_has_a_state_and_every_claim_a_test() -> None:
    assert len(ROWS) == 262
    assert {state for _, state, _ in ROWS} == {"done", "partly", "not yet"}
    without = [number for number, state, shown in ROWS if state != "not yet" and not TEST.search(shown)]
    assert not without


def test_the_tests_that_features_names_exist() -> None:
    named = {(file, test) for _, _, shown in ROWS for file, test in TEST.findall(shown)}
    missing = [
        f"{file}::{test}"
        for file, test in sorted(named)
        if not re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    ]
    assert named and not missing


def test_the_tests_that_reliability_names_exist() -> None:
    named = TEST.findall((ROOT / "docs" / "RELIABILITY.md").read_text())
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(
            rf"^(async )?def {test}\(", (ROOT / "tests" / file.removeprefix("tests/")).read_text(), re.MULTILINE
        )
    ]
    assert named and not missing


def test_settings_said_to_be_there_are_there_with_that_default() -> None:
    values = Settings().to_dict()
    claimed = re.findall(r"^\| `(\w+)` \| (\S+) \| (done|not yet)", FEATURES.partition("## Settings")[2], re.MULTILINE)
    brokers = [(name, default, state) for name, default, state in claimed if name in values or state == "not yet"]
    assert len([name for name, _, state in brokers if state == "done"]) >= 4
    for name, default, state in brokers:
        assert (name in values) == (state == "done"), name
        if state == "done":
            assert str(values[name]).lower() == default, name


GUIDES = ["docs/quickstart.md", *(f"docs/guides/{page.name}" for page in sorted((ROOT / "docs/guides").glob("*.md")))]


@pytest.mark.parametrize("page", [page for page in GUIDES if not page.endswith("operations.md")])
def test_every_code_block_of_a_guide_is_named_for_a_test(page: str) -> None:
    assert unmarked(page) == []


@pytest.mark.parametrize("page", ["README.md", *GUIDES])
def test_every_magnetar_command_of_a_page_exists_with_its_options(page: str) -> None:
    group = typer.main.get_command(app)
    text = (ROOT / page).read_text()
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and re.match(r"MAGNETAR_\w+=", words[0]):
            name, _, value = words.pop(0).removeprefix("MAGNETAR_").partition("=")
            load_settings(given={name: value}, environment={})
        if not words or words[0] != "magnetar":
            continue
        command = group.commands[words[1]]  # type: ignore[attr-defined]
        context = command.make_context(words[1], words[2:])
        given = dict(pair.split("=", 1) for pair in context.params.get("settings") or ())
        load_settings(ensemble=context.params.get("ensemble"), given=given, environment={})


def test_settings_that_documents_give_exist() -> None:
    text = (ROOT / "docs" / "guides" / "operations.md").read_text()
    given = re.findall(r"--set (\w+)=|MAGNETAR_([a-z]\w+)=", text)
    assert given
    assert {first or second for first, second in given} <= Settings().to_dict().keys()
