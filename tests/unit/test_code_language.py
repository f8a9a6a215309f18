"""The texts of production code are written in short sentences and plain words: docstrings, comments and messages.

The limits may only fall: one that is too high by more than its slack fails, too.
"""

from tools.count_code_sentences import BAD_WORDS, ROOT, Text, bad_words_in, files, measure, sentences_of, texts

LONG_SHARE_MAX = {25: 0.012, 30: 0.006}
BAD_WORDS_MAX = 20
SLACK = {"share": 0.015, "words": 75}


def test_production_code_has_few_long_sentences_and_few_bad_words() -> None:
    found = measure([text for file in files() for text in texts(file)])
    bad = sum(found.bad_words.values())
    assert found.sentences > 5000
    complaint = "python tests/tools/count_code_sentences.py lists them"
    for words_max, share_max in LONG_SHARE_MAX.items():
        assert found.share_over(words_max) <= share_max, complaint
        assert found.share_over(words_max) > share_max - SLACK["share"], f"lower LONG_SHARE_MAX[{words_max}]"
    assert bad <= BAD_WORDS_MAX, complaint
    assert bad > BAD_WORDS_MAX - SLACK["words"], "lower BAD_WORDS_MAX"


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
