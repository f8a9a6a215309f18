"""A listening socket for TLS: who gets in, who is told why not, and how many strangers there may be."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from magnetar.runtime import tls_listener
from magnetar.runtime.environment import Environment
from magnetar.runtime.sockets import acknowledged_bytes, probe_when_idle, unacknowledged_s
from magnetar.runtime.tls_contexts import ClientTls, ServerContexts, ServerTls, client_context
from magnetar.runtime.tls_listener import TlsListener
from support.files.certificates import PemPair, TestAuthority

LOOPS = pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
PLAIN_ANSWER = b"speak TLS"


class Echo(asyncio.Protocol):
    """Writes back what comes."""

    def __init__(self, made: "list[Echo]") -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._made.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class Plain(asyncio.Protocol):
    """Says that it speaks TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(PLAIN_ANSWER)  # type: ignore[attr-defined]
        transport.close()


@dataclass
class Kit:
    """A listener with its CA."""

    authority: TestAuthority
    pair: PemPair
    contexts: ServerContexts
    listener: TlsListener
    made: list[Echo] = field(default_factory=list)

    async def connect(self, **changes: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = client_context(ClientTls(**{"trust": self.authority.path, **changes}))
        host = "localhost" if context.check_hostname else None
        return await asyncio.open_connection(
            "127.0.0.1", self.listener.port, ssl=context, server_hostname=host or "127.0.0.1"
        )

    async def connect_without_tls(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port)


@contextlib.asynccontextmanager
async def listening(directory: Path, *, required: bool = False) -> AsyncIterator[Kit]:
    env = Environment.real(1)
    authority = TestAuthority(directory)
    pair = authority.issue("server")
    trust = authority.path if required else ""
    contexts = ServerContexts(
        env, ServerTls(pair.certificate, pair.key, trust, required, ("TLSv1.3", "TLSv1.2"), "", 300.0)
    )
    await contexts.open()
    made: list[Echo] = []
    listener = TlsListener(contexts, lambda: Echo(made), Plain)
    await listener.open("127.0.0.1", 0, backlog=100)
    try:
        yield Kit(authority, pair, contexts, listener, made)
        for one in made:
            one.transport.abort()  # type: ignore[attr-defined]
    finally:
        listener.close()
        await listener.wait_closed()
        env.close()


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main, 60))


