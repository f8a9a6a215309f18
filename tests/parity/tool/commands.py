"""One command of `pulsar-admin`: the requests that it sent, what was answered to each, and what it printed.

A recording has each request in a line that begins with `> `, and below it what Pulsar answered. `Replayed` sends these
requests again, so that no Java is needed. What the tool printed stands in lines that begin with `# | `: only
`make parity` compares them, since it runs the tool on both servers.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from ..answers import Answer, answer_lines, chosen, is_list_of_texts, parsed
from ..normalizing import LONG_MAX, Names, json_lines
from ..transcript import Step, Transcript

REQUEST = "> "
PRINTED = "# | "
JSON = "application/json"
MESSAGE_HEADERS = "x-pulsar-"
"""How the names of headers begin that tell of a message."""
TIMEOUT_S = 30.0
TIME_STEP_S = 60

_REQUEST = re.compile(r"> (?P<method>[A-Z]+) (?P<target>\S+)(?: \[(?P<type>[\w./+-]+)\])?(?: (?P<body>.*))?")
_LEDGER = re.compile(r'(/ledger/|"ledgerId":)(\d+)')
_LEDGER_SYMBOL = re.compile(r"\{(L\d+)\}")
_TIME = re.compile(r"(?<=/)(\d{13})(?=$|[/?])")
_POSITION = re.compile(r"(?<![\w.:-])\d+:-?\d+")
_LONG_TIME = re.compile(r"\b\d{13}\b")
_TIME_SYMBOL = re.compile(r"\{now([+-]\d+)\}")


class Request(NamedTuple):
    """What the tool sent. `target` is path and query, `content_type` that of the body."""

    method: str
    target: str
    body: str
    content_type: str


class Exchange(NamedTuple):
    """A request and the answer."""

    request: Request
    answer: Answer


class Run(NamedTuple):
    """What a command did. `printed` is None where nobody knows."""

    exchanges: list[Exchange]
    printed: str | None


class Symbols:
    """Writes requests so that they can be sent to another server: its namespace, ledgers and time differ."""

    def __init__(self, names: Names, namespace: str) -> None:
        self._names = names
        self.namespace = namespace

    def line(self, request: Request) -> str:
        """The line of a transcript."""
        kind = f" [{request.content_type}]" if request.body and request.content_type != JSON else ""
        body = f" {self._show(request.body)}" if request.body else ""
        return f"{REQUEST}{request.method} {self._show(request.target)}{kind}{body}"

    def request(self, line: str) -> Request:
        """The request of a line."""
        found = _REQUEST.fullmatch(line)
        assert found, f"this is no request: {line}"
        body = self._read(found["body"] or "")
        return Request(found["method"], self._read(found["target"]), body, found["type"] or JSON)

    def _show(self, text: str) -> str:
        text = text.replace(self.namespace, "{ns}")
        text = _LEDGER.sub(lambda one: one[1] + self._ledger(int(one[2])), text)
        return _TIME.sub(lambda one: f"{{now{_from_now_s(int(one[1])):+d}}}", text)

    def _ledger(self, ledger_id: int) -> str:
        return f"{{{self._names.ledger(ledger_id)}}}" if ledger_id < LONG_MAX else str(ledger_id)

    def _read(self, text: str) -> str:
        text = text.replace("{ns}", self.namespace)
        text = _LEDGER_SYMBOL.sub(lambda one: str(self._names.ledger_of(one[1])), text)
        return _TIME_SYMBOL.sub(lambda one: str(int((time.time() + int(one[1])) * 1000)), text)


def _from_now_s(time_ms: int) -> int:
    return round((time_ms / 1000 - time.time()) / TIME_STEP_S) * TIME_STEP_S


class Commands(Protocol):
    """Something that runs commands, or does what they did."""

    def run(self, words: str, place: int, values: Mapping[str, str], symbols: Symbols) -> Run:
        """Run a command, the words behind `pulsar-admin`. `place` is the number of its step.

        `values` are those of names in braces, which differ from server to server.
        """
        ...


class Replayed:
    """Sends the requests of a recording to the admin at a URL."""

    def __init__(self, recording: Transcript, admin_url: str) -> None:
        self._recording = recording
        self._admin_url = admin_url

    def run(self, words: str, place: int, values: Mapping[str, str], symbols: Symbols) -> Run:
        """Send what the tool sent for this command when it was recorded."""
        steps = self._recording.steps
        step = steps[place] if place < len(steps) else Step("nothing")
        assert step.label == label_of(words), f"the recording has {step.label!r} here: record the scenario again"
        requests = [symbols.request(line) for line in step.lines if line.startswith(REQUEST)]
        return Run([Exchange(one, send(self._admin_url, one)) for one in requests], None)


def label_of(words: str) -> str:
    """The label of the step of a command."""
    return f"pulsar-admin {words}"


def send(admin_url: str, request: Request) -> Answer:
    """Send a request as the tool does."""
    headers = {"Content-Type": request.content_type, "Accept": JSON}
    sent = urllib.request.Request(
        admin_url + request.target, request.body.encode() or None, method=request.method, headers=headers
    )
    try:
        with urllib.request.urlopen(sent, timeout=TIMEOUT_S) as response:
            return Answer(response.status, parsed(response.read()), dict(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, parsed(error.read()), dict(error.headers))


def run_lines(names: Names, symbols: Symbols, run: Run, only: Iterable[str] | None) -> Iterator[str]:
    """The lines of a transcript: requests, answers, and what was printed."""
    for request, answer in run.exchanges:
        yield symbols.line(request)
        yield from answer_lines(names, answer, only, MESSAGE_HEADERS)
    if run.printed is not None:
        if any(answer.status >= 400 for _, answer in run.exchanges):
            printed = ["an error"]  # its sentence is the server's
        else:
            printed = [*printed_lines(names, run.printed, only)]
        if all(is_list_of_texts(answer.body) for _, answer in run.exchanges):
            printed.sort()
        yield from (PRINTED + line for line in printed)


def printed_lines(names: Names, text: str, only: Iterable[str] | None) -> Iterator[str]:
    """What the tool printed: JSON field by field, or lines; of a table the rows of the fields that are asked for."""
    try:
        value = json.loads(text)
    except ValueError:
        lines = [_line(names, line.rstrip()) for line in text.splitlines() if line.strip()]
        if only is None or "" in only:
            yield from lines
        else:
            yield from sorted(line for line in lines if "." + line.split()[0] in only)
        return
    shown = sorted(value) if is_list_of_texts(value) else value
    yield from chosen(json_lines(names, shown), [names.text(one) for one in only] if only else None)


def _line(names: Names, text: str) -> str:
    text = _POSITION.sub(lambda one: names.position(one[0]), names.text(text))
    return _LONG_TIME.sub("<time>", text)


def printed_only(transcript: Transcript) -> Transcript:
    """A transcript of what the tool printed at each step, to be compared."""
    made = Transcript(transcript.head)
    for step in transcript.steps:
        made.step(step.label).lines += [line.removeprefix(PRINTED) for line in step.lines if line.startswith(PRINTED)]
    return made
