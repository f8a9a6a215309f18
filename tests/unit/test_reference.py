"""The generated pages of `docs/` are what the code and the marks of the tests say."""

import dataclasses
import enum
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magnetar
from magnetar.actors.policies.effective import POLICIES
from magnetar.client.core.absent import Absent
from magnetar.runtime.settings.declarations import Settings
from tools.generate_reference import pages, place
from tools.reference_api import OPTIONS, members, unit_of
from tools.reference_pages import advice

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    committed = place(ROOT / "docs", name).read_text()
    assert committed == PAGES[name], f"run `make reference` and commit {name}"


def test_the_program_that_the_makefile_runs_writes_every_page(tmp_path: Path) -> None:
    program = ROOT / "tests" / "tools" / "generate_reference.py"
    done = subprocess.run(
        [sys.executable, "-P", program, "--output", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {name: place(tmp_path, name).read_text() for name in PAGES} == PAGES
    assert len(list(tmp_path.rglob("*.md"))) == len(PAGES)


def test_every_error_says_what_happened_and_what_to_do() -> None:
    kinds = [getattr(magnetar, name) for name in magnetar.__all__]
    errors = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert len(errors) > 40
    assert [kind.__name__ for kind in errors if not all(advice(kind))] == []


def test_every_admin_path_and_metric_says_what_it_is() -> None:
    assert re.findall(r"^\|.*\|\s*\|$", PAGES["metrics.md"], re.MULTILINE) == []
    assert len(re.findall(r"^- \*\*(GET|PUT|POST|DELETE)\*\*: \w", PAGES["admin.md"], re.MULTILINE)) > 100
    assert re.findall(r"^- \*\*\w+\*\*:\s*$", PAGES["admin.md"], re.MULTILINE) == []


def test_every_policy_has_a_heading_says_what_it_does_and_how_it_is_set() -> None:
    entries = re.findall(r"^## `(\w+)`\n\n(.+)\n\n((?:- .+\n)+)", PAGES["policies.md"], re.MULTILINE)
    paths = [one.namespace or one.topic for one in POLICIES.values()]
    assert [name for name, _, _ in entries] == [path.path for path in paths if path and path.routed]
    assert all("The value is" in says and re.search("P(OST|UT)", ways) for _, says, ways in entries)


def test_every_setting_has_a_heading_and_says_what_it_does() -> None:
    entries = re.findall(r"^### `(\w+)`\n\n(.+)\n\n\*(.+)\*$", PAGES["settings.md"], re.MULTILINE)
    assert {name for name, _, _ in entries} == {item.metadata["name"] for item in dataclasses.fields(Settings)}
    assert all(does and "default" in facts and "origin" in facts for _, does, facts in entries)


def test_the_api_page_has_every_public_name() -> None:
    headings = set(re.findall(r"^## (\w+)", PAGES["python-api.md"], re.MULTILINE))
    kinds = {name: getattr(magnetar, name) for name in magnetar.__all__}
    wanted = {
        name
        for name, kind in kinds.items()
        if callable(kind)
        and not isinstance(kind, Absent)
        and not (isinstance(kind, type) and issubclass(kind, BaseException))
    }
    assert wanted <= headings


@pytest.mark.parametrize("what", OPTIONS)
def test_the_api_page_has_every_option_with_its_default_and_its_unit(what: str) -> None:
    section = PAGES["python-api.md"].partition(f"## Options of a {what}\n")[2].partition("\n## ")[0]
    rows = [
        line.replace("\\|", "/").strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")
    ]
    declared = dataclasses.fields(OPTIONS[what])
    assert [row[0] for row in rows] == [f"`{one.name}`" for one in declared]
    for row, one in zip(rows, declared, strict=True):
        assert len(row) == 5 and all((row[1], row[2], row[4])), row
        timed = re.match(r"(?:Maximum )?(?:Milliseconds|Seconds|milliseconds|seconds)", one.metadata["doc"])
        assert not timed or unit_of(one) in ("ms", "s"), row


def public_callables() -> list[tuple[str, Any]]:
    """The functions and methods of `magnetar.__all__`, each once, by its qualified name."""
    found: dict[Any, str] = {}
    for name in magnetar.__all__:
        value = getattr(magnetar, name)
        if inspect.isfunction(value):
            found.setdefault(value, name)
        elif name == "spark":
            for each in value.__all__:
                found.setdefault(getattr(value, each), f"spark.{each}")
        elif isinstance(value, type) and not issubclass(value, BaseException | enum.Enum):
            constructor = vars(value).get("__init__")
            if name.endswith("Client") and inspect.isfunction(constructor):
                found[constructor] = f"{name}.__init__"
            for member, method in members(value):
                if inspect.isfunction(method):
                    found.setdefault(method, f"{name}.{member}")
    return [(name, value) for value, name in found.items()]


PUBLIC = public_callables()
NO_VERB = re.compile(r"^(?:The|A|An|What|Who|Whether|When|Where|How|All|At|Until|See|This)\b|^\w+s\b(?<!ss)")


@pytest.mark.parametrize(("name", "function"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_a_public_function_documents_arguments_result_and_starts_with_a_verb(name: str, function: Any) -> None:
    text = inspect.getdoc(function) or ""
    assert text and not NO_VERB.match(text), text.partition("\n")[0]
    signature = inspect.signature(function)
    arguments = text.partition("Args:")[2].partition("\n\n")[0]
    documented = re.findall(r"^    (\w+): \S", arguments, re.MULTILINE)
    assert documented == [parameter for parameter in signature.parameters if parameter not in ("self", "cls")]
    gives = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    assert ("Returns:" in text) == gives
