"""The examples and commands of the documents, executed against a cluster."""

import shlex
import subprocess
from typing import Any

import pulsar
import ray

import magnetar
from support.checks.document_examples import ADMIN_URL, URL, commands, example


def run(page: str, name: str, service_url: str = URL, admin_url: str = ADMIN_URL) -> dict[str, Any]:
    """Execute an example against a cluster; returns all names afterwards."""
    code = example(page, name).replace(URL, service_url).replace("pulsar://old-cluster:6650", service_url)
    code = code.replace(ADMIN_URL, admin_url)
    scope: dict[str, Any] = {"__name__": "guide", "magnetar": magnetar, "pulsar": pulsar, "ray": ray}
    exec(compile(code, page, "exec"), scope)
    return scope


def curl(page: str, name: str, admin_url: str) -> list[str]:
    """Run a block of curl commands against a cluster; returns what each prints."""
    printed: list[str] = []
    for line in commands(page, name):
        words = ["curl", "--silent", "--show-error", "--fail", *shlex.split(line.replace(ADMIN_URL, admin_url))[1:]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    return printed
