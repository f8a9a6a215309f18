"""Count the sentences of production code: docstrings, comments and messages; list those that are too long or badly put.

    python tests/tools/count_code_sentences.py [--texts] [FILE…]

A message is a string with spaces in it that the code gives to people: the text of an error, of a log line, of an option
of the command line or of a setting. Values that an f-string fills in count as one word each. `--texts` prints every
sentence with its file and line. Unit tests hold limits on the shares of long sentences and on the words below.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from tools.count_long_sentences import ROOT, sentences, words
from tools.syntax import nodes_of

PRODUCT = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")
ROOMS = (*PRODUCT, "bench", "examples")
LIMITS = (25, 30)

BAD_WORDS = {
    "who(m)ever": r"\bwho(?:m|se)?(?:so)?ever\b",
    "anew": r"\banew\b",
    "any more": r"\bany ?more\b(?! \w+s\b)",
    "good-bye": r"\bgood-?bye\b",
    "adrift": r"\badrift\b",
    "inbox": r"\binbox(?:es)?\b",
    "bury": r"\b(?:bur(?:y|ies|ied|ying|ial)|unbur\w+)\b",
    "a yes, a no": r"\b(?:a (?:definite )?(?:yes|no)\b(?![- ]\w)|(?:yes|no) means\b)",
    "one a …": r"\b(?:one|so many|as many) an? (?!time|row)(?=\w+)\w+",
    "at most so …": r"\bat most (?:so|as) \w+",
    "for good": r"\bfor good\b",
    "in office": r"\bin office\b",
    "sour": r"\bsour\b",
}
"""What stands for better words of Pulsar's, BookKeeper's or plain English; house rules of CONTRIBUTING.md."""


@dataclass(frozen=True)
class Text:
    """One docstring, block of comments or message."""

    file: str
    line: int
    kind: str
    text: str


def files() -> list[Path]:
    """The files that count: what is installed, without generated code."""
    found = [*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]
    return sorted(file for file in found if not file.name.endswith("_pb2.py"))


def texts(file: Path, source: str | None = None) -> Iterator[Text]:
    """The texts of a file, or of another source under its name."""
    nodes = nodes_of(file) if source is None else tuple(ast.walk(ast.parse(source)))
    source = file.read_text() if source is None else source
    name = str(file.relative_to(ROOT))
    parts = {
        part
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    statements = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield Text(name, node.lineno, "message", _rendered(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            if node in statements:
                yield Text(name, node.lineno, "docstring", node.value)
            elif " " in node.value.strip():
                yield Text(name, node.lineno, "message", node.value)
    for line, comment in _comments(source):
        yield Text(name, line, "comment", comment)


def _rendered(node: ast.JoinedStr) -> str:
    """An f-string with an x for each value."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Blocks of comments on consecutive lines, joined."""
    block, first, last = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"# ?(?:noqa|type:|pyright|pragma|--|===)", token.string):
            continue
        text = token.string.lstrip("# ").partition("  # ")[0]
        own_line = token.line.lstrip().startswith("#")
        if own_line and token.start[0] == last + 1:
            block, last = f"{block}\n{text}", token.start[0]
            continue
        if block:
            yield first, block
        block, first, last = text, token.start[0], token.start[0] if own_line else -1
    if block:
        yield first, block


def sentences_of(text: Text) -> list[str]:
    """The sentences of a text. Those of `Args` and the like count without their names; tables and code do not count."""
    body = re.sub(r"(?<=[.!?]) (?=`)", "\n\n", text.text)
    if text.kind == "docstring":
        body = _prose(inspect.cleandoc(text.text))
    return sentences(body)


def _prose(docstring: str) -> str:
    """A docstring without tables, state diagrams and blocks of code, its described arguments as paragraphs."""
    lines: list[str] = []
    described = False
    for line in docstring.splitlines():
        if re.match(r"(?:Args|Returns|Raises|Yields):$", line):
            described = True
            lines.append("")
            continue
        if line and not line.startswith(" "):
            described = False
        drawn = re.search(r"──|\S {3,}\S", line)
        if drawn or (line.startswith("    ") and not described):
            lines.append("")
        elif described and (name := re.match(r"    (\w+): ", line)):
            lines += ["", line[name.end() :]]
        else:
            lines.append(line.strip())
    return re.sub(r"(?<=[.!?])[ \n](?=`)", "\n\n", "\n".join(lines))


@dataclass(frozen=True)
class Measure:
    """What the texts of some files come to."""

    sentences: int
    over: dict[int, int]
    bad_words: dict[str, int]

    def share_over(self, limit: int) -> float:
        return self.over[limit] / max(self.sentences, 1)


def bad_words_in(text: str) -> list[str]:
    """The names of the patterns that a text has, each as often as it has it."""
    return [name for name, pattern in BAD_WORDS.items() for _ in re.finditer(pattern, text, re.IGNORECASE)]


def measure(found: list[Text]) -> Measure:
    """Count sentences, long sentences and bad words."""
    lengths = [words(sentence) for text in found for sentence in sentences_of(text)]
    bad = dict.fromkeys(BAD_WORDS, 0)
    for text in found:
        for name in bad_words_in(text.text):
            bad[name] += 1
    return Measure(len(lengths), {limit: sum(length > limit for length in lengths) for limit in LIMITS}, bad)


def main() -> int:
    everything = "--texts" in sys.argv
    named = [Path(name).resolve() for name in sys.argv[1:] if name != "--texts"]
    paths = [each for path in named for each in (sorted(path.rglob("*.py")) if path.is_dir() else [path])] or files()
    found = [text for file in paths for text in texts(file)]
    for text in found:
        bad = bad_words_in(text.text)
        for sentence in sentences_of(text):
            if everything or words(sentence) > min(LIMITS):
                print(f"{text.file}:{text.line}: {text.kind}, {words(sentence)} words: {sentence}")
        if bad:
            print(f"{text.file}:{text.line}: {text.kind} says {', '.join(bad)}: {' '.join(text.text.split())[:300]}")
    counted = measure(found)
    for limit in LIMITS:
        share = 100 * counted.share_over(limit)
        print(f"{counted.over[limit]} of {counted.sentences} sentences have more than {limit} words: {share:.1f}%")
    print(", ".join(f"{name}: {number}" for name, number in counted.bad_words.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
