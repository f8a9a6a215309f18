"""The package's public names: each leads somewhere, and those of the official client have its meaning."""

import subprocess
import sys

import pytest

import magnetar


@pytest.mark.parametrize("name", magnetar.__all__)
def test_every_public_name_leads_somewhere(name: str) -> None:
    assert getattr(magnetar, name) is getattr(magnetar, name)
    assert name in dir(magnetar)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = magnetar.Nonsense


def test_code_for_the_official_client_catches_the_root_of_all_errors() -> None:
    assert magnetar.PulsarException is magnetar.MagnetarError
    assert issubclass(magnetar.Timeout, magnetar.PulsarException)


def test_names_of_the_official_client_are_there() -> None:
    official = {
        "AlreadyClosed", "Client", "CompressionType", "ConnectError", "Consumer", "ConsumerBusy", "ConsumerType",
        "InitialPosition", "Message", "MessageId", "PartitionsRoutingMode", "Producer", "ProducerBusy",
        "ProducerQueueIsFull", "PulsarException", "Reader", "Result", "Timeout", "TopicNotFound",
    }  # fmt: skip
    assert official <= set(magnetar.__all__)


def test_import_loads_nothing_but_the_face() -> None:
    """Instant, because it loads next to nothing: a measure that does not depend on how busy the machine is."""
    code = "import sys; before = set(sys.modules); import magnetar; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.check_output([sys.executable, "-P", "-c", code], text=True).split()
    ours = [name for name in loaded if name.startswith("magnetar")]
    assert ours == ["magnetar"] and len(loaded) < 12, loaded
