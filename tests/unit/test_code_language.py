"""The texts of production code are written in short sentences and plain words: docstrings, comments and messages.

The limits may only fall. `python tests/tools/count_code_sentences.py` lists what counts.
"""

import pytest

from tools.count_code_sentences import BAD_WORDS, ROOT, Text, bad_words_in, files, measure, sentences_of, texts

LONG_SHARE_MAX = {25: 0.006, 30: 0.002}
"""By a number of words: how large a share of the sentences may have more."""


@pytest.fixture(scope="module")
def production() -> list[Text]:
    return [text for file in files() for text in texts(file)]


def test_few_sentences_of_production_code_have_more_words_than_the_limits(production: list[Text]) -> None:
    found = measure(production)
    assert found.sentences > 5000
    shares = {limit: found.share_over(limit) for limit in LONG_SHARE_MAX}
    assert all(share <= LONG_SHARE_MAX[limit] for limit, share in shares.items()), shares


def test_production_code_does_without_the_bad_words(production: list[Text]) -> None:
    bad = [f"{text.file}:{text.line}: {name}" for text in production for name in bad_words_in(text.text)]
    assert not bad, "\n".join(bad)


def test_the_counter_reads_docstrings_comments_and_messages_of_code() -> None:
    source = '''"""One two three four.

Args:
    name: Five six seven eight.
"""

# A comment of two lines whose words
# are one sentence, whoever reads it.
raise ValueError(f"the {kind} of {name} is wrong") from None  # at the end of a line
key = "a-key"
'''
    file = ROOT / "runtime" / "logs.py"
    assert all(text.file == "runtime/logs.py" for text in texts(file))
    found = [(text.kind, text.text.splitlines()[0], len(sentences_of(text))) for text in texts(file, source)]
    assert found == [
        ("docstring", "One two three four.", 2),
        ("message", "the x of x is wrong", 1),
        ("comment", "A comment of two lines whose words", 1),
        ("comment", "at the end of a line", 1),
    ]


def test_the_bad_words_are_found_and_plain_ones_are_not() -> None:
    bad = ["whoever waits", "it begins anew", "not any more", "say good-bye", "buried ledgers", "one a broker"]
    assert [bool(bad_words_in(text)) for text in bad] == [True] * len(bad)
    assert bad_words_in("no more entries; a node one at a time; a yes-no question; any other") == []
    text = Text("a.py", 1, "docstring", f"Word {'word ' * 30}end. A short one, for good.")
    counted = measure([text])
    assert (counted.sentences, counted.over, sum(counted.bad_words.values())) == (2, {25: 1, 30: 1}, 1)
    assert set(counted.bad_words) == set(BAD_WORDS)
