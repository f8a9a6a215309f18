"""Single messages by the admin: peeking, examining, by id, and ids by time."""

import pulsar

from ..registry import scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"
MISSING = "/admin/v2/persistent/{ns}/none-such"
VOLATILE = "/admin/v2/non-persistent/{ns}/topic"
OURS = "x-pulsar"


def _filled(stage: Stage) -> list[pulsar.MessageId]:
    client = stage.client()
    client.subscribe(stage.topic(), "s").close()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    names = ("one", "two", "three")
    return [
        producer.send(b"message " + name.encode(), {"a": "b"}, partition_key=name, event_timestamp=5) for name in names
    ]


@scenario()
def messages_of_a_backlog_are_peeked_at(stage: Stage) -> None:
    """By their number from the subscription's place on, with the headers of each."""
    _filled(stage)
    peek = f"{TOPIC}/subscription/s/position"
    stage.http("the first", "GET", f"{peek}/1", headers=OURS)
    stage.http("the third", "GET", f"{peek}/3", headers=OURS)
    stage.http("behind the end", "GET", f"{peek}/4")
    stage.admin("POST", f"{TOPIC}/subscription/s/skip/1")
    stage.http("the first after one was skipped", "GET", f"{peek}/1")
    stage.http("number nought", "GET", f"{peek}/0")
    stage.http("a number that is a text", "GET", f"{peek}/first")
    stage.http("of a missing subscription", "GET", f"{TOPIC}/subscription/none/position/1")
    stage.http("of a missing topic", "GET", f"{MISSING}/subscription/s/position/1")
    stage.http("of a non-persistent topic", "GET", f"{VOLATILE}/subscription/s/position/1")


@scenario()
def messages_of_a_topic_are_examined(stage: Stage) -> None:
    """From the first or the last one on."""
    _filled(stage)
    path = f"{TOPIC}/examinemessage"
    stage.http("without a place", "GET", path)
    stage.http("the first", "GET", path + "?initialPosition=earliest&messagePosition=1", headers=OURS)
    stage.http("the last but one", "GET", path + "?initialPosition=latest&messagePosition=2")
    stage.http("beyond the end", "GET", path + "?initialPosition=earliest&messagePosition=9")
    stage.http("another place", "GET", path + "?initialPosition=middle&messagePosition=1")
    stage.http("of a missing topic", "GET", f"{MISSING}/examinemessage")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/empty")
    stage.http("of an empty topic", "GET", "/admin/v2/persistent/{ns}/empty/examinemessage")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 2)
    stage.http("of a partitioned topic", "GET", "/admin/v2/persistent/{ns}/parts/examinemessage")


@scenario()
def messages_are_found_by_id_and_by_time(stage: Stage) -> None:
    """By ledger and entry, and the id that a time belongs to."""
    ids = _filled(stage)
    ledger = ids[0].ledger_id()
    stage.http("by id", "GET", f"{TOPIC}/ledger/{ledger}/entry/{ids[1].entry_id()}", headers=OURS)
    stage.http("an entry that is not there", "GET", f"{TOPIC}/ledger/{ledger}/entry/99")
    stage.http("an entry below zero", "GET", f"{TOPIC}/ledger/{ledger}/entry/-5")
    stage.http("of a missing topic", "GET", f"{MISSING}/ledger/{ledger}/entry/0")
    place = [".ledgerId", ".entryId", ".partitionIndex"]
    stage.http("a time before all", "GET", f"{TOPIC}/messageid/1", only=place)
    stage.http("a time of a missing topic", "GET", f"{MISSING}/messageid/1")


@scenario()
def a_message_of_a_batch_is_examined(stage: Stage) -> None:
    """The headers of an entry of three messages."""
    client = stage.client()
    client.subscribe(stage.topic(), "s").close()
    producer = client.create_producer(
        stage.topic(), producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    sent: list[pulsar.MessageId] = []
    for number in range(3):
        producer.send_async(
            b"%d" % number, lambda _, place: sent.append(place), {"n": str(number)}, partition_key=f"k{number}"
        )
    producer.flush()
    stage.until(lambda: len(sent) == 3)
    stage.http("peeked at", "GET", f"{TOPIC}/subscription/s/position/1", headers=OURS)
