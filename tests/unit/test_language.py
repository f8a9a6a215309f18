"""README.md, CONTRIBUTING.md, CHANGELOG.md and docs/ are written in short sentences."""

import pytest

from tools.count_long_sentences import ROOT, WORDS_MAX, pages, sentences, words

SHARE_MAX = {30: 0.003, 25: 0.03}
"""By a number of words: how large a share of the sentences may have more."""


@pytest.mark.parametrize("limit", SHARE_MAX)
def test_few_sentences_have_more_words_than_the_limit(limit: int) -> None:
    found = [sentence for page in pages() for sentence in sentences(page.read_text())]
    long = [sentence for sentence in found if words(sentence) > limit]
    assert len(found) > 1000
    assert len(long) <= SHARE_MAX[limit] * len(found), "\n".join(long)


def test_no_sentence_of_the_first_pages_has_over_30_words() -> None:
    first = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "glossary.md"]
    first += sorted(
        page for part in ("guides", "examples", "operations") for page in (ROOT / "docs" / part).glob("*.md")
    )
    long = [sentence for page in first for sentence in sentences(page.read_text()) if words(sentence) > WORDS_MAX]
    assert long == []


def test_lines_of_documents_wrap_at_120() -> None:
    """Tables cannot wrap, and generated pages are made of signatures."""
    wide = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages()
        if page.parent.name != "reference"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > 120 and not line.startswith(("|", "curl "))
    ]
    assert wide == []


def test_the_counter_finds_a_long_sentence_and_leaves_code_out() -> None:
    text = (
        f"One two three four. Word {'word ' * 30}end.\n\n```sh\n{'code ' * 40}\n```\n\n| a cell of words | `a b c` |\n"
    )
    assert [words(sentence) for sentence in sentences(text)] == [4, 32, 4]
