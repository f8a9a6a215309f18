"""The settings of TLS: which ports brokers have, and which settings do not fit each other."""

from typing import Any

import pytest

from magnetar.protocol.errors import SettingError
from magnetar.protocol.names import port_of_broker
from magnetar.runtime.settings.declarations import Settings

FILES: dict[str, Any] = {"tls_certificate_path": "c.pem", "tls_key_path": "k.pem"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"broker_port_tls": 6651}, "brokerServicePortTls needs a certificate"),
        ({"broker_tls_only": True, "tls_key_path": "k"}, "brokerServiceTlsOnly needs a certificate"),
        ({"admin_port_tls": 8443, "tls_certificate_path": "c"}, "webServicePortTls needs a certificate"),
        ({"admin_tls_only": True}, "webServiceTlsOnly needs a certificate"),
        (
            {"advertised_listeners": "a:pulsar+ssl://a:1", "bind_addresses": "a:pulsar+ssl://a:1"},
            r"bindAddresses with pulsar\+ssl:// needs a certificate",
        ),
        ({**FILES, "broker_tls_only": True, "broker_port_tls": 1}, "take brokerServicePortTls away"),
        ({**FILES, "admin_tls_only": True, "admin_port_tls": 1}, "take webServicePortTls away"),
        ({"tls_client_required": True}, "needs tlsTrustCertsFilePath"),
        ({"tls_client_required": True, "tls_trust_path": "t", "tls_insecure": True}, "set one of them"),
        ({"tls_protocols": "TLSv1.1"}, r"'TLSv1\.1': choose from TLSv1\.3, TLSv1\.2"),
        ({"tls_ciphers": "TLS_NOTHING"}, "tlsCiphers has 'TLS_NOTHING'"),
        (
            {
                **FILES,
                "advertised_listeners": "web:pulsar+proxy://a:1",
                "broker_tls_only": True,
                "tls_client_required": True,
                "tls_trust_path": "t",
            },
            "take no forwarded connection",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Settings(**settings)


def test_brokers_of_one_node_have_different_ports_with_and_without_tls() -> None:
    settings = Settings(**FILES, broker_port_tls=6651)
    secure = [settings.port_tls_of(f"broker-{number}") for number in range(1, 500)]
    plain = [port_of_broker(6650, number) for number in range(1, 500)]
    assert secure[:3] == [6651, 7652, 7653] and len({*secure, *plain}) == 998
    assert Settings().port_tls_of("broker-1") == 0
    with pytest.raises(SettingError, match="has no number"):
        settings.port_tls_of("broker")


def test_what_contexts_are_made_of_follows_from_the_settings() -> None:
    made = Settings(**FILES, tls_trust_path="t.pem", tls_protocols=" TLSv1.2 ", tls_refresh_s=0).server_tls()
    assert (made.trust, made.versions, made.refresh_s) == ("t.pem", ("TLSv1.2",), 1.0)
    assert Settings(**FILES, tls_trust_path="t.pem", tls_insecure=True).server_tls().trust == "", "nobody is asked"
    assert Settings().server_tls().versions == ("TLSv1.3", "TLSv1.2")