def end(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@LOOPS
def test_bytes_go_both_ways_and_the_certificate_of_the_client_is_known(tmp_path, new_loop):
    async def main() -> None:
        async with listening(tmp_path, required=True) as kit:
            mine = kit.authority.issue("app", ())
            reader, writer = await kit.connect(certificate=mine.certificate, key=mine.key)
            writer.write(b"x" * 1_000_000)
            assert await reader.readexactly(1_000_000) == b"x" * 1_000_000
            (server,) = kit.made
            shown = server.transport.get_extra_info("peercert")
            assert ((("commonName", "app"),),) == shown["subject"]
            assert server.transport.get_extra_info("sslcontext") is kit.contexts.current
            end(writer)

    run(new_loop, main())


@LOOPS
def test_the_kernel_tells_of_a_connection_with_tls_as_of_any_other(tmp_path, new_loop):
    async def main() -> None:
        async with listening(tmp_path) as kit:
            reader, writer = await kit.connect()
            writer.write(b"in")
            assert await reader.readexactly(2) == b"in"
            transport = writer.transport
            probe_when_idle(transport, 7, 3, 2)
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert option == 7
            assert acknowledged_bytes(transport) is None and unacknowledged_s(transport) == 0.0
            kit.made[0].transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(bytes(64 << 20))
            async with asyncio.timeout(20):
                while not acknowledged_bytes(transport):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            end(writer)

    run(new_loop, main())


@LOOPS
def test_a_peer_without_tls_is_told(tmp_path, new_loop, caplog):
    async def main() -> None:
        async with listening(tmp_path) as kit:
            reader, writer = await kit.connect_without_tls()
            writer.write(b"\x00\x00\x00\x10nonsense")
            assert await reader.read(100) == PLAIN_ANSWER
            assert "does not speak TLS, but this port does" in caplog.text and not kit.made
            end(writer)

    run(new_loop, main())


@LOOPS
def test_a_peer_without_a_certificate_gets_nowhere(tmp_path, new_loop, caplog):
    async def main() -> None:
        async with listening(tmp_path, required=True) as kit:
            reader, writer = await kit.connect()  # in TLS 1.3 the client is done first
            assert await reader.read(1) == b""
            end(writer)
            assert "it shows no certificate, but tlsRequireTrustedClientCertOnConnect" in caplog.text
            assert not kit.made

    run(new_loop, main())


@LOOPS
def test_a_client_that_does_not_trust_the_ca_is_logged_in_plain_words(tmp_path, new_loop, caplog):
    async def main() -> None:
        async with listening(tmp_path) as kit:

            def connect() -> None:  # asyncio sends no alert
                with socket.create_connection(("127.0.0.1", kit.listener.port)) as plain:
                    client_context(ClientTls()).wrap_socket(plain, server_hostname="localhost")

            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(connect)
            async with asyncio.timeout(20):
                while "it does not trust the CA of this certificate" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(new_loop, main())


@LOOPS
def test_peers_that_say_nothing_are_ended_in_time(tmp_path, new_loop, monkeypatch, caplog):
    monkeypatch.setattr(tls_listener, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        async with listening(tmp_path) as kit:
            silent, writer = await kit.connect_without_tls()
            half, other = await kit.connect_without_tls()
            other.write(b"\x16\x03\x01")  # it begins a handshake, and stops
            assert await silent.read(10) == b"" and await half.read(10) == b""
            assert "did not end its TLS handshake" in caplog.text and not kit.made
            end(writer)
            end(other)

    run(new_loop, main())


@LOOPS
def test_more_strangers_than_allowed_end_the_oldest_and_keep_nobody_out(tmp_path, new_loop, monkeypatch):
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 5)

    async def main() -> None:
        async with listening(tmp_path) as kit:
            strangers = [await kit.connect_without_tls() for _ in range(12)]
            for reader, _ in strangers[:7]:
                assert await reader.read(1) == b"", "the oldest have given way"
            assert len(kit.listener._under_way) == 5
            reader, writer = await kit.connect()
            writer.write(b"in")
            assert await reader.readexactly(2) == b"in"
            assert len(kit.made) == 1
            for _, one in [*strangers, (reader, writer)]:
                end(one)

    run(new_loop, main())


@LOOPS
def test_probes_that_connect_and_leave_are_no_trouble(tmp_path, new_loop, caplog):
    async def main() -> None:
        async with listening(tmp_path) as kit:
            for _ in range(20):
                _, writer = await kit.connect_without_tls()
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(20):
                while kit.listener._under_way:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not [one for one in caplog.records if one.levelno >= logging.WARNING]

    run(new_loop, main())


def hello() -> bytes:
    """What a client begins a handshake with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def say_nonsense(kit: Kit, chance: random.Random, begin: bytes) -> None:
    """A handshake with wrong bytes, or a part of one, or other bytes, and one of three ends."""
    kind = chance.randrange(3)
    if kind == 0:
        said = b"\x16" + chance.randbytes(chance.randrange(400))
    elif kind == 1:
        said = begin[: chance.randrange(1, len(begin))]
    else:
        wrong = bytearray(begin)
        for _ in range(chance.randrange(1, 8)):
            wrong[chance.randrange(1, len(wrong))] = chance.randrange(256)
        said = bytes(wrong)
    reader, writer = await kit.connect_without_tls()
    writer.write(said)
    if chance.random() < 0.5:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(reader.read(10_000), 0.05)
    end(writer)


@LOOPS
def test_nonsense_in_handshakes_leaves_nothing_behind(tmp_path, new_loop):
    async def main() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        chance, begin = random.Random(7), hello()
        async with listening(tmp_path) as kit:
            await say_nonsense(kit, chance, begin)  # uvloop opens descriptors of its own when it needs them
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(10):
                await asyncio.gather(*(say_nonsense(kit, chance, begin) for _ in range(30)))
            async with asyncio.timeout(20):
                while kit.listener._under_way or len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not kit.made and not unhandled
            reader, writer = await kit.connect()
            writer.write(b"in")
            assert await reader.readexactly(2) == b"in"
            end(writer)

    run(new_loop, main())


@LOOPS
def test_a_closed_listener_gives_its_port_back_and_ends_strangers(tmp_path, new_loop):
    async def main() -> None:
        async with listening(tmp_path) as kit:
            port = kit.listener.port
            stranger, writer = await kit.connect_without_tls()
            reader, through = await kit.connect()
            through.write(b"in")
            assert await reader.readexactly(2) == b"in"
            kit.listener.close()
            await kit.listener.wait_closed()
            assert await stranger.read(1) == b""
            through.write(b"still")
            assert await reader.readexactly(5) == b"still", "whose handshake was done stays"
            server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", port)
            server.close()
            end(writer)
            end(through)

    run(new_loop, main())


@LOOPS
def test_a_taken_port_is_refused(tmp_path, new_loop):
    async def main() -> None:
        async with listening(tmp_path) as kit:
            other = TlsListener(kit.contexts, lambda: Echo([]), Plain)
            with pytest.raises(OSError, match="in use"):
                await other.open("127.0.0.1", kit.listener.port, backlog=1)

    run(new_loop, main())
