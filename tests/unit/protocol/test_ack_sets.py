"""Ack sets between words and numbers."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.ack_sets import bits_to_words, open_messages, words_to_bits


def test_words_are_signed_and_end_with_the_last_open_message() -> None:
    assert bits_to_words(0) == [] and bits_to_words(1 << 64) == [0, 1]
    assert bits_to_words((1 << 64) - 1) == [-1] and words_to_bits([-1, 0]) == (1 << 64) - 1


@given(st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=5))
def test_any_words_stand_for_one_number(words: list[int]) -> None:
    bits = words_to_bits(words)
    assert words_to_bits(bits_to_words(bits)) == bits < 1 << 64 * len(words) or not words


def test_open_messages_are_those_inside_the_batch() -> None:
    assert open_messages([0b1011], 3) == 2 and open_messages([-1, -1], 70) == 70 and open_messages([0b1000], 3) == 1
    assert open_messages([0b1011], (1 << 31) - 1) == 3
