"""Answers on a terminal."""

import json

import pytest

from magnetar.cluster.admin.output import Table, show, show_json

STATS = {
    "msgRateIn": 1.25,
    "hidden": 1,
    "durable": True,
    "none": None,
    "publishers": [{"producerName": "p[1]", "address": "a:1"}],
    "subscriptions": {"s1": {"type": "Shared", "msgBacklog": 7}, "s2": {"type": "", "msgBacklog": 0}},
}


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_names_are_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(["one", "two [2]"], None)
    assert capsys.readouterr().out == "one\ntwo [2]\n"


def test_an_answer_without_content_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(None, None)
    show_json(None)
    assert capsys.readouterr().out == ""


def test_inner_objects_and_lists_are_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    show(STATS, None)
    shown = lines(capsys)
    assert ["msgRateIn", "1.25"] in shown and ["durable", "true"] in shown and ["none", "-"] in shown
    assert ["name", "type", "msgBacklog"] in shown and ["s1", "Shared", "7"] in shown
    assert ["p[1]", "a:1"] in shown


def test_a_table_chooses_what_is_shown_and_json_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    show(STATS, Table(("msgRateIn", "missing"), {"subscriptions": ("msgBacklog",)}))
    shown = lines(capsys)
    assert ["s1", "7"] in shown and not any("hidden" in line or "Shared" in line for line in shown)
    show_json(STATS)
    assert json.loads(capsys.readouterr().out) == STATS


def test_objects_that_hold_nothing_are_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    show({"policies": {"one": {}, "two": {}}, "quotas": {}}, None)
    assert lines(capsys) == [["policies", '{"one":', "{},", '"two":', "{}}"], ["quotas", "{}"]]


def test_a_list_of_objects_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"id": "1:2", "content": "a"}, {"id": "1:3"}], None)
    assert lines(capsys)[-2:] == [["1:2", "a"], ["1:3", "-"]]


def test_single_values_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for value in (3, "ok", True, 0.5):
        show(value, None)
    assert capsys.readouterr().out == "3\nok\ntrue\n0.5\n"
