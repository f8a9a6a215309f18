"""The examples and commands of the documents, as they stand there: tests run them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
URL = "pulsar://127.0.0.1:6650,127.0.0.1:6652"
"""What examples call a cluster; tests put the real one in."""
ADMIN_URL = "http://127.0.0.1:8080"


def block(page: str, kind: str, name: str, language: str) -> str:
    """The code below `<!-- kind: name -->` of a page."""
    text = (ROOT / page).read_text()
    found = re.search(rf"<!-- {kind}: {re.escape(name)} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"{page} has no {kind} {name}"
    return found[1]


def example(page: str, name: str) -> str:
    """A Python example."""
    return block(page, "example", name, "python")


def commands(page: str, name: str) -> list[str]:
    """The lines of a block of shell commands, without comments."""
    lines = block(page, "commands", name, "sh").splitlines()
    return [line for line in (re.sub(r"\s{2,}#.*", "", line).strip() for line in lines) if line]


def named(page: str, kind: str) -> list[str]:
    """The names of a page's examples or commands."""
    return re.findall(rf"^<!-- {kind}: ([\w-]+) -->$", (ROOT / page).read_text(), re.MULTILINE)


def unmarked(page: str) -> list[str]:
    """First lines of the code blocks that no test can find: Python or shell without a comment above that names it."""
    text = (ROOT / page).read_text()
    found = re.findall(r"^(.*)\n```(?:python|sh)\n(.*)$", text, re.MULTILINE)
    return [line for above, line in found if not re.match(r"<!-- (example|commands|not run by a test): ", above)]
