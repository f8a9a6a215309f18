"""Count the sentences of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, and list those that are too long.

    python tests/tools/count_long_sentences.py [FILE…]

Code, tables' rules and link targets do not count. A list item, a heading and a cell of a table end a sentence, and so
do a full stop, a question mark and an exclamation mark. A unit test keeps the share of long sentences small.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS_MAX = 30
FRAGMENT_WORDS = 4
"""A heading or a cell of fewer words is no sentence."""

_END = re.compile(r"(?<=[.!?])[)*_”\"]*\s+(?=[\"“(*`_\[]*[A-Z0-9…])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.", re.IGNORECASE)


def pages() -> list[Path]:
    """The files that count."""
    at_the_root = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*at_the_root, *sorted((ROOT / "docs").rglob("*.md"))]


def sentences(text: str) -> list[str]:
    """The sentences of a Markdown text."""
    text = re.sub(r"^(```|~~~).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4}.*\n)+", "\n", text, flags=re.MULTILINE) if "\n\n    " in text else text
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = _ABBREVIATION.sub(r"\1", text)
    found: list[str] = []
    for block in _blocks(text):
        found += [part.strip() for part in _END.split(block) if words(part) >= FRAGMENT_WORDS]
    return found


def _blocks(text: str) -> list[str]:
    """Paragraphs, list items, headings and cells, each in one line."""
    blocks: list[str] = [""]
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("|"):
            blocks += [cell.strip() for cell in re.split(r"(?<!\\)\|", stripped)] + [""]
        elif not stripped or stripped.startswith("#"):
            blocks += [stripped.lstrip("# "), ""]
        elif re.match(r"([-*+]|\d+\.)\s", stripped):
            blocks += [re.sub(r"^([-*+]|\d+\.)\s+", "", stripped)]
        else:
            blocks[-1] = f"{blocks[-1]} {stripped}"
    return [block for block in blocks if block.strip()]


def words(sentence: str) -> int:
    """The words of a sentence; what stands between backticks is one, as is a name with slashes or dots."""
    return len([word for word in re.sub(r"`[^`]*`", "code", sentence).split() if re.search(r"\w", word)])


def main() -> int:
    files = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    total, long = 0, 0
    for file in files:
        found = sentences(file.read_text())
        too_long = [sentence for sentence in found if words(sentence) > WORDS_MAX]
        total, long = total + len(found), long + len(too_long)
        print(f"{file.relative_to(ROOT)}: {len(too_long)} of {len(found)}")
        for sentence in too_long:
            print(f"    {words(sentence)} words: {sentence}")
    print(f"{long} of {total} sentences have more than {WORDS_MAX} words: {100 * long / max(total, 1):.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
