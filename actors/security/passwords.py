"""Names and passwords (Pulsar's method `basic`), in a file as `htpasswd` makes it.

A user's name is his role. Hashes are bcrypt, apr1 or SHA. A password as it is in the file is refused, as a hash that
nobody has. A change of the file counts after at most `LOOK_S`, for those who connect from then on.

Invariants:

- A name that does not exist takes as long as a wrong password for the dearest kind of hash in the file. So nobody
  learns which names there are, where all lines are of that kind.
- At most `CHECKS_MAX` hashes are computed at a time. For a client that has left none is. A password that was right is
  known for as long as its line stays, so clients that come back cost no hash.
"""

import asyncio
import base64
import binascii
import hmac
import logging

from passlib.context import CryptContext

from ...protocol.errors import AuthenticationError, ServiceUnitNotReady, SettingError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .credentials import Credential, Peer

logger = logging.getLogger(__name__)

LOOK_S = 10.0
FILE_MAX_BYTES = 16 << 20
CHECKS_MAX = 2
"""Passwords that are checked at a time: a hash is made to take long, and threads are few."""
CHECKS_WAITING_MAX = 256
RIGHT_MAX = 10_000
"""Passwords that are known to be right. The oldest is forgotten."""
DEAREST_FIRST = ("bcrypt", "apr_md5_crypt", "ldap_sha1")
HASHES = CryptContext([*DEAREST_FIRST])
"""What a line may have. Others do not count."""


class PasswordProvider:
    """See the module."""

    method = "basic"

    def __init__(self, env: Environment, settings: Settings) -> None:
        self._env = env
        self._path = settings.basic_auth_conf
        self._hashes: dict[str, str] = {}
        self._decoy = ""
        self._read_at = 0.0
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._waiting = 0
        self._salt = env.random.token(32)
        self._right: dict[tuple[str, str, bytes], None] = {}
        """Name, hash, and a digest of the password that no other process can make."""

    async def start(self) -> None:
        """Read the file. Raises SettingError."""
        if not self._path.startswith("/"):
            raise SettingError("the provider `basic` needs basicAuthConf, the absolute path of a file of `htpasswd`")
        try:
            await self._read()
        except (OSError, ValueError) as error:
            raise SettingError(f"the file of basicAuthConf cannot be read: {error}") from error
        if not self._hashes:
            raise SettingError(f"{self._path} has no user with a hash by bcrypt, apr1 or SHA")

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        """`data` is `name:password`. Raises AuthenticationError, and ServiceUnitNotReady where too many are checked."""
        name, separator, password = data.partition(b":")
        if not separator:
            raise AuthenticationError("the client sent no name:password")
        await self._look()
        user = name.decode(errors="replace")
        known = self._hashes.get(user)
        remembered = (user, known or "", hmac.digest(self._salt, password, "sha256"))
        if remembered in self._right:
            return Credential(user)
        if self._waiting >= CHECKS_WAITING_MAX:
            raise ServiceUnitNotReady("too many passwords are being checked: try again later")
        self._waiting += 1
        try:
            async with self._checks:
                if peer.has_left():
                    raise AuthenticationError("the client has left")
                right = await self._env.offload.run(_verify, password, known or self._decoy)
        finally:
            self._waiting -= 1
        if known is None or not right:
            raise AuthenticationError("the name or the password is wrong")
        self._right[remembered] = None
        if len(self._right) > RIGHT_MAX:
            del self._right[next(iter(self._right))]
        return Credential(user)

    async def _look(self) -> None:
        """Read the file again if it was not for a while. One that cannot be read changes nothing."""
        if asyncio.get_running_loop().time() < self._read_at + LOOK_S:
            return
        try:
            await self._read()
        except (OSError, ValueError) as error:
            logger.error("%s cannot be read again, so what it said before counts: %s", self._path, error)

    async def _read(self) -> None:
        self._read_at = asyncio.get_running_loop().time()
        content = await self._env.offload.run(self._env.files.read_bytes, self._path)
        if len(content) > FILE_MAX_BYTES:
            raise ValueError(f"{self._path} has {len(content)} bytes, and {FILE_MAX_BYTES} at most are read")
        self._hashes = hashes_of(content.decode())
        kinds = {kind: hashed for hashed in self._hashes.values() if (kind := HASHES.identify(hashed))}
        self._decoy = next((kinds[kind] for kind in DEAREST_FIRST if kind in kinds), "")


def hashes_of(text: str) -> dict[str, str]:
    """The hash of each user in a file of `htpasswd`."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, hashed = line.strip().partition(":")
        if not separator or not name or HASHES.identify(hashed) is None:
            logger.error(
                "line %d of the file of basicAuthConf is left out: it has no hash by bcrypt, apr1 or SHA", number
            )
            continue
        found[name] = hashed
    return found


def basic_header(value: str) -> bytes:
    """The `name:password` of an HTTP header `Authorization: Basic …`, of which `value` is the last word.

    Raises AuthenticationError.
    """
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError(
            "the header Authorization is malformed: Basic needs base64 of name:password"
        ) from None


def _verify(password: bytes, hashed: str) -> bool:
    try:
        return HASHES.verify(password, hashed)
    except ValueError:  # bcrypt takes no more than 72 bytes, and no NUL
        return False
