"""What becomes a symbol in a transcript, and what stays."""

from magnetar.protocol.pulsar_pb2 import CommandError, CommandProducerSuccess, CommandSendReceipt, MessageIdData
from parity.normalizing import Names, command_lines, json_lines


def test_ledgers_are_counted_in_the_order_in_which_they_are_seen() -> None:
    names = Names()
    assert [names.ledger(one) for one in (71, 5, 71, -1)] == ["L1", "L2", "L1", "-1"]
    assert names.position("5:3") == "L2:3"
    assert names.position("a:3") == "a:3"


def test_made_up_names_addresses_and_times_become_symbols_in_texts() -> None:
    names = Names()
    names.learn("parity/a-run-2", "parity/a")
    assert names.text("parity/a-run-2/t") == "parity/a/t"
    assert names.text("standalone-4-7 and standalone-4-8") == "<generated-1> and <generated-2>"
    assert names.text("standalone-4-8 at /127.0.0.1:6650") == "<generated-2> at <address>"
    assert names.text("since 2026-01-02T03:04:05.678Z") == "since <time>"


def test_a_body_is_one_line_for_each_value() -> None:
    body = {"b": [1, {"c": "x"}], "a": {}, "lastAckedTimestamp": 0, "connectedSince": "2026", "msgRateIn": 1.5}
    assert list(json_lines(Names(), body)) == [
        ".a = {}",
        ".b[0] = 1",
        '.b[1].c = "x"',
        ".connectedSince = <time>",
        ".lastAckedTimestamp = 0",
        ".msgRateIn = <rate>",
    ]
    assert list(json_lines(Names(), 7)) == ["body = 7"]


def test_a_command_shows_what_differs_from_defaults_and_its_text_apart() -> None:
    names = Names()
    error = CommandError(request_id=3, error="ProducerBusy", message="it is busy\nat a.b.C")
    assert list(command_lines(names, "ERROR", error)) == ["ERROR error=ProducerBusy", "# text: it is busy"]
    success = CommandProducerSuccess(request_id=3, producer_name="p", last_sequence_id=-1)
    assert list(command_lines(names, "PRODUCER_SUCCESS", success)) == ['PRODUCER_SUCCESS producer_name="p"']
    receipt = CommandSendReceipt(producer_id=1, sequence_id=2, message_id=MessageIdData(ledgerId=9, entryId=4))
    assert list(command_lines(names, "SEND_RECEIPT", receipt)) == [
        "SEND_RECEIPT producer_id=1 sequence_id=2 message_id=L1:4:-1:-1"
    ]
