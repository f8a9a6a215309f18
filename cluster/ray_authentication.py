"""How this process authenticates to a Ray: without a token, or with which one.

A Ray asks for a token or it does not, and says so only when it refuses a call. Ray's own `ray.init` with an address
uses no token unless RAY_AUTH_MODE=token is set, and repeats a refused call for half a minute. `authenticate` asks one
question of Ray's GCS instead, which takes milliseconds.

A Ray of ours asks for a token that lies in the data directory (`own_token`). Ray would write one to
`~/.ray/auth_token`. From then on, each `ray start` of this user would ask for it, and refuse a plain `ray.init`.

What the user has set is left alone, and `forget` restores the environment.
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol.errors import ClusterError
from ..runtime.ray_calls import why_unreachable

if TYPE_CHECKING:
    from ray._raylet import AuthenticationTokenLoader

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"
VARIABLES = (MODE, TOKEN, TOKEN_FILE)
OWN_TOKEN = "ray-auth-token"
NOISE = b"gcs_client.cc"
"""In the line that Ray's C++ code prints when its GCS refuses the question."""

_before: dict[str, str | None] = {}
"""What this process has changed of its environment: the values before."""


def own_token(directory: Path) -> str:
    """The file with the token of a Ray that is started for this data directory, made if there is none.

    Returns "" where the user has chosen: no tokens at all, or another one.
    """
    if os.environ.get(MODE, "token").lower() != "token" or TOKEN in os.environ or TOKEN_FILE in os.environ:
        return ""
    path = directory / OWN_TOKEN
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_size:
            return str(path)
        descriptor = os.open(path, os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return str(path)


def use_token(token_file: str) -> None:
    """Authenticate with the token in this file from now on. "" means as Ray does by itself, with a token."""
    _set(MODE, "token")
    if token_file:
        _set(TOKEN, None)  # it would come before the file
        _set(TOKEN_FILE, token_file)
    _reload()


def forget() -> None:
    """Restore what `use_token` changed in the environment."""
    if not _before:
        return
    for name, value in _before.items():
        _put(name, value)
    _before.clear()
    _reload()


def authenticate(address: str) -> None:
    """Find out whether the Ray at `address` asks for a token, and use this user's token if it does.

    Raises ClusterError, in one line, when no Ray answers there, or when it asks for a token that this user has not.
    """
    if not address.rpartition(":")[2].isdecimal() or "/" in address:  # "auto", or of Ray Client: Ray resolves these
        return
    if problem := why_unreachable(address):
        raise ClusterError(
            f"no Ray answers at {address} ({problem}): check RAY_ADDRESS, or unset it to start a Ray here"
        )
    mode = os.environ.get(MODE)
    if TOKEN not in os.environ and TOKEN_FILE in os.environ and not os.access(os.environ[TOKEN_FILE], os.R_OK):
        raise ClusterError(f"{TOKEN_FILE}={os.environ[TOKEN_FILE]} cannot be read: set it to the file with the token")
    has_token = _loader().has_token(ignore_auth_mode=True)
    if mode == "token" and not has_token:
        raise ClusterError(_missing(address, f"{MODE}=token is set, but there is no token"))
    if _accepts(address):
        return
    if mode is not None and mode != "token":
        raise ClusterError(
            f"the Ray at {address} asks for a token, but {MODE}={mode} is set: unset it, or set {MODE}=token"
        )
    if not has_token:
        raise ClusterError(_missing(address, f"the Ray at {address} asks for a token, and there is none"))
    if mode is None:
        use_token("")
        if _accepts(address):
            return
        forget()
    raise ClusterError(
        f"the Ray at {address} refuses the token in {_place()}: set {TOKEN_FILE} to the file with its token"
    )


def how_to_authenticate() -> str:
    """The variables, beside RAY_ADDRESS, that another program needs to reach the Ray that this process has joined."""
    found = ""
    if os.environ.get(MODE) == "token":
        found = f" {MODE}=token"
        if TOKEN in os.environ:
            found += f" {TOKEN}=(the token of this Ray)"  # a secret is not printed
        elif TOKEN_FILE in os.environ:
            found += f" {TOKEN_FILE}={os.environ[TOKEN_FILE]}"
    return found


def _missing(address: str, what: str) -> str:
    return (
        f"{what} in ~/.ray/auth_token. Set {MODE}=token, and {TOKEN_FILE} to the file with the token of the Ray at "
        f"{address}"
    )


def _place() -> str:
    if TOKEN in os.environ:
        return TOKEN
    return os.environ.get(TOKEN_FILE) or "~/.ray/auth_token"


def _accepts(address: str) -> bool:
    """Whether the GCS answers this process, authenticated as its environment says. Raises ClusterError."""
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError, RaySystemError, RpcError

    try:
        with _without_noise():
            GcsClient(address=address)
    except AuthenticationError:
        return False
    except (RpcError, RaySystemError) as error:
        raise ClusterError(f"no Ray answers at {address} ({error}): check RAY_ADDRESS") from error
    return True


@contextmanager
def _without_noise() -> Generator[None]:
    """Drop the line that Ray's C++ code writes to the standard error when it is refused. Other lines appear after."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            lines.seek(0)
            for line in lines:
                if NOISE not in line:
                    os.write(2, line)


def _set(name: str, value: str | None) -> None:
    if os.environ.get(name) != value:
        _before.setdefault(name, os.environ.get(name))
        _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _loader() -> "AuthenticationTokenLoader":
    from ray._raylet import AuthenticationTokenLoader

    return AuthenticationTokenLoader.instance()


def _reload() -> None:
    """Have Ray read the environment again. It does so only once, when it is imported."""
    if "ray" not in sys.modules:
        return
    from ray._raylet import Config

    Config.initialize("")
    _loader().reset_cache()
