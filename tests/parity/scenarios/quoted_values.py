"""Numbers and flags with quotes in the bodies of requests, of every kind that there is, and what is no number."""

from ..registry import scenario
from ..stage import Stage

WHOLE = (
    "7",
    '"7"',
    '" 7 "',
    '"+7"',
    "7.0",
    "1e2",
    '"1.5"',
    '"7.0"',
    '"x"',
    '"0x7"',
    "true",
    "[7]",
    '"99999999999999999999"',
)
REAL = ("7", '"7"', '"1.5"', '" .5 "', '"1e2"', '"x"', "true", "[7]")
FLAGS = ("true", '"true"', '"TRUE"', '" True "', '"false"', "1", "0", "2", '"tRue"', '"yes"', '"1"', "1.0", "[true]")
NAMESPACE = "/admin/v2/namespaces/{ns}"


@scenario()
def whole_numbers_may_have_quotes(stage: Stage) -> None:
    """As a body, as a field, as the number of partitions, and in a message id."""
    for value in WHOLE:
        for path, method in (("maxProducersPerTopic", "POST"), ("compactionThreshold", "PUT")):
            stage.http(f"{path} {value}", method, f"{NAMESPACE}/{path}", value.encode())
            stage.http(f"{path} is", "GET", f"{NAMESPACE}/{path}")
        body = f'{{"retentionTimeInMinutes": {value}, "retentionSizeInMB": {value}}}'
        stage.http(f"retention {value}", "POST", f"{NAMESPACE}/retention", body.encode())
        stage.http("retention is", "GET", f"{NAMESPACE}/retention")
        body = f'{{"limitSize": {value}, "limitTime": {value}, "policy": "producer_exception"}}'
        stage.http(f"quota {value}", "POST", f"{NAMESPACE}/backlogQuota", body.encode())
        stage.http("quota is", "GET", f"{NAMESPACE}/backlogQuotaMap", only=[".destination_storage.limitSize"])
    topic = "/admin/v2/persistent/{ns}/topic"
    stage.http("create", "PUT", topic)
    for number, value in enumerate(WHOLE):
        parts = f"/admin/v2/persistent/{{ns}}/parts-{number}/partitions"
        stage.http(f"partitions {value}", "PUT", parts, value.encode())
        body = f'{{"ledgerId": {value}, "entryId": -1}}'
        stage.http(f"message id {value}", "PUT", f"{topic}/subscription/s{number}", body.encode())
    stage.http("partitions are", "GET", "/admin/v2/persistent/{ns}/partitioned")


@scenario()
def other_numbers_and_flags_may_have_quotes(stage: Stage) -> None:
    """As a body and as a field."""
    for value in REAL:
        quorums = '"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": "1", "bookkeeperAckQuorum": 1'
        body = f'{{{quorums}, "managedLedgerMaxMarkDeleteRate": {value}}}'
        stage.http(f"rate {value}", "POST", f"{NAMESPACE}/persistence", body.encode())
        stage.http("rate is", "GET", f"{NAMESPACE}/persistence")
    for value in FLAGS:
        stage.http(f"flag {value}", "POST", f"{NAMESPACE}/deduplication", value.encode())
        stage.http("flag is", "GET", f"{NAMESPACE}/deduplication")
        stage.http(f"demand {value}", "POST", f"{NAMESPACE}/encryptionRequired", value.encode())
        stage.http("demand is", "GET", f"{NAMESPACE}/encryptionRequired")
        body = f'{{"active": {value}, "tickTime": "1000"}}'
        stage.http(f"field {value}", "POST", f"{NAMESPACE}/delayedDelivery", body.encode())
        stage.http("field is", "GET", f"{NAMESPACE}/delayedDelivery", only=[".active", ".tickTime"])


@scenario()
def texts_may_lack_quotes(stage: Stage) -> None:
    """Properties, and the policies of a new namespace."""
    for value in ('"x"', "1", "1.5", "true", "null", "[1]", '{"b": 1}'):
        stage.http(f"property {value}", "PUT", f"{NAMESPACE}/properties", f'{{"a": {value}}}'.encode())
        stage.http("properties are", "GET", f"{NAMESPACE}/properties")
        stage.http("clear", "DELETE", f"{NAMESPACE}/properties")
    body = b'{"max_producers_per_topic": "7", "deduplicationEnabled": "true", "message_ttl_in_seconds": " 8 "}'
    stage.http("a new namespace", "PUT", f"{NAMESPACE}-new", body)
    shown = [".max_producers_per_topic", ".deduplicationEnabled", ".message_ttl_in_seconds"]
    stage.http("its policies", "GET", f"{NAMESPACE}-new", only=shown)
