"""`magnetar tokens`: keys, and tokens that are made, checked and shown."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from magnetar.cluster.command_line import app
from magnetar.cluster.tokens_command import seconds_of
from magnetar.protocol.errors import ClusterError


def tokens(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["tokens", *map(str, arguments)], input=given)


@pytest.mark.parametrize("more", [(), ("--base64",), ("-a", "HS512")])
def test_a_secret_key_signs_and_checks(tmp_path: Path, more: tuple[str, ...]) -> None:
    key = tmp_path / "key"
    made = tokens("create-secret-key", "-o", key, *more)
    assert f"tokenSecretKey=file://{key}" in made.output
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    token = tokens("create", "--subject", "alice", "--expiry-time", "1h", "-sk", key).output.strip()
    claims = json.loads(tokens("validate", token, "-sk", key).output)
    assert claims["sub"] == "alice" and claims["exp"] > 0
    header, _, payload = tokens("show", "-i", given=token).output.splitlines()
    assert json.loads(header)["alg"] == "HS256" and json.loads(payload) == claims


@pytest.mark.parametrize("algorithm", ["RS256", "ES384"])
def test_a_key_pair_signs_with_one_and_checks_with_the_other(tmp_path: Path, algorithm: str) -> None:
    private, public, file = tmp_path / "private", tmp_path / "public", tmp_path / "token"
    tokens("create-key-pair", "--output-private-key", private, "--output-public-key", public, "-a", algorithm)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    tokens("create", "-s", "bob", "-pk", f"file://{private}", "--headers", "kid=1", "--output", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(tokens("validate", "-f", file, "-pk", public, "-a", algorithm).output) == {"sub": "bob"}
    assert json.loads(tokens("show", "-f", file).output.splitlines()[0])["kid"] == "1"
    other = tokens("validate", "-f", file, "-sk", public)
    assert other.exit_code == 1 and "not valid" in other.output, "a public key is no secret"


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("mine")
    refused = tokens("create-secret-key", "-o", key)
    assert refused.exit_code == 1 and "exists" in refused.output and key.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("create", "-s", "x"), "pass --secret-key or --private-key"),
        (("create", "-s", "x", "-sk", "nowhere"), "No such file"),
        (("create", "-s", "x", "-sk", "nowhere", "-e", "soon"), "'soon' is no time"),
        (("validate", "x"), "pass --secret-key or --public-key"),
        (("show", "x"), "this is no token"),
        (("show",), "pass one token"),
        (("create-secret-key", "-a", "none"), "none of"),
        (("create-key-pair", "--output-private-key", "a", "--output-public-key", "b", "-a", "HS256"), "none of"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], reason: str) -> None:
    result = tokens(*arguments)
    assert result.exit_code == 1 and reason in result.output and "Traceback" not in result.output


def test_times_have_a_unit() -> None:
    assert [seconds_of(text) for text in ("90s", "2m", "1h", "30d", "1y")] == [90, 120, 3_600, 2_592_000, 31_536_000]
    with pytest.raises(ClusterError):
        seconds_of("-1d")
