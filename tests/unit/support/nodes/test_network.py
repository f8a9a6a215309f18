import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nodes.namespaces import reason_to_skip
from support.nodes.network import Cut, Host, Network

REASON = reason_to_skip()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
SILENCE_S = 0.2


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as made:
        for name in ("one", "two", "three"):
            made.add_host(name)
        yield made


def listening(host: Host) -> socket.socket:
    """A datagram socket of the host, which says what reaches it."""
    with host.network():
        found = socket.socket(type=socket.SOCK_DGRAM)
        found.bind((host.address, 0))
        found.settimeout(SILENCE_S)
        return found


def hears(source: Host, target: Host) -> bool:
    """Whether a packet of `source` reaches `target`."""
    with listening(source) as sender, listening(target) as receiver:
        sender.sendto(b"hello", receiver.getsockname())
        try:
            return receiver.recv(10) == b"hello"
        except TimeoutError:
            return False


@pytest.mark.parametrize(
    ("how", "out", "back"), [(Cut.BOTH_WAYS, False, False), (Cut.OUTGOING, False, True), (Cut.INCOMING, True, False)]
)
def test_a_cut_loses_the_packets_of_its_direction(network: Network, how: Cut, out: bool, back: bool) -> None:
    one, two, three = network.hosts
    network.cut(one, how)
    assert (hears(one, two), hears(two, one)) == (out, back)
    assert hears(two, three)
    network.heal(one)
    assert (hears(one, two), hears(two, one)) == (True, True)


def test_a_cut_between_two_hosts_leaves_others_alone(network: Network) -> None:
    one, two, three = network.hosts
    network.cut(one, of=two)
    assert (hears(one, two), hears(two, one)) == (False, False)
    assert (hears(one, three), hears(three, two)) == (True, True)
    network.heal_all()
    assert hears(one, two)


def test_each_host_has_a_directory_of_its_own_at_the_same_path(network: Network) -> None:
    one, two, _ = network.hosts
    one.namespaces.run("touch", f"{one.inside}/file")
    assert (one.directory / "file").exists()
    assert two.inside == one.inside
    assert two.namespaces.run("ls", str(two.inside)) == ""


@pytest.mark.parametrize("silently", [False, True])
def test_a_killed_host_comes_back_with_its_address_and_directory(network: Network, silently: bool) -> None:
    _, two, three = network.hosts
    with three.network():
        listener = socket.create_server((three.address, 0))
    port = listener.getsockname()[1]
    program = f"import socket; s = socket.create_connection(('{three.address}', {port})); s.send(b'x'); s.recv(1)"
    process = two.namespaces.popen(sys.executable, "-c", program)
    connection, _ = listener.accept()
    assert connection.recv(1) == b"x"
    two.kill(silently=silently)
    process.wait(10)
    connection.settimeout(SILENCE_S)
    if silently:
        with pytest.raises(TimeoutError):
            connection.recv(1)
    else:
        assert connection.recv(1) == b""
    connection.close()
    listener.close()
    two.start()
    assert hears(two, three) and hears(three, two)


def test_everything_ends_with_the_program_that_made_it() -> None:
    program = "\n".join(
        [
            "from support.nodes.network import Network",
            "network = Network()",
            "process = network.add_host('one').namespaces.popen('sleep', '1000')",
            "print(network.directory, network.hosts[0].namespaces.process_id, flush=True)",
            "input()",
        ]
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert killed.stdout is not None
    directory, first = killed.stdout.readline().split()
    gone = os.pidfd_open(int(first))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=10)
    assert select.select([gone], [], [], 10)[0], "the host outlived its program"
    os.close(gone)
    assert Path(directory).exists()
    with Network():
        assert not Path(directory).exists()
