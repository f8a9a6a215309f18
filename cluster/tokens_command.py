"""`magnetar tokens`: make keys, and make, check and show tokens, with the names and options of `pulsar tokens`.

A key is written to a file that only its owner may read. The bytes of the file are the key, as in Pulsar, so a secret
key that was written with `--base64` is the text.
"""

import base64
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ..protocol.errors import ClusterError
from ..runtime.files import open_private
from .terminal.failures import clear_errors

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_AGE = re.compile(r"(\d{1,9})([smhdwy])")

tokens_app = typer.Typer(
    help="Make keys, and make, check and show tokens.", no_args_is_help=True, rich_markup_mode=None
)

SecretKey = Annotated[
    str | None, typer.Option("-sk", "--secret-key", metavar="FILE", help="The file of the secret key.")
]
PrivateKey = Annotated[
    str | None, typer.Option("-pk", "--private-key", metavar="FILE", help="The file of the private key.")
]
PublicKey = Annotated[
    str | None, typer.Option("-pk", "--public-key", metavar="FILE", help="The file of the public key.")
]
Token = Annotated[str | None, typer.Argument(help="The token. Better in a file, or on the standard input.")]
GivenTokenFile = Annotated[Path | None, typer.Option("-f", "--token-file", help="A file that has the token.")]
Stdin = Annotated[bool, typer.Option("-i", "--stdin", help="Read the token from the standard input.")]


@tokens_app.command()
def create_secret_key(
    algorithm: Annotated[str, typer.Option("-a", "--signature-algorithm", help="HS256, HS384 or HS512.")] = "HS256",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write. Without it the key is printed.")
    ] = None,
    as_base64: Annotated[bool, typer.Option("-b", "--base64", help="Write base64 in place of bytes.")] = False,
) -> None:
    """Make a secret key, which signs and checks tokens: the setting tokenSecretKey."""
    from .token_making import new_secret

    with clear_errors():
        key = new_secret(algorithm)
        content = base64.b64encode(key) if as_base64 else key
        if output is None:
            sys.stdout.buffer.write(content)
            return
        _write(output, content)
        print(f"the secret key is in {output}. Set tokenSecretKey=file://{output.absolute()}")


@tokens_app.command()
def create_key_pair(
    output_private_key: Annotated[Path, typer.Option("--output-private-key", help="The file of the private key.")],
    output_public_key: Annotated[Path, typer.Option("--output-public-key", help="The file of the public key.")],
    algorithm: Annotated[
        str, typer.Option("-a", "--signature-algorithm", help="RS…, PS… or ES…, with 256, 384 or 512.")
    ] = "RS256",
) -> None:
    """Make a private key, which signs tokens, and a public one, which checks them: the setting tokenPublicKey."""
    from .token_making import new_key_pair

    with clear_errors():
        private, public = new_key_pair(algorithm)
        _write(output_private_key, private)
        _write(output_public_key, public)
        print(
            f"the private key is in {output_private_key}, and the public key in {output_public_key}. Set "
            f"tokenPublicKey=file://{output_public_key.absolute()} and tokenPublicAlg={algorithm}"
        )


@tokens_app.command()
def create(
    subject: Annotated[str, typer.Option("-s", "--subject", help="The role.")],
    expiry_time: Annotated[
        str | None,
        typer.Option("-e", "--expiry-time", metavar="TIME", help="How long it holds, such as 90s, 12h, 30d or 1y."),
    ] = None,
    secret_key: SecretKey = None,
    private_key: PrivateKey = None,
    algorithm: Annotated[
        str | None, typer.Option("-a", "--signature-algorithm", help="By default HS256, RS256 or the curve's.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write. Without it the token is printed.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-hs", "--headers", metavar="NAME=VALUE", help="A header; repeat it for more.")
    ] = None,
) -> None:
    """Make a token of a role, and print it, or write it to a file."""
    from .token_making import signed

    with clear_errors():
        claims: dict[str, object] = {"sub": subject}
        if expiry_time is not None:
            claims["exp"] = int(time.time()) + seconds_of(expiry_time)
        more: dict[str, object] = {}
        for one in headers or ():
            name, _, value = one.partition("=")
            more[name] = value
        token = signed(claims, more, secret_key, private_key, algorithm)
        if output is None:
            print(token)
        else:
            _write(output, token.encode())


@tokens_app.command()
def validate(
    token: Token = None,
    token_file: GivenTokenFile = None,
    stdin: Stdin = False,
    secret_key: SecretKey = None,
    public_key: PublicKey = None,
    algorithm: Annotated[
        str, typer.Option("-a", "--signature-algorithm", help="With a public key: how the token is signed.")
    ] = "RS256",
) -> None:
    """Check the signature and the time of a token, and print what it says."""
    from .token_making import claims_of

    with clear_errors():
        text = _token_of(token, token_file, stdin=stdin)
        print(json.dumps(claims_of(text, secret_key, public_key, algorithm)))


@tokens_app.command()
def show(token: Token = None, token_file: GivenTokenFile = None, stdin: Stdin = False) -> None:
    """Print the header and the claims of a token, without checking them."""
    from .token_making import shown

    with clear_errors():
        header, claims = shown(_token_of(token, token_file, stdin=stdin))
        print(json.dumps(header))
        print("---")
        print(json.dumps(claims))


def seconds_of(text: str) -> int:
    """The seconds of a time such as `90s`, `12h`, `30d` or `1y`. Raises ClusterError."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ClusterError(f"{text!r} is no time: write a number and one of {', '.join(UNITS_S)}, such as 30d")
    return int(found[1]) * UNITS_S[found[2]]


def _token_of(token: str | None, file: Path | None, *, stdin: bool) -> str:
    if (token is not None) + (file is not None) + stdin != 1:
        raise ClusterError("pass one token: as an argument, with --token-file, or with --stdin")
    return (token or (file.read_text() if file is not None else sys.stdin.read())).strip()


def _write(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read. It must not exist."""
    try:
        descriptor = open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise ClusterError(f"{path} exists: a key is never written over. Take another name, or remove it") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
