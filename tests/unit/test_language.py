"""README.md and docs/ are written in short sentences."""

from tools.count_long_sentences import ROOT, WORDS_MAX, pages, sentences, words

LONG_SHARE_MAX = 0.02


def test_at_most_two_sentences_in_a_hundred_have_over_30_words() -> None:
    found = [sentence for page in pages() for sentence in sentences(page.read_text())]
    long = [sentence for sentence in found if words(sentence) > WORDS_MAX]
    assert len(found) > 1000
    assert len(long) <= LONG_SHARE_MAX * len(found), "python tests/tools/count_long_sentences.py lists them"


def test_no_sentence_of_the_first_pages_has_over_30_words() -> None:
    first = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "glossary.md"]
    first += sorted((ROOT / "docs" / "guides").glob("*.md"))
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
