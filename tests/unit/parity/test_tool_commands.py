"""Requests of `pulsar-admin` as lines of a recording, and back."""

import json
import time

import pytest

from parity.normalizing import Names
from parity.tool.commands import Request, Symbols, printed_only
from parity.transcript import Transcript

JSON = "application/json"


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "/admin/v2/persistent/parity/a/topic/stats?x=false", "", JSON),
        Request("POST", "/admin/v2/namespaces/parity/a/replication", '["standalone"]', JSON),
        Request("PUT", "/admin/v2/persistent/parity/a/t/partitions", "2", "application/vnd.partitioned+json"),
        Request("GET", "/admin/v2/persistent/parity/a/t/ledger/7/entry/3", "", JSON),
        Request("PUT", "/a", '{"ledgerId":9223372036854775807,"entryId":-1}', JSON),
        Request("PUT", "/a", '{"ledgerId":-1,"entryId":-1}', JSON),
    ],
)
def test_a_request_is_read_back_from_its_line(request_: Request) -> None:
    symbols = Symbols(Names(), "parity/a")
    assert symbols.request(symbols.line(request_)) == request_


def test_a_request_is_sent_with_the_namespace_ledger_and_time_of_another_server() -> None:
    there, here = Symbols(Names(), "parity/a"), Symbols(names := Names(), "parity/a-run-2")
    hour_ago_ms = int((time.time() - 3600) * 1000)
    names.ledger(55)
    lines = [
        there.line(Request("POST", f"/v2/parity/a/t/subscription/s/resetcursor/{hour_ago_ms}", "", JSON)),
        there.line(Request("POST", "/v2/parity/a/t/subscription/s/resetcursor", '{"ledgerId":7,"entryId":1}', JSON)),
    ]
    assert lines[0] == "> POST /v2/{ns}/t/subscription/s/resetcursor/{now-3600}"
    moved, reset = (here.request(line) for line in lines)
    target, _, sent_ms = moved.target.rpartition("/")
    assert target == "/v2/parity/a-run-2/t/subscription/s/resetcursor"
    assert abs(int(sent_ms) - hour_ago_ms) < 60_000
    assert json.loads(reset.body) == {"ledgerId": 55, "entryId": 1}


def test_what_a_command_printed_is_compared_apart_from_the_answers() -> None:
    recorded = Transcript.parse("-- head\n\n== pulsar-admin x\n> GET /x\nstatus 200\n# | one\n# text: two\n")
    assert [step.compared for step in printed_only(recorded).steps] == [["one"]]
    assert recorded.steps[0].compared == ["> GET /x", "status 200"]
