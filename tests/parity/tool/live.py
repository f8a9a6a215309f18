"""Runs `pulsar-admin` itself: one Java process for many commands, and a proxy that takes notes between tool and server.

The process is Pulsar's own shell, whose command `admin` is `pulsar-admin`. It is asked through a pipe. A prompt is
printed when a command has ended.
"""

import contextlib
import http.client
import os
import queue
import re
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from ..answers import Answer, parsed
from ..servers import OracleError, java, maven_jars
from ..stage import Server
from .commands import Exchange, Request, Run, Symbols

TOOL_VERSION = "4.0.8"
HERE = Path(__file__).parent
START_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 60.0

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
_PROMPT = "default(127.0.0.1)> "
_NOT_PASSED_ON = {"connection", "host", "content-length", "transfer-encoding", "keep-alive", "accept-encoding"}


class Tap:
    """A proxy in front of an admin, which notes what passes."""

    def __init__(self, admin_url: str) -> None:
        self._address = urlsplit(admin_url).netloc
        self._noted: list[Exchange] = []
        tap = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                tap._pass_on(self)

            do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="tap", daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self) -> list[Exchange]:
        """What passed since the last call. The tool asks some questions side by side, so they are sorted."""
        noted, self._noted = self._noted, []
        if all(one.request.method == "GET" for one in noted):
            noted.sort(key=lambda one: one.request.target)
        return noted

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in _NOT_PASSED_ON}
        connection = http.client.HTTPConnection(self._address, timeout=COMMAND_TIMEOUT_S)
        try:
            connection.request(handler.command, handler.path, body or None, headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        content_type = handler.headers.get("Content-Type", "").partition(";")[0]
        request = Request(handler.command, handler.path, body.decode(), content_type)
        answer = Answer(response.status, parsed(data), dict(response.getheaders()))
        self._noted.append(Exchange(request, answer))
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _NOT_PASSED_ON:
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


class Shell:
    """Pulsar's shell in a process of its own, which asks the admin at a URL."""

    def __init__(self, admin_url: str, directory: Path) -> None:
        jars = maven_jars(HERE / "pom.xml", TOOL_VERSION, "PULSAR_TOOL_LIB", "pulsar-client-tools-4")
        configuration = directory / "client.conf"
        configuration.write_text(
            f"webServiceUrl={admin_url}/\nbrokerServiceUrl=pulsar://127.0.0.1:1\n"
            f"shellHistoryDirectory={directory}\nshellHistoryPersistEnabled=false\n"
        )
        command = [
            java(),
            "-Xmx256m",
            "-Dfile.encoding=UTF-8",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Djava.net.preferIPv4Stack=true",
        ]
        command += [f"-Duser.home={directory}", f"-Dlog4j2.configurationFile={HERE.parent / 'pulsar' / 'log4j2.xml'}"]
        command += ["-cp", f"{jars}/*", "org.apache.pulsar.shell.PulsarShell", "-c", str(configuration)]
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8"},
        )
        self._output: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="pulsar shell", daemon=True)
        self._thread.start()
        self._until_prompt(START_TIMEOUT_S)

    def ask(self, words: str) -> str:
        """Run a command and return what it printed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"admin {words}\n".encode())
        self._process.stdin.flush()
        return self._until_prompt(COMMAND_TIMEOUT_S)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            self._output.put(data.decode(errors="replace"))
        self._output.put("")

    def _until_prompt(self, timeout_s: float) -> str:
        said = ""
        while not _ESCAPES.sub("", said).endswith(_PROMPT):
            try:
                piece = self._output.get(timeout=timeout_s)
            except queue.Empty:
                raise OracleError(f"pulsar-admin did not come back within {timeout_s:.0f} s: {said}") from None
            if not piece:
                raise OracleError(f"pulsar-admin ended: {said}")
            said += piece
        return _ESCAPES.sub("", said).removesuffix(_PROMPT)


class Live:
    """Runs commands on a server. The tool is started with the first one."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._running = contextlib.ExitStack()
        self._started: tuple[Tap, Shell] | None = None

    def __enter__(self) -> "Live":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def run(self, words: str, place: int, values: Mapping[str, str], symbols: Symbols) -> Run:
        """Run a command of the tool."""
        if self._started is None:
            self._started = self._start()
        tap, shell = self._started
        tap.take()
        printed = shell.ask(words.format(ns=symbols.namespace, **values))
        exchanges = tap.take()
        assert exchanges, f"pulsar-admin {words} asks the server nothing; it prints: {printed}"
        return Run(exchanges, printed)

    def _start(self) -> tuple[Tap, Shell]:
        tap = Tap(self._server.admin_url)
        self._running.callback(tap.close)
        shell = Shell(tap.url, self._directory)
        self._running.callback(shell.close)
        return tap, shell
