"""The contexts of TLS: made from files of PEM, and made again when a file has changed.

A server's `ServerContexts.current` is the context for the next connection. A connection keeps the context that it began
with. So a new certificate, key or list of trusted CAs counts for new connections, and none ends. Each change makes a
whole context, also so that no session of an older one can be resumed under CAs that are trusted no longer.

Files are read on a thread of `env.offload`. What counts is their content, because the time of a file says little: a
Kubernetes Secret is a link that is turned. New files may be cut off, or hold a key that does not fit, or a certificate
that has expired. Then the old context stays, and an error is logged, again every `ALARM_EVERY_S`. Such files are looked
at again soon: perhaps only one of two was replaced so far.

A client's context is asked for at each new connection, see `ClientContexts`.
"""

import asyncio
import hashlib
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

from ..protocol.errors import SettingError
from .environment import Environment

logger = logging.getLogger(__name__)

VERSIONS: Mapping[str, ssl.TLSVersion] = {"TLSv1.3": ssl.TLSVersion.TLSv1_3, "TLSv1.2": ssl.TLSVersion.TLSv1_2}
"""By Pulsar's names. Older ones are broken."""
ALARM_EVERY_S = 3_600.0
"""Files that cannot be used are logged again so often."""
AGAIN_S = 5.0
"""Files that could not be used are looked at again after so long."""
DAY_MS = 86_400_000
EXPIRES_SOON_MS = 7 * DAY_MS
FILE_MAX_BYTES = 4 << 20
"""A bundle of all public CAs has some 250 kB."""


class BadTlsFiles(Exception):
    """The files make no context. The text says which one, and why."""


@dataclass(frozen=True)
class ServerTls:
    """What a server's contexts are made of. `trust` is empty where clients are asked for no certificate."""

    certificate: str
    key: str
    trust: str
    client_required: bool
    versions: tuple[str, ...]
    ciphers: str
    refresh_s: float

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [path for path in (self.certificate, self.key, self.trust) if path]


class ServerContexts:
    """See the module. Nothing is read before `open`."""

    def __init__(self, env: Environment, tls: ServerTls) -> None:
        self._env = env
        self._tls = tls
        self._current: ssl.SSLContext | None = None
        self._read = ""
        """What the current context was made of."""
        self._expires_ms = 0
        self._told_ms = -DAY_MS
        """When the log has told of that last."""
        self._bad = ""
        """The files that made no context, and when that was logged."""
        self._alarmed_s = float("-inf")

    @property
    def current(self) -> ssl.SSLContext:
        """The context for the next connection."""
        assert self._current is not None, "open() comes first"
        return self._current

    async def open(self) -> None:
        """Make the first context. Raises SettingError for files that make none."""
        try:
            await self._look()
        except BadTlsFiles as error:
            raise SettingError(str(error)) from None
        self._tell_of_expiry()

    async def refresh(self) -> bool:
        """Look at the files once; whether the context is a new one. Raises nothing: it logs what cannot be used."""
        try:
            return await self._look()
        except BadTlsFiles as error:
            now_s = asyncio.get_running_loop().time()
            if str(error) != self._bad or now_s >= self._alarmed_s + ALARM_EVERY_S:
                self._bad, self._alarmed_s = str(error), now_s
                logger.error("new files for TLS are not used, and the old certificate stays: %s", error)
            return False

    async def run(self) -> None:
        """Look at the files again and again, until cancelled."""
        while True:
            refresh_s = self._tls.refresh_s
            await asyncio.sleep(min(refresh_s, AGAIN_S) if self._bad else refresh_s)
            try:
                await self.refresh()
                self._tell_of_expiry()
            except Exception:  # of any kind: without the next look a certificate would expire
                logger.exception("the files for TLS could not be looked at; the next look follows")

    def _tell_of_expiry(self) -> None:
        """Log a certificate that expires soon, or has expired: at once, and then once a day."""
        now_ms = self._env.clock.now_ms()
        if self._expires_ms - now_ms > EXPIRES_SOON_MS or now_ms < self._told_ms + DAY_MS:
            return
        self._told_ms = now_ms
        if self._expires_ms <= now_ms:
            text = "the certificate %s has expired: clients refuse it until you replace the file"
            logger.error(text, self._tls.certificate)
        else:
            days = (self._expires_ms - now_ms) / DAY_MS
            logger.warning("the certificate %s expires in %.1f days: replace the file", self._tls.certificate, days)

    async def _look(self) -> bool:
        read: str = await self._env.offload.run(_digest, self._env, self._tls.paths)
        if read == self._read:
            self._bad = ""  # the old files are back
            return False
        replaces = self._current is not None
        context, expires_ms = await self._env.offload.run(_server_context, self._env, self._tls)
        now_ms = self._env.clock.now_ms()
        if replaces and expires_ms <= now_ms < self._expires_ms:
            raise BadTlsFiles(f"the new certificate {self._tls.certificate} has expired: write a valid one")
        self._current, self._read, self._expires_ms, self._bad = context, read, expires_ms, ""
        self._told_ms = -DAY_MS
        if replaces:
            logger.info("new connections get the new certificate of %s", self._tls.certificate)
        return True


@dataclass(frozen=True)
class ClientTls:
    """What a client's contexts are made of. `trust` is empty for the CAs of the system."""

    trust: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    """Whether any certificate of the server will do."""
    host_name_checked: bool = True


SYSTEM_TLS = ClientTls()
"""Trusts the CAs of the system, and shows no certificate."""
TRUST_VARIABLE = "MAGNETAR_TLS_TRUST_CERTS_FILE_PATH"
CERTIFICATE_VARIABLE = "MAGNETAR_TLS_CERTIFICATE_FILE_PATH"
KEY_VARIABLE = "MAGNETAR_TLS_PRIVATE_KEY_FILE_PATH"


