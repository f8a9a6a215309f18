"""Which address a client is told, and which broker it means by an address."""

import pytest

from magnetar.actors.members.broker_addresses import Reach, addressed, reach, target_address
from magnetar.actors.members.contracts_coordinator import BrokerInfo
from magnetar.protocol.cluster_status import MemberData
from magnetar.protocol.errors import NoSuchListener, ServiceUnitNotReady

URL = "pulsar://10.0.0.1:6650"
DATA: MemberData = {
    "url": URL,
    "listeners": {"internal": URL, "outside": "pulsar://b1.example.com:31001", "web": "pulsar+proxy://example.com:80"},
}
BROKERS = [
    BrokerInfo("broker-2", "2", "10.0.0.2", 6651, "pulsar://10.0.0.2:6651", {}),
    BrokerInfo("broker-1", "1", "10.0.0.1", 6650, URL, DATA),
]


def test_a_client_without_a_listener_gets_the_internal_url_of_any_broker() -> None:
    assert reach(BROKERS, URL, "") == Reach(URL)
    assert reach([], "pulsar://gone:1", "") == Reach("pulsar://gone:1")


def test_a_client_of_a_listener_gets_its_url_or_is_forwarded() -> None:
    assert reach(BROKERS, URL, "internal") == Reach(URL)
    assert reach(BROKERS, URL, "outside") == Reach("pulsar://b1.example.com:31001")
    assert reach(BROKERS, URL, "web") == Reach(URL, through_proxy=True)


def test_a_listener_that_the_owner_lacks_is_not_ready() -> None:
    for url in (URL, "pulsar://10.0.0.2:6651"):
        with pytest.raises(NoSuchListener):
            reach(BROKERS, url, "nobody")
    with pytest.raises(ServiceUnitNotReady) as gone:
        reach(BROKERS, "pulsar://gone:1", "outside")
    assert not isinstance(gone.value, NoSuchListener)


@pytest.mark.parametrize(
    ("text", "means_it"),
    [
        ("10.0.0.1:6650", True),
        ("pulsar://10.0.0.1:6650", True),
        ("B1.example.com:31001", True),
        ("10.0.0.1:6651", False),
        ("example.com:80", False),  # any broker may answer there
        ("10.0.0.2:6650", False),
    ],
)
def test_a_broker_is_meant_by_its_direct_addresses_only(text: str, means_it: bool) -> None:
    assert addressed(DATA, URL, target_address(text)) is means_it


@pytest.mark.parametrize("text", ["", "a", "a:0", "http://a:1", "a:1/b", "::1:5", "a:99999999999999999999"])
def test_what_is_no_address_of_a_broker(text: str) -> None:
    with pytest.raises(ValueError):
        target_address(text)


def test_a_malformed_url_of_another_broker_matches_nothing() -> None:
    assert not addressed({"url": "pulsar://", "listeners": {"a": "pulsar://x"}}, "pulsar://", ("x", 6650))


URL_TLS = "pulsar+ssl://10.0.0.3:6651"
WITH_TLS: MemberData = {
    "url": "pulsar://10.0.0.3:6650",
    "url_tls": URL_TLS,
    "listeners": {"outside": "pulsar://b3.example.com:1", "web": "pulsar+proxy://example.com:80"},
    "listeners_tls": {"outside": "pulsar+ssl://b3.example.com:2", "secure": "pulsar+ssl://b3.example.com:3"},
}
BOTH = BrokerInfo("broker-3", "3", "10.0.0.3", 6650, "pulsar://10.0.0.3:6650", WITH_TLS)
ONLY = BrokerInfo("broker-4", "4", "10.0.0.4", 6653, "pulsar+ssl://b4:1", {"url_tls": "pulsar+ssl://b4:1"})


def test_a_client_is_told_the_addresses_with_and_without_tls() -> None:
    assert reach([BOTH], BOTH.url, "") == Reach(BOTH.url, URL_TLS)
    assert reach([BOTH], BOTH.url, "outside") == Reach("pulsar://b3.example.com:1", "pulsar+ssl://b3.example.com:2")
    assert reach([BOTH], BOTH.url, "secure") == Reach("", "pulsar+ssl://b3.example.com:3")
    assert reach([ONLY], ONLY.url, "") == Reach("", ONLY.url)
    assert reach([], "pulsar+ssl://gone:1", "") == Reach("", "pulsar+ssl://gone:1")


def test_a_forwarded_client_with_tls_gets_a_name_of_the_owner_in_any_case() -> None:
    assert reach([BOTH], BOTH.url, "web").with_tls() == Reach(BOTH.url, URL_TLS, through_proxy=True)
    without = reach(BROKERS, URL, "web").with_tls()
    assert without == Reach(URL, "pulsar+ssl://10.0.0.1:6650", through_proxy=True)
    assert addressed(DATA, URL, target_address(without.url_tls)), "the broker that forwards knows the owner by it"
    assert reach(BROKERS, URL, "").with_tls() == Reach(URL), "a client that connects by itself needs a true one"


@pytest.mark.parametrize("text", ["pulsar+ssl://10.0.0.3:6651", "10.0.0.3:6651", "b3.example.com:3"])
def test_a_broker_is_meant_by_its_addresses_with_tls(text: str) -> None:
    assert addressed(WITH_TLS, BOTH.url, target_address(text)) and not addressed(DATA, URL, target_address(text))
