"""Kinds of values: which plain values fit, what is wrong with others, both forms, and which of two levels counts."""

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

import pytest

from magnetar.actors.policies.automatic_creation import AutoTopicCreation
from magnetar.actors.policies.kinds import (
    INT_MAX,
    LONG_MAX,
    Choice,
    Demand,
    FieldRecord,
    Flag,
    Kind,
    MapOf,
    Real,
    RecordOf,
    WholeNumber,
    WordSet,
    part,
)
from magnetar.actors.policies.subscription_types import SubscriptionType


class Mode(enum.Enum):
    HOLD = "hold"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Quota(FieldRecord):
    size: int = part("limitSize", WholeNumber(-1, 100), -1)
    mode: Mode = part("policy", Choice(Mode), Mode.HOLD)
    share: float | None = part("share", Real(), None)

    def fault(self) -> str:
        return "an endless quota evicts nothing" if self.size < 0 and self.mode is Mode.EVICT else ""


QUOTA = RecordOf(Quota)
QUOTAS = MapOf(Mode, QUOTA)


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (WholeNumber(), [0, -1, INT_MAX, -INT_MAX - 1], [True, 1.0, "1", None, [], INT_MAX + 1, -INT_MAX - 2]),
        (WholeNumber(long=True), [INT_MAX + 1, LONG_MAX, -LONG_MAX - 1], [LONG_MAX + 1, 1.5]),
        (Real(), [0, 1.5, -1], [True, "1", None, float("nan"), float("inf")]),
        (Flag(), [True, False], [0, 1, "true", None]),
        (Choice(Mode), ["hold", "evict"], ["HOLD", "", 0, None, []]),
        (QUOTA, [{}, {"limitSize": 3, "x": 1}, {"policy": None}], [None, [], 3, {1: 2}, {"limitSize": "3"}]),
        (QUOTAS, [{}, {"hold": {}, "evict": {"limitSize": 3}}], [None, [], {"keep": {}}, {"hold": 3}, {"hold": None}]),
    ],
)
def test_a_value_of_another_type_does_not_fit(kind: Kind[Any], fitting: list[object], others: list[object]) -> None:
    assert [value for value in fitting if not kind.fits(value)] == []
    assert [value for value in others if kind.fits(value)] == []
    assert kind.text


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (WholeNumber(), -1, "x must be 0 or more"),
        (WholeNumber(), INT_MAX, ""),
        (WholeNumber(-1, 5), -2, "x must be -1 or more"),
        (WholeNumber(-1, 5), 6, "x must be 5 or less"),
        (Real(), -1, ""),
        (QUOTA, {"limitSize": 101}, "limitSize must be 100 or less"),
        (QUOTA, {"policy": "evict"}, "an endless quota evicts nothing"),
        (QUOTA, {"limitSize": 3, "policy": "evict"}, ""),
        (QUOTAS, {"hold": {}, "evict": {"limitSize": -2}}, "limitSize must be -1 or more"),
        (MapOf(Mode, WholeNumber()), {"hold": 1, "evict": -2}, "x, evict, must be 0 or more"),
    ],
)
def test_a_wrong_value_of_the_right_type_is_refused_with_a_sentence(kind: Kind[Any], value: object, fault: str) -> None:
    assert kind.fault(kind.read(value), "x") == fault


@pytest.mark.parametrize(
    ("kind", "plain", "value", "complete"),
    [
        (WholeNumber(), 3, 3, 3),
        (Real(), 3, 3.0, 3.0),
        (Choice(Mode), "evict", Mode.EVICT, "evict"),
        (QUOTA, {}, Quota(), {"limitSize": -1, "policy": "hold", "share": None}),
        (
            QUOTA,
            {"limitSize": 7, "policy": "evict", "share": 1, "unknown": 9},
            Quota(7, Mode.EVICT, 1.0),
            {"limitSize": 7, "policy": "evict", "share": 1.0},
        ),
        (
            QUOTAS,
            {"evict": {"limitSize": 7}},
            {Mode.EVICT: Quota(7)},
            {"evict": {"limitSize": 7, "policy": "hold", "share": None}},
        ),
    ],
)
def test_the_plain_form_and_the_immutable_one_say_the_same(
    kind: Kind[Any], plain: object, value: object, complete: object
) -> None:
    assert kind.fits(plain) and kind.read(plain) == value
    assert kind.write(kind.read(plain)) == complete
    assert kind.read(complete) == value


def test_what_topics_read_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        QUOTA.read({}).size = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        QUOTAS.read({"hold": {}})[Mode.HOLD] = Quota()  # type: ignore[index]


def test_the_narrowest_level_counts_unless_the_kind_says_otherwise() -> None:
    assert WholeNumber().over(3, 0) == 0
    assert not Flag().over(True, False)
    assert QUOTA.over(Quota(3, Mode.EVICT), Quota(5)) == Quota(5)
    assert [Demand().over(wide, narrow) for wide in (True, False) for narrow in (True, False)] == [
        True,
        True,
        True,
        False,
    ]
    wide, narrow = {Mode.HOLD: Quota(1), Mode.EVICT: Quota(2)}, {Mode.EVICT: Quota(3)}
    assert QUOTAS.over(wide, narrow) == {Mode.HOLD: Quota(1), Mode.EVICT: Quota(3)}


def test_a_list_of_words_is_read_as_a_set_and_written_in_the_order_of_the_enum() -> None:
    kind = WordSet(SubscriptionType)
    for value in ("Shared", ["shared"], [1], {"Shared": 1}, None):
        assert not kind.fits(value), value
    for value in (["Key_Shared", "Shared", "Shared"], ["Shared", "Key_Shared"]):
        assert kind.fits(value)
        assert kind.read(value) == {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}
        assert kind.write(kind.read(value)) == ["Shared", "Key_Shared"]
    assert kind.read([]) == frozenset() and kind.nothing == []


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({}, ""),
        ({"allowAutoTopicCreation": False, "topicType": "x"}, ""),
        ({"allowAutoTopicCreation": True}, "topicType is missing"),
        ({"allowAutoTopicCreation": True, "topicType": "x"}, "topicType is 'x'"),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned"}, ""),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 0}, "leave it out"),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned"}, "is missing"),
        (
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
            "is 0: a partitioned",
        ),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10_001}, "is 10001"),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10_000}, ""),
    ],
)
def test_automatic_creation_is_refused_for_pulsars_reasons(value: dict[str, object], fault: str) -> None:
    kind = RecordOf(AutoTopicCreation, sparse=True)
    assert kind.fits(value)
    found = kind.fault(kind.read(value), "autoTopicCreation")
    assert fault in found and bool(found) is bool(fault)
    assert kind.write(kind.read(value)) == {"allowAutoTopicCreation": False, **value}
