"""The page of symptoms quotes messages. Each of them is one that the code says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.count_code_sentences import ROOT, files
from tools.syntax import nodes_of

PAGE = ROOT / "docs" / "guides" / "symptoms.md"
PLACEHOLDER = "…"
NOT_MESSAGES = ("magnetar ",)
"""Beginnings of what stands between backticks in the first column, and is a command."""


def quoted() -> list[str]:
    """What the first columns quote. States of processes are words of the code, too."""
    rows = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    return [text for text in found if not text.startswith(NOT_MESSAGES)]


def text_of(node: ast.expr) -> str | None:
    """A string of the code, with `…` for what is filled in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
    else:
        return None
    text = re.sub(r"\[/?yellow\]", "", text)  # rich's markup
    return re.sub(r"\s+", " ", re.sub(r"%(\.\d+)?[sdfr]", PLACEHOLDER, text))


def messages(file: Path) -> Iterator[str]:
    """The strings of a file."""
    for node in nodes_of(file):
        if isinstance(node, ast.expr) and (text := text_of(node)) is not None:
            yield text


@pytest.fixture(scope="module")
def said() -> str:
    """All strings of production code, one on each line."""
    return "\n".join(dict.fromkeys(text for file in files() for text in messages(file)))


def is_said(text: str, said: str) -> bool:
    """Whether one string has all parts of a message, in order."""
    parts = [re.escape(part.strip()) for part in text.split(PLACEHOLDER) if part.strip()]
    return bool(parts) and re.search(r"(?<!\w)" + r"[^\n]*?".join(parts), said) is not None


@pytest.mark.parametrize("text", quoted())
def test_the_code_says_what_the_page_quotes(text: str, said: str) -> None:
    assert is_said(text, said)


def test_a_message_that_nobody_says_is_found(said: str) -> None:
    assert len(quoted()) > 80
    assert is_said("bookie … has been away for … s", said)
    assert not is_said("bookie … has been away for … minutes", said)
    assert not is_said("has been away bookie", said)
    assert not is_said("…", said)


def test_every_symptom_has_a_meaning_and_a_remedy() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    wrong = [row for row in rows if len([cell for cell in row.strip("| ").split(" | ") if cell.strip()]) != 3]
    assert not wrong
