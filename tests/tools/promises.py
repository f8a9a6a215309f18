"""The page of features and the page of its tests: what Magnetar promises, whether it keeps it, which tests show it.

`docs/promises.toml` has the promises. A test carries the numbers of those that it shows: `@pytest.mark.promise("1.2")`,
or `@scenario(promises=("1.2",))` of a parity scenario. They are read from the source: importing every test takes
minutes, and starts Ray.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .markdown import NOTE_OF_PROMISES, anchor, table
from .syntax import read_nodes

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SOURCE = ROOT / "docs" / "promises.toml"
STATES = ("yes", "partly", "no")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Promise(NamedTuple):
    """One promise. The remark says what is missing or different, or is empty."""

    number: str
    sentence: str
    state: str
    remark: str


class Section(NamedTuple):
    """Promises of one subject."""

    number: str
    title: str
    promises: list[Promise]

    @property
    def heading(self) -> str:
        """Its heading on both pages."""
        return f"{self.number} {self.title}"


class MarkedTest(NamedTuple):
    """A test or a parity scenario, and the numbers that its mark names. A whole file has no name."""

    file: str
    name: str
    numbers: tuple[str, ...]


class Pages(NamedTuple):
    """Everything that the two pages are made of."""

    comparison: str
    sections: list[Section]
    settings: dict[str, Any]
    options: dict[str, Any]
    tests: dict[str, list[MarkedTest]]
    """By number of a promise."""


# ---- reading ----


@cache
def load(source: str = "", tests: Path = TESTS) -> Pages:
    """Read the promises and the marks, once. Raises ValueError with everything that does not fit."""
    given = tomllib.loads(source or SOURCE.read_text())
    comparison, settings, options = given.pop("comparison"), given.pop("settings"), given.pop("options")
    sections = [
        Section(number, entries.pop("title"), [_promise(f"{number}.{key}", entry) for key, entry in entries.items()])
        for number, entries in given.items()
    ]
    found: dict[str, list[MarkedTest]] = {}
    for test in marked(tests):
        for number in test.numbers:
            found.setdefault(number, []).append(test)
    if faults := list(_faults(sections, found)):
        raise ValueError("\n".join(faults))
    return Pages(comparison, sections, settings, options, found)


def _promise(number: str, entry: str | dict[str, str]) -> Promise:
    if isinstance(entry, str):
        entry = {"yes": entry}
    state = next((state for state in STATES if state in entry), "")
    if not state or entry.keys() - {state, "remark"}:
        raise ValueError(f"promise {number} has the keys {', '.join(entry)}: give one of {', '.join(STATES)}")
    return Promise(number, _one_line(entry[state]), state, _one_line(entry.get("remark", "")))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _faults(sections: list[Section], tests: dict[str, list[MarkedTest]]) -> Iterator[str]:
    promises = {promise.number: promise for section in sections for promise in section.promises}
    for number, promise in promises.items():
        if promise.state != "no" and number not in tests:
            yield f"promise {number} is said to be kept ({promise.state}), and no test is marked with it"
        if promise.state != "yes" and not promise.remark:
            yield f"promise {number} is kept {promise.state}, and no remark says what is missing"
    for number in tests.keys() - promises.keys():
        for test in tests[number]:
            yield f"tests/{test.file}: {test.name} is marked with {number}, which docs/promises.toml does not have"


def marked(tests: Path = TESTS) -> Iterator[MarkedTest]:
    """Every test with a mark, by file and in the order of the file."""
    for file in sorted(tests.rglob("*.py")):
        text = file.read_text()
        if "mark.promise(" in text or "@scenario(" in text:
            yield from _marked_in(str(file.relative_to(tests)), read_nodes(file))


def _marked_in(file: str, nodes: tuple[ast.AST, ...]) -> Iterator[MarkedTest]:
    """Raises ValueError for a mark that stands at something which is no test."""
    calls = {node for node in nodes if isinstance(node, ast.Call) and _is_mark(node)}
    tree = nodes[0]
    assert isinstance(tree, ast.Module)
    for node in tree.body:
        owners: list[tuple[str, ast.stmt]] = [(getattr(node, "name", ""), node)]
        if isinstance(node, ast.ClassDef):
            owners += [(f"{node.name}::{one.name}", one) for one in node.body if isinstance(one, FUNCTION)]
        for name, owner in owners:
            marks = [one for one in _decorators(owner) if one in calls and _may_have(name, one)]
            calls -= set(marks)
            if numbers := tuple(number for one in marks for number in _numbers(file, one)):
                yield MarkedTest(file, name, numbers)
    for one in calls:
        raise ValueError(f"tests/{file}:{one.lineno}: the mark `promise` does not stand at a test")


def _decorators(node: ast.stmt) -> list[ast.expr]:
    """Those of a function or a class, and what a file says of all its tests with `pytestmark`."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        return node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return getattr(node, "decorator_list", [])


