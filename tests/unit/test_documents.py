"""Documents that name things of the code: what they name exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from magnetar.cluster.command_line import app
from magnetar.cluster.planning import load_settings
from magnetar.runtime.settings.declarations import Settings
from simulation.mutants import catalog
from support.checks.document_examples import example, unmarked

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@pytest.mark.promise("29.2")
def test_the_top_level_has_what_the_first_page_promises() -> None:
    there = {path.name for path in ROOT.iterdir()}
    assert {"pyproject.toml", "README.md", "cluster", "actors", "storage", "tests", "bench"} <= there


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


def test_the_page_of_mutants_has_a_measured_row_for_each_and_counts_them() -> None:
    page = (ROOT / "docs" / "reference" / "mutants.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([a-z ]+) \| (I\d+[^|]*) \| \d+ \|$", page, re.MULTILINE)
    expected = [(one.name, one.scenario, one.invariant) for one in catalog.MUTANTS.values()]
    assert sorted(rows) == sorted(expected), "measure new mutants with tests/simulation/gate.py --mutant NAME --record"
    counted = re.search(r"switches on (\d+) bugs in the production\sclasses, one by one: (\d+) known", page)
    own = re.search(r"known bugs of Pulsar and BookKeeper, and (\d+) of our own", page)
    known = [name for name in catalog.MUTANTS if name.startswith(("#", "PR "))]
    assert counted and own
    assert counted.groups() == (str(len(expected)), str(len(known)))
    assert int(own[1]) == len(expected) - len(known)
    assert re.search(r"last ran whole on \d{4}-\d\d-\d\d, at `\w{7,}`, and found each of the \d+ mutants", page)


def test_every_promise_that_a_mutant_or_a_checker_names_is_promised() -> None:
    promised = set(re.findall(r"^\| (I\d+) \| \*\*", (ROOT / "docs" / "RELIABILITY.md").read_text(), re.MULTILINE))
    checkers = sorted((ROOT / "tests" / "simulation" / "checkers").glob("*.py"))
    named = {name for file in checkers for name in re.findall(r"\bI\d+\b", file.read_text())}
    named |= {one.invariant.split()[0] for one in catalog.MUTANTS.values()}
    assert promised == {f"I{number}" for number in range(1, len(promised) + 1)}
    assert named <= promised


CONTRIBUTING = ["CONTRIBUTING.md", *(f"docs/contributing/{one.name}" for one in (ROOT / "docs/contributing").iterdir())]


@pytest.mark.parametrize("page", [*sorted(CONTRIBUTING), "docs/reference/promises.md", "docs/RELIABILITY.md"])
def test_every_file_of_tests_that_a_page_names_exists(page: str) -> None:
    names = {name.removeprefix("tests/") for name in re.findall(r"`([\w/]+\.py)\b", (ROOT / page).read_text())}
    named = {name for name in names if name.rpartition("/")[2].startswith("test_")}
    there = {str(file.relative_to(ROOT / "tests")) for file in (ROOT / "tests").rglob("test_*.py")}
    assert named and [name for name in sorted(named) if not any(f"/{one}".endswith(f"/{name}") for one in there)] == []


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SCREEN_LINES = 75


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program.stem)
def test_each_program_of_the_examples_fits_on_a_screen_and_has_a_page_that_shows_it(program: Path) -> None:
    code, name = program.read_text(), program.stem.replace("_", "-")
    assert len(code.splitlines()) <= SCREEN_LINES
    assert example(f"docs/examples/{name}.md", name) == code


def test_each_page_of_the_examples_shows_a_program() -> None:
    pages = {page.stem for page in (ROOT / "docs/examples").glob("*.md")}
    assert pages == {program.stem.replace("_", "-") for program in EXAMPLES}


OPERATIONS = [f"docs/operations/{page.name}" for page in sorted((ROOT / "docs/operations").glob("*.md"))]
GUIDES = [
    "docs/quickstart.md",
    *(f"docs/guides/{page.name}" for page in sorted((ROOT / "docs/guides").glob("*.md"))),
    *(f"docs/examples/{page.name}" for page in sorted((ROOT / "docs/examples").glob("*.md"))),
    *OPERATIONS,
]


@pytest.mark.parametrize("page", [page for page in GUIDES if page not in OPERATIONS])
def test_every_code_block_of_a_guide_is_named_for_a_test(page: str) -> None:
    assert unmarked(page) == []


def test_the_first_page_has_a_picture_a_command_and_an_example_of_the_readme() -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(re.findall(r"!\[.+\]\(", page)) == len(re.findall("^```sh$", page, re.M)) == 1
    assert example in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", *GUIDES])
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
        command: Any = group
        words = words[1:]
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        context = command.make_context("magnetar", words)
        given = dict(pair.split("=", 1) for pair in context.params.get("settings") or ())
        load_settings(ensemble=context.params.get("ensemble"), given=given, environment={})


def test_settings_that_documents_give_exist() -> None:
    text = "\n".join((ROOT / page).read_text() for page in OPERATIONS)
    given = re.findall(r"--set (\w+)=|MAGNETAR_([a-z]\w+)=", text)
    assert given
    assert {first or second for first, second in given} <= Settings().to_dict().keys()


NAMING = [
    "README.md",
    *sorted(CONTRIBUTING),
    *GUIDES,
    *(f"docs/design/{file.name}" for file in sorted((ROOT / "docs/design").glob("*.md"))),
]
CODE = (
    "protocol",
    "runtime",
    "storage",
    "client",
    "actors",
    "bulk",
    "data",
    "serve",
    "spark",
    "tasks",
    "cluster",
    "tests",
    "bench",
    "examples",
)


def backticked(page: str) -> list[str]:
    """What stands between backticks, code blocks apart."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S))


@pytest.fixture(scope="module")
def words_of_code() -> set[str]:
    files = [file for room in CODE for ending in ("*.py", "*.proto") for file in (ROOT / room).rglob(ending)]
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


@pytest.mark.parametrize("page", NAMING)
def test_names_of_the_code_in_a_page_exist(page: str, words_of_code: set[str]) -> None:
    """Names with an underscore or a capital inside. One that begins or ends with an underscore is a part of a name."""
    found = {name for text in backticked(page) if "/" not in text for name in re.findall(r"\b[A-Za-z]\w*\b", text)}
    names = {name for name in found if "_" in name.rstrip("_") or re.search("[a-z][A-Z]", name)}
    assert {name for name in names if not name.endswith("_")} - words_of_code == set()


@pytest.mark.parametrize("page", [*NAMING, "docs/FEATURES.md"])
def test_files_of_the_repository_that_a_page_names_exist(page: str) -> None:
    folders = "|".join((*CODE, "docs"))
    named = {match[0] for text in backticked(page) if (match := re.match(rf"(?:{folders})/[\w./-]*(?=$|::)", text))}
    assert {name for name in named if not (ROOT / name).exists()} == set()