def tls_of_process(given: ClientTls = SYSTEM_TLS, environment: Mapping[str, str] = os.environ) -> ClientTls:
    """What is given, and for the files that are not given what the variables of this process say.

    So a task of Ray or Spark that is handed a URL only finds the files that its node has.
    """
    found = given
    if not given.trust:
        found = replace(found, trust=environment.get(TRUST_VARIABLE, ""))
    if not given.certificate:
        certificate, key = environment.get(CERTIFICATE_VARIABLE, ""), environment.get(KEY_VARIABLE, "")
        found = replace(found, certificate=certificate, key=key)
    return found


class ClientContexts:
    """The contexts of a client: `newest` is made again when a file has changed since."""

    def __init__(self, env: Environment, tls: ClientTls) -> None:
        self.tls = tls
        self._env = env
        self._context: ssl.SSLContext | None = None
        self._read = ""

    async def newest(self) -> ssl.SSLContext:
        """The context for the next connection. Raises BadTlsFiles."""
        tls = self.tls
        paths = [path for path in (tls.trust, tls.certificate, tls.key) if path]
        read = await self._env.offload.run(_digest, self._env, paths) if paths else ""
        if self._context is None or read != self._read:
            self._context = await self._env.offload.run(client_context, tls)
            self._read = read
        return self._context


def openssl_ciphers(names: str) -> str:
    """A list of cipher suites as OpenSSL takes it, from IANA's names or its own. Those of TLS 1.3 are left out.

    Raises ValueError that says which name is wrong.
    """
    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    by_name = {str(one["name"]): one for one in known.get_ciphers()}
    found: list[str] = []
    for name in (part.strip() for part in names.split(",") if part.strip()):
        if name in by_name and by_name[name]["protocol"] == "TLSv1.3":
            continue
        short = _openssl_name(name)
        if short not in by_name:
            raise ValueError(
                f"has {name[:100]!r}, which this OpenSSL does not have: look at `openssl ciphers -stdname`"
            )
        found.append(short)
    return ":".join(found)


def _openssl_name(name: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` is `ECDHE-RSA-AES256-GCM-SHA384` to OpenSSL."""
    exchange, separator, rest = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = rest.replace("AES_", "AES").replace("_", "-")
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("-SHA256")
    cipher = cipher.replace("-CBC-SHA", "-SHA")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """A context for connections to a server; blocks. Raises BadTlsFiles."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.insecure or not tls.host_name_checked:
        context.check_hostname = False
    if tls.insecure:
        context.verify_mode = ssl.CERT_NONE
    elif tls.trust:
        _trust(context, tls.trust)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.certificate:
        _identify(context, tls.certificate, tls.key)
    return context


def _server_context(env: Environment, tls: ServerTls) -> tuple[ssl.SSLContext, int]:
    """A context, and when its certificate expires, in milliseconds since the epoch. Raises BadTlsFiles."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [VERSIONS[name] for name in tls.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.options |= ssl.OP_NO_TICKET  # a ticket would outlive the CA that vouched for its client
    context.num_tickets = 0
    if tls.ciphers and (ciphers := openssl_ciphers(tls.ciphers)):
        context.set_ciphers(ciphers)
    _identify(context, tls.certificate, tls.key)
    if tls.trust:
        _trust(context, tls.trust)
        context.verify_mode = ssl.CERT_REQUIRED if tls.client_required else ssl.CERT_OPTIONAL
    return context, _expires_ms(env, tls.certificate)


def _identify(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key or None, password=_no_password)
    except OSError as error:  # of files, and of OpenSSL
        what = f"the certificate {certificate} with the key {key or certificate}"
        raise BadTlsFiles(f"{what} cannot be used: {_reason(error)}") from None
    except _Encrypted:
        raise BadTlsFiles(
            f"the key {key or certificate} is encrypted: write it without a password, readable by its user only"
        ) from None


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise BadTlsFiles(f"the trusted certificates {path} cannot be read: {_reason(error)}") from None


class _Encrypted(Exception):
    pass


def _no_password() -> NoReturn:
    """OpenSSL would ask at the terminal."""
    raise _Encrypted


def _reason(error: OSError) -> str:
    """OpenSSL's reasons in plain words."""
    known = {
        "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
        "NO_START_LINE": "there is no PEM in it",
        "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in PEM in it",
        "EE_KEY_TOO_SMALL": "its key is too short",
        "CA_KEY_TOO_SMALL": "the key of its CA is too short",
    }
    if isinstance(error, ssl.SSLError):
        return known.get(error.reason or "", error.reason or str(error) or "it is malformed PEM")
    return error.strerror or str(error)


def _expires_ms(env: Environment, path: str) -> int:
    """When the first certificate of a file expires. Raises BadTlsFiles."""
    from cryptography import x509  # slow to import, and most processes have no certificate

    try:
        certificate = x509.load_pem_x509_certificate(env.files.read_bytes(path))
    except (OSError, ValueError) as error:
        raise BadTlsFiles(f"the certificate {path} cannot be read: {error}") from None
    return round((certificate.not_valid_after_utc - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def _digest(env: Environment, paths: list[str]) -> str:
    """Tells the content of files apart. Raises BadTlsFiles."""
    found = hashlib.sha256()
    for path in paths:
        try:
            data = env.files.read_bytes(path)
        except OSError as error:
            raise BadTlsFiles(f"{path} cannot be read: {error.strerror or error}") from None
        if len(data) > FILE_MAX_BYTES:
            raise BadTlsFiles(f"{path} has {len(data):,} bytes, which are too many for certificates")
        found.update(len(data).to_bytes(8))
        found.update(data)
    return found.hexdigest()