def _may_have(name: str, mark: ast.expr) -> bool:
    """Whether this mark can stand at what has this name: a scenario, a test, a class of tests, or a file."""
    is_scenario = isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name)
    return is_scenario or name.rpartition("::")[2].startswith(("test_", "Test")) or not name


def _is_mark(node: ast.AST) -> bool:
    """Whether it names promises. `test_parity` hands on those of each scenario, with a star."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "scenario" and any(word.arg == "promises" for word in node.keywords)
    named = isinstance(node.func, ast.Attribute) and node.func.attr == "promise"
    return named and not any(isinstance(argument, ast.Starred) for argument in node.args)


def _numbers(file: str, mark: ast.expr) -> list[str]:
    assert isinstance(mark, ast.Call)
    given = next((ast.literal_eval(word.value) for word in mark.keywords if word.arg == "promises"), None)
    numbers = list(given) if given is not None else [ast.literal_eval(one) for one in mark.args]
    if not numbers or not all(isinstance(number, str) for number in numbers):
        raise ValueError(f"tests/{file}:{mark.lineno}: the mark `promise` takes numbers as texts")
    return numbers


# ---- writing ----

INTRODUCTION = """\
## Promise by promise

The tables below have what the five editions of Pulsar's “Messaging” page promise (1 to 29), and what Magnetar has
beside that page. It keeps {yes} of {all} promises, {partly} partly, and {no} not.

- **yes**: tests show it with our client, `magnetar.Client` and `magnetar.AsyncClient`. Where the protocol shows it,
  they also use the official client, which is Pulsar's. A remark says where Magnetar differs.
- **partly**: tests show the part that works. The remark says what is missing.
- **no**: the feature does not exist.

The last column counts the tests, and leads to [their names](reference/promises.md).

"""

TESTS_INTRODUCTION = """\
The tests that show each promise of [Features](../FEATURES.md), by file below `tests/`. Those in `parity/scenarios` use
the official client or raw frames. They were recorded on a real Pulsar 4.2.4, and `make test` compares Magnetar with
the recording.

"""


def features(pages: Pages) -> str:
    """The page of features: the comparison with Pulsar, then a table for each section."""
    states = Counter(promise.state for section in pages.sections for promise in section.promises)
    counts = {state: states[state] for state in STATES}
    settings = [_named(name, facts, "") for name, facts in pages.settings.items()]
    options = [_named(name, facts, f"`{option(name)}`") for name, facts in pages.options.items()]
    parts = [
        f"{NOTE_OF_PROMISES}# Features\n\n## Magnetar beside Pulsar\n\n{pages.comparison.strip()}\n\n",
        INTRODUCTION.format(all=sum(counts.values()), **counts),
        *(_table_of(section, pages.tests) for section in pages.sections),
        "## Settings that the page names\n\n[Settings](reference/settings.md) lists all that exist.\n\n",
        table(("broker, bookie", "default here", "remark"), settings),
        "\n## Options of clients that the page names\n\n",
        table(("Pulsar's name", "default", "in our client"), options),
    ]
    return "".join(parts)


def _table_of(section: Section, tests: dict[str, list[MarkedTest]]) -> str:
    remarks = any(promise.remark for promise in section.promises)
    titles = ("#", "promise", "kept", *(["remark"] if remarks else []), "tests")
    rows: list[tuple[str, ...]] = []
    for number, sentence, state, remark in section.promises:
        link = f"[{len(tests[number])}](reference/promises.md#{anchor(section.heading)})" if number in tests else ""
        rows.append((number, sentence, state, *([remark] if remarks else []), link))
    return f"## {section.heading}\n\n{table(titles, rows)}\n"


def _named(name: str, facts: str | list[str], here: str) -> tuple[str, ...]:
    """A row of a setting or option: name, default, and a note or `here`."""
    default, note = (facts, here) if isinstance(facts, str) else facts
    return ", ".join(f"`{one}`" if " " not in one else one for one in name.split(", ")), default, note


def option(name: str) -> str:
    """The name that an option has in our client, unless something else is said: the page's in snake case."""
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def tests_of(pages: Pages) -> str:
    """The page of tests: for each promise the tests that are marked with it."""
    parts = [f"{NOTE_OF_PROMISES}# Tests of each promise\n\n{TESTS_INTRODUCTION}"]
    for section in pages.sections:
        parts.append(f"## {section.heading}\n\n")
        for promise in section.promises:
            by_file: dict[str, list[str]] = {}
            for test in pages.tests.get(promise.number, []):
                by_file.setdefault(test.file, []).append(f"`{test.name}`" if test.name else "the whole file")
            if by_file:
                items = "".join(f"- `{file}`: {', '.join(names)}\n" for file, names in by_file.items())
                sentence = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", promise.sentence)
                parts.append(f"**{promise.number}** {sentence}\n\n{items}\n")
    return "".join(parts).rstrip("\n") + "\n"
