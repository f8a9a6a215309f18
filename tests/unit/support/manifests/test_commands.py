"""Every command line of the manifests and of their guide that runs in a pod is run by a test of the nodes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.manifests.kustomize import FILE, render

ROOT = Path(__file__).resolve().parents[4]
K8S = ROOT / "k8s"
GUIDE = ROOT / "docs" / "guides" / "kuberay.md"
NODE_TESTS = sorted((ROOT / "tests" / "integration" / "nodes").glob("test_kubernetes_*.py"))
MENTIONED = {"magnetar drain", "magnetar leave", "magnetar scale"}
"""Names of commands, which are no command lines: they do nothing without arguments, or are about other nodes."""


def lines_of_the_guide(text: str) -> set[str]:
    """What the guide says to run in a pod: commands in the text, and what `kubectl exec` runs."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    return (set(re.findall(r"`(magnetar [^`\n]+)`", text)) - MENTIONED) | set(
        re.findall(r" -- (magnetar .+)$", blocks, re.MULTILINE)
    )


def directories() -> list[Path]:
    return sorted(file.parent for file in K8S.rglob(FILE))


def commands_of_pods(value: Any) -> Iterator[tuple[str, ...]]:
    """The commands below a value that Kubernetes runs in containers: of probes, hooks, and containers."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("command", "args"):
                yield tuple(inner)
            else:
                yield from commands_of_pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands_of_pods(inner)


def calls(name: str) -> Iterator[list[str]]:
    """The texts that tests of the nodes pass to functions of this name."""
    for file in NODE_TESTS:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and name == getattr(node.func, "attr", getattr(node.func, "id", "")):
                yield [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def test_command_lines_are_found() -> None:
    text = "Run `magnetar a -b`, not `magnetar scale`.\n\n```sh\nkubectl exec $head -- magnetar c\nkubectl get\n```\n"
    assert lines_of_the_guide(text) == {"magnetar a -b", "magnetar c"}
    assert list(commands_of_pods({"a": [{"exec": {"command": ["x", "y"]}}]})) == [("x", "y")]


def test_a_test_runs_every_command_line_of_the_guide() -> None:
    run = {text.removesuffix(" --json") for texts in calls("run") for text in texts}
    wanted = lines_of_the_guide(GUIDE.read_text())
    assert len(wanted) > 5
    assert wanted - run == set()


def test_a_test_runs_every_job() -> None:
    wanted = {one.parent.name for one in (K8S / "jobs").glob(f"*/{FILE}")}
    assert wanted - {text for texts in calls("job") for text in texts} == set()


def test_a_test_runs_every_other_command() -> None:
    """There is one: the readiness probe of the brokers."""
    found = {command for one in directories() for manifest in render(one) for command in commands_of_pods(manifest)}
    (command,) = found
    assert "machine-id" in command[-1]
    named = [
        node.attr
        for file in NODE_TESTS
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    ]
    assert "is_ready" in named
