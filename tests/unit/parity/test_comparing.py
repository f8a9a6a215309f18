"""What counts as a difference between two transcripts."""

from parity.comparing import Difference, compare, compare_texts
from parity.transcript import Transcript

PULSAR = """-- head

== one
same
error ProducerBusy
# text: it is busy

== two
only Pulsar
"""


def transcripts(ours: str) -> tuple[Transcript, Transcript]:
    return Transcript.parse(PULSAR), Transcript.parse(ours)


def test_a_transcript_is_read_from_the_text_that_it_writes() -> None:
    made = Transcript.parse(PULSAR)
    assert str(made) == PULSAR
    assert [(step.label, step.compared) for step in made.steps] == [
        ("one", ["same", "error ProducerBusy"]),
        ("two", ["only Pulsar"]),
    ]


def test_equal_transcripts_differ_in_nothing_whatever_the_texts_of_errors() -> None:
    assert compare("a", *transcripts(PULSAR.replace("it is busy", "somebody has it")), []).unexplained == []


def test_lines_that_differ_are_shown_with_their_step() -> None:
    result = compare("a", *transcripts(PULSAR.replace("ProducerBusy", "UnknownError")), [])
    assert result.unexplained == [
        "== one",
        "- error ProducerBusy",
        "+ error UnknownError",
        "# text: it is busy",
    ]


def test_a_listed_difference_explains_its_lines_only_where_it_holds() -> None:
    ours = PULSAR.replace("ProducerBusy", "UnknownError").replace("only Pulsar\n", "")
    busy = Difference("a reason", "error ProducerBusy", "error UnknownError", steps="one")
    gone = Difference("a reason", "only .*", None, scenarios="a")
    assert compare("a", *transcripts(ours), [busy, gone]).unexplained == []
    assert compare("a", *transcripts(ours), [busy, gone]).used == {busy, gone}
    assert compare("b", *transcripts(ours), [busy, gone]).unexplained == ["== two", "- only Pulsar"]
    assert compare("a", *transcripts(ours), [gone]).used == {gone}


def test_a_difference_with_another_answer_than_the_listed_one_is_not_explained() -> None:
    ours = PULSAR.replace("ProducerBusy", "UnknownError")
    listed = Difference("a reason", "error ProducerBusy", "error ProducerFenced")
    assert len(compare("a", *transcripts(ours), [listed]).unexplained) == 4
    assert compare("a", *transcripts(ours), [listed]).used == set()


def test_a_listed_difference_that_is_gone_counts_as_unused() -> None:
    listed = Difference("a reason", "error ProducerBusy", "error UnknownError")
    assert compare("a", *transcripts(PULSAR), [listed]) == compare("a", *transcripts(PULSAR), [])


def test_other_steps_are_a_difference() -> None:
    result = compare("a", *transcripts(PULSAR.replace("== two", "== three")), [])
    assert "-two" in result.unexplained and "+three" in result.unexplained


def test_lines_in_another_order_are_a_difference() -> None:
    ours = PULSAR.replace("same\nerror ProducerBusy", "error ProducerBusy\nsame")
    assert compare("a", *transcripts(ours), []).unexplained != []


def test_an_error_needs_a_text_of_its_own_where_pulsar_has_one() -> None:
    def step(line: str) -> Transcript:
        return Transcript.parse(f"== one\nERROR error=ProducerBusy\n{line}\n")

    sentence = "it is much too busy to do this"
    theirs = step(f"# text: org.a.B$CException: {sentence}")
    assert compare_texts(theirs, step("# text: p holds the topic: close it first")) == []
    assert compare_texts(theirs, step(f"# text: {sentence}")) == [f"== one: Pulsar's own sentence: {sentence}"]
    assert compare_texts(theirs, step("")) == [f"== one: no text, where Pulsar says: {sentence}"]
    assert compare_texts(*transcripts(PULSAR)) == [], "the official client's texts are its own"
    listener = step("# text: the broker do not have test listener")
    assert compare_texts(listener, listener) == [], "the C++ client looks for this one"
