"""Where one scenario plays: a server, a namespace of its own, and the transcript.

Each call that takes a `label` is a step of the transcript. The rest does what it says and notes nothing.
"""

import contextlib
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pulsar
from google.protobuf.message import Message as ProtobufMessage

import magnetar
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.frames import Frame
from magnetar.protocol.pulsar_pb2 import MessageMetadata

from .answers import Answer, answer_lines, parsed
from .normalizing import Names, command_lines, comment
from .peer import Ended, Peer, content_of, kind_of
from .tool.commands import Commands, Symbols, label_of, run_lines
from .transcript import Transcript

TENANT = "parity"
RECEIVE_MS = 15_000
NOTHING_MS = 300
OPERATION_S = 15

_TIMES = {"publish_time", "deliver_at_time"}


class Server(NamedTuple):
    """A running server."""

    broker_url: str
    admin_url: str


class Stage:
    """See the module. `name` is the scenario's. Close it, and everything that it opened ends."""

    def __init__(self, server: Server, name: str, head: str, commands: Commands) -> None:
        self.transcript = Transcript(head)
        self.names = Names()
        self._server = server
        self._commands = commands
        self._resources = contextlib.ExitStack()
        self.namespace = ""
        """`tenant/namespace`, of this scenario alone."""
        self.namespace = self._create_namespace(name)

    def close(self) -> None:
        """End clients and connections."""
        self._resources.close()

    # -- what a scenario begins with -----------------------------------------------------------------------------------

    def topic(self, name: str = "topic", *, domain: str = "persistent") -> str:
        """The full name of a topic in this scenario's namespace."""
        return f"{domain}://{self.namespace}/{name}"

    def found_topic(self, name: str = "topic", *, domain: str = "persistent") -> str:
        """The same, looked up: Pulsar's broker takes raw commands only for topics that somebody has looked up."""
        self.admin("GET", f"/lookup/v2/topic/{domain}/{{ns}}/{name}")
        return self.topic(name, domain=domain)

    def client(self, **options: Any) -> pulsar.Client:
        """A new official client."""
        options.setdefault("operation_timeout_seconds", OPERATION_S)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        made = pulsar.Client(self._server.broker_url, logger=logger, **options)
        self._resources.callback(_close_quietly, made)
        return made

    def own_client(self, **options: Any) -> magnetar.Client:
        """A new client of Magnetar's own, on either server."""
        options.setdefault("operation_timeout_seconds", OPERATION_S)
        return self._resources.enter_context(magnetar.Client(self._server.broker_url, **options))

    def peer(self, *, connect: bool = True, **fields: Any) -> Peer:
        """A new connection of raw frames, with its CONNECT answered."""
        address = urlsplit(self._server.broker_url)
        made = Peer(address.hostname or "", address.port or 0)
        self._resources.callback(made.close)
        if connect:
            made.connect(**fields)
        return made

    # -- the official client -------------------------------------------------------------------------------------------

    def step(self, label: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call something, and note what it returns or raises. Returns None if it raises."""
        return self._note(label, lambda: function(*arguments, **options))

    def receive(
        self, label: str, consumer: Any, count: int = 1, *, acknowledge: bool = False, timeout_ms: int = RECEIVE_MS
    ) -> list[Any]:
        """Note the next `count` messages of a consumer or reader, in order. Fewer are noted as `missing`."""
        step = self.transcript.step(label)
        got: list[Any] = []
        take = consumer.receive if hasattr(consumer, "receive") else consumer.read_next
        while len(got) < count:
            try:
                got.append(take(timeout_ms))
            except (pulsar.Timeout, magnetar.Timeout):
                step.lines.append(f"missing: {count - len(got)}")
                break
            step.lines.append(self._message(got[-1]))
            if acknowledge:
                consumer.acknowledge(got[-1])
        return got

    def nothing(self, label: str, consumer: Any, within_ms: int = NOTHING_MS) -> None:
        """Note that no message comes, or which one does."""
        self.receive(label, consumer, 1, timeout_ms=within_ms)

    # -- raw frames ----------------------------------------------------------------------------------------------------

    def ask(self, label: str, peer: Peer, command: Any) -> Any:
        """Send a request, note the answer, and return its content; None if the connection ended."""
        return self._frame_step(label, lambda: peer.request(command))

    def next_frame(self, label: str, peer: Peer, kind: int | None = None) -> Any:
        """Note the next frame, or the next one of a type, and return its content."""
        return self._frame_step(label, lambda: peer.next_frame(kind))

    def settle(self, label: str, peer: Peer) -> list[Any]:
        """Note everything that came until the server answered a ping."""
        step = self.transcript.step(label)
        try:
            frames = peer.settle()
        except Ended:
            step.lines.append("the server closed the connection")
            return []
        step.lines += [line for frame in frames for line in self._frame_lines(frame)] or ["nothing"]
        return [content_of(frame) for frame in frames]

    def ends(self, label: str, peer: Peer) -> None:
        """Note whether the server closes the connection."""
        ended = peer.ends()
        self.transcript.step(label).lines.append("the server closed the connection" if ended else "it stays open")

    # -- the admin -----------------------------------------------------------------------------------------------------

    def http(
        self,
        label: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        only: Iterable[str] | None = None,
        content_type: str = "application/json",
        headers: str = "",
    ) -> Any:
        """Note status and body of a request, and return the body. In `path`, `{ns}` is the namespace.

        `only` says which fields of the body, `headers` how the names of headers begin: see `answer_lines`.
        """
        answer = self.admin(method, path, body, content_type=content_type)
        self.transcript.step(label).lines += answer_lines(self.names, answer, only, headers)
        return answer.body

    def admin(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Answer:
        """Ask the admin, and note nothing."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        target = self._server.admin_url + quote(path.replace("{ns}", self.namespace), safe="/?=&%")
        request = urllib.request.Request(target, data, method=method, headers={"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Answer(response.status, parsed(response.read()), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, parsed(error.read()), dict(error.headers))

    def pulsar_admin(self, words: str, *, only: Iterable[str] | None = None, **values: str) -> Any:
        """Run a command of Pulsar's `pulsar-admin`. Note its requests, the answers, and what it prints.

        `{ns}` in the words is the namespace, other names in braces are in `values`. `only` says which fields of
        answers: see `answer_lines`. Returns the body of the last answer.
        """
        label = label_of(words)
        place = len(self.transcript.steps)
        symbols = Symbols(self.names, self.namespace)
        run = self._commands.run(words, place, values, symbols)
        self.transcript.step(label).lines += run_lines(self.names, symbols, run, only)
        return run.exchanges[-1].answer.body if run.exchanges else None

    @contextlib.contextmanager
    def file(self, text: str) -> Iterator[str]:
        """The path of a file with a text, for a command that reads one."""
        with tempfile.NamedTemporaryFile("w", prefix="parity-", suffix=".json") as made:
            made.write(text)
            made.flush()
            yield made.name

    def stats(self, topic: str = "topic") -> Any:
        """The statistics of a topic, to wait for something."""
        return self.admin("GET", f"/admin/v2/persistent/{{ns}}/{topic}/stats").body

    # -- anything else -------------------------------------------------------------------------------------------------

    def note(self, label: str, value: Any) -> None:
        """Note a value."""
        self._note(label, lambda: value)

    def until(self, condition: Callable[[], Any], within_s: float = 15.0) -> Any:
        """Wait until a condition holds, which is looked at often. Returns what it returned."""
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "the condition does not hold in time"
            time.sleep(0.02)
        return found

    # -- inside --------------------------------------------------------------------------------------------------------

    def _create_namespace(self, name: str) -> str:
        """One that does not exist yet: a server may be recorded from more than once."""
        self.admin("PUT", f"/admin/v2/tenants/{TENANT}", {"adminRoles": [], "allowedClusters": self._clusters()})
        wanted = f"{TENANT}/{name}"
        for number in range(1, 1000):
            made = wanted if number == 1 else f"{wanted}-run-{number}"
            answer = self.admin("PUT", f"/admin/v2/namespaces/{made}", {})
            if answer.status == 204:
                if made != wanted:
                    self.names.learn(made, wanted)
                return made
            assert answer.status == 409, answer
        raise AssertionError("too many namespaces")

    def _clusters(self) -> Any:
        return self.admin("GET", "/admin/v2/clusters").body

    def _note(self, label: str, call: Callable[[], Any]) -> Any:
        step = self.transcript.step(label)
        try:
            value = call()
        except Exception as error:
            step.lines.append(f"error {type(error).__name__}")
            step.lines += comment(self.names, str(error))
            return None
        step.lines += self._lines(value)
        return value

    def _frame_step(self, label: str, call: Callable[[], Frame]) -> Any:
        step = self.transcript.step(label)
        try:
            frame = call()
        except Ended:
            step.lines.append("the server closed the connection")
            return None
        step.lines += self._frame_lines(frame)
        return content_of(frame)

    def _frame_lines(self, frame: Frame) -> list[str]:
        lines = [*command_lines(self.names, kind_of(frame), content_of(frame))]
        if frame.entry is not None:
            metadata, payload = parse_entry(frame.entry)
            lines.append(f"  payload {self.names.bytes_(bytes(payload))} {_metadata_text(metadata)}".rstrip())
        return lines

    def _lines(self, value: Any) -> list[str]:
        if isinstance(value, pulsar.Producer | magnetar.Producer):
            if _is_made_up(value.producer_name()):
                self.names.learn_generated(value.producer_name())
            return [
                f"producer name={self.names.text(value.producer_name())} last_sequence_id={value.last_sequence_id()}"
            ]
        if isinstance(value, pulsar.Consumer | magnetar.Consumer):
            return [f"consumer subscription={value.subscription_name()} topic={self.names.text(value.topic())}"]
        if isinstance(value, pulsar.Reader | magnetar.Reader):
            return ["reader"]
        if isinstance(value, pulsar.Message | magnetar.Message):
            return [self._message(value)]
        if isinstance(value, ProtobufMessage):
            return [*command_lines(self.names, type(value).__name__, value)]
        return [self._plain(value)]

    def _plain(self, value: Any) -> str:
        if hasattr(value, "ledger_id"):
            return self.id_text(value)
        if isinstance(value, bytes):
            return self.names.bytes_(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self._plain(one) for one in value) + "]"
        if isinstance(value, str):
            return json.dumps(self.names.text(value), ensure_ascii=False)
        return "done" if value is None else str(value)

    def id_text(self, message_id: Any) -> str:
        """An id of the official client: `ledger:entry:partition:batch index`."""
        entry = message_id.entry_id()
        entry = "max" if entry == (1 << 63) - 1 else entry
        ledger = self.names.ledger(message_id.ledger_id())
        return f"{ledger}:{entry}:{message_id.partition()}:{message_id.batch_index()}"

    def _message(self, message: Any) -> str:
        shown = [self.names.bytes_(message.data()), self.id_text(message.message_id())]
        shown.append(f"redelivered={message.redelivery_count()}")
        if message.partition_key():
            shown.append(f"key={message.partition_key()}")
        if message.ordering_key():
            shown.append(f"ordering_key={message.ordering_key()}")
        if message.properties():
            properties = {name: self.names.text(value) for name, value in sorted(message.properties().items())}
            shown.append(f"properties={properties}")
        if message.event_timestamp():
            shown.append(f"event_time={message.event_timestamp()}")
        if not message.publish_timestamp():
            shown.append("without publish time")
        return " ".join(shown)


def _metadata_text(metadata: MessageMetadata) -> str:
    shown = {field.name: value for field, value in metadata.ListFields() if field.name not in _TIMES}
    return " ".join(f"{name}={value!r}" for name, value in shown.items())


def _is_made_up(name: str) -> bool:
    return name.count("-") >= 2 and name.rpartition("-")[2].isdigit()


def _close_quietly(client: pulsar.Client) -> None:
    with contextlib.suppress(pulsar.PulsarException):
        client.close()
