"""`docs/promises.toml` and the marks of the tests fit each other, and remarks are short."""

import dataclasses
import re
from pathlib import Path

import pytest

from magnetar.runtime.settings.declarations import Settings
from tools import promises
from tools.count_long_sentences import sentences, words
from tools.reference_api import OPTIONS

PAGES = promises.load()
PROMISES = {promise.number: promise for section in PAGES.sections for promise in section.promises}
SOURCE = """
comparison = ""
1.title = "The contract"
1.1 = "Something is kept"
1.2.no = "Something else"
1.2.remark = "It does not exist."
[settings]
[options]
"""


def test_no_promise_is_lost() -> None:
    """262 are those of Pulsar's page; the others stand beside it. Tests and people refer to them by number."""
    of_the_page = [number for number in PROMISES if int(number.partition(".")[0]) < 30]
    assert len(of_the_page) == 263
    assert len(PROMISES) == 348
    for section in PAGES.sections:
        assert [promise.number for promise in section.promises] == [
            f"{section.number}.{place}" for place in range(1, len(section.promises) + 1)
        ]


def test_every_claim_has_a_test_and_the_tests_exist() -> None:
    assert {promise.state for promise in PROMISES.values()} == set(promises.STATES)
    without = [number for number, promise in PROMISES.items() if promise.state != "no" and number not in PAGES.tests]
    assert not without
    tests = {test for marked in PAGES.tests.values() for test in marked}
    for file, name, _ in tests:
        last = name.rpartition("::")[2]
        assert (file.startswith("parity/scenarios/") and name) or re.match(r"test_|Test|$", last), (file, name)
        assert file.startswith("parity/scenarios/") or Path(file).name.startswith("test_"), file


@pytest.mark.parametrize("number", PROMISES)
def test_a_remark_has_at_most_two_sentences_and_no_sentence_is_long(number: str) -> None:
    _, sentence, _, remark = PROMISES[number]
    assert len(sentences(remark)) <= 2
    assert [one for text in (sentence, remark) for one in sentences(text) if words(one) > 25] == []


def test_settings_that_the_page_names_are_there_with_that_default() -> None:
    values = Settings().to_dict()
    claimed = {name: facts if isinstance(facts, str) else facts[0] for name, facts in PAGES.settings.items()}
    assert len(claimed) >= 16
    assert claimed == {name: str(values[name]).lower() for name in claimed}


def test_options_that_the_page_names_are_there() -> None:
    declared = {one.name: one.default for kind in OPTIONS.values() for one in dataclasses.fields(kind)}
    entries = [
        (facts, f"`{promises.option(name)}`") if isinstance(facts, str) else facts
        for name, facts in PAGES.options.items()
    ]
    named = [name for _, here in entries for name in re.findall(r"`([a-z]\w*)`", here)]
    assert len(named) >= 20
    assert set(named) - declared.keys() == {"allow_out_of_order_delivery"}
    for default, here in entries:
        if default in ("true", "false") or default.isdigit():
            assert str(declared[here.strip("`")]).lower() == default, here


def _tests(directory: Path, text: str, name: str = "test_it.py") -> Path:
    (directory / name).write_text(text)
    return directory


def test_marks_are_found_on_functions_classes_files_and_scenarios(tmp_path: Path) -> None:
    mark = "@pytest.mark.promise"
    _tests(tmp_path, f'{mark}("1.1", "1.2")\n@other\nasync def test_a(): ...\n', "test_a.py")
    _tests(tmp_path, f'class TestB:\n    {mark}("1.1")\n    def test_b(self): ...\n', "test_b.py")
    _tests(tmp_path, f'{mark}("1.1")\nclass TestC:\n    def test_c(self): ...\n', "test_c.py")
    _tests(tmp_path, 'pytestmark = [pytest.mark.slow, pytest.mark.promise("1.1")]\n', "test_d.py")
    _tests(tmp_path, '@scenario(PLAIN, promises=("1.2",))\ndef it_plays(stage): ...\n', "e.py")
    assert list(promises.marked(tmp_path)) == [
        ("e.py", "it_plays", ("1.2",)),
        ("test_a.py", "test_a", ("1.1", "1.2")),
        ("test_b.py", "TestB::test_b", ("1.1",)),
        ("test_c.py", "TestC", ("1.1",)),
        ("test_d.py", "", ("1.1",)),
    ]
    assert set(promises.load(SOURCE, tmp_path).tests) == {"1.1", "1.2"}


def test_a_kept_promise_without_a_test_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"promise 1\.1 is said to be kept \(yes\), and no test is marked with it"):
        promises.load(SOURCE, tmp_path)


def test_a_mark_with_an_unknown_number_is_an_error(tmp_path: Path) -> None:
    tests = _tests(tmp_path, '@pytest.mark.promise("1.1", "9.9")\ndef test_it(): ...\n')
    with pytest.raises(ValueError, match=r"tests/test_it\.py: test_it is marked with 9\.9, which docs/promises\.toml"):
        promises.load(SOURCE, tests)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('def test_it():\n    pytest.mark.promise("1.1")\n', r"tests/test_it\.py:2: .* does not stand at a test"),
        ('@pytest.mark.promise("1.1")\ndef helper(): ...\n', r"tests/test_it\.py:1: .* does not stand at a test"),
        ("@pytest.mark.promise(1.1)\ndef test_it(): ...\n", r"tests/test_it\.py:1: .* takes numbers as texts"),
    ],
)
def test_a_mark_that_says_nothing_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        promises.load(SOURCE, _tests(tmp_path, text))


def test_a_promise_that_is_not_wholly_kept_says_what_is_missing(tmp_path: Path) -> None:
    tests = _tests(tmp_path, '@pytest.mark.promise("1.1")\ndef test_it(): ...\n')
    with pytest.raises(ValueError, match=r"promise 1\.2 is kept no, and no remark says what is missing"):
        promises.load(SOURCE.replace('1.2.remark = "It does not exist."', ""), tests)
    with pytest.raises(ValueError, match=r"promise 1\.2 has the keys maybe, remark: give one of yes, partly, no"):
        promises.load(SOURCE.replace("1.2.no", "1.2.maybe"), tests)
