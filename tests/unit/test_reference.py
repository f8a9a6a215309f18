"""The pages of `docs/reference/` are what the code says."""

import re
from pathlib import Path

import pytest
from generate_reference import pages
from reference_pages import advice

import magnetar

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    committed = (ROOT / "docs" / "reference" / name).read_text()
    assert committed == PAGES[name], f"run `make reference` and commit docs/reference/{name}"


def test_every_error_says_what_happened_and_what_to_do() -> None:
    kinds = [getattr(magnetar, name) for name in magnetar.__all__]
    errors = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert len(errors) > 40
    assert [kind.__name__ for kind in errors if not all(advice(kind))] == []


def test_every_admin_path_and_metric_says_what_it_is() -> None:
    for page in ("admin.md", "metrics.md"):
        assert re.findall(r"^\|.*\|\s*\|$", PAGES[page], re.MULTILINE) == []


def test_the_api_page_has_every_public_name() -> None:
    headings = set(re.findall(r"^## (\w+)", PAGES["python-api.md"], re.MULTILINE))
    kinds = {name: getattr(magnetar, name) for name in magnetar.__all__}
    wanted = {
        name
        for name, kind in kinds.items()
        if callable(kind) and not (isinstance(kind, type) and issubclass(kind, BaseException))
    }
    assert wanted <= headings
