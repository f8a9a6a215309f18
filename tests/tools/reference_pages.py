"""The pages of `docs/reference/` that list what the code declares: settings, metrics, admin paths, errors."""

import dataclasses
import inspect
import re
from typing import Any

import magnetar
from magnetar.actors.admin.openapi import shown_path
from magnetar.actors.admin.service import AdminService
from magnetar.actors.policies.effective import POLICIES
from magnetar.actors.policies.kinds import RecordOf
from magnetar.actors.policies.policy import Policy, PolicyPath
from magnetar.actors.processes.ray_figures import BOOKIE_FIGURES, BROKER_FIGURES, COORDINATOR_FIGURES
from magnetar.protocol import errors as all_errors
from magnetar.protocol.names import ADMIN_ID, ROLE_ADMIN
from magnetar.runtime.environment import Environment
from magnetar.runtime.ray_metrics import Figure
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.runtime.settings.text import unit_of
from magnetar.serve.outcomes import FIGURES as QUEUE_FIGURES
from magnetar.tasks.consume_pool import FIGURES as POOL_FIGURES

from .markdown import NOTE, table

# ---- settings ----


def settings() -> str:
    """Every setting: name, help, default, unit, range, origin. An entry has a heading, because a table is too wide."""
    groups: list[str] = []
    for group in reversed(Settings.__mro__[1:-1]):
        entries = [_setting(item) for item in dataclasses.fields(Settings) if item.name in group.__annotations__]
        groups.append(f"## {_spaced(group.__name__)}\n\n{_meaning(group)}\n\n" + "\n".join(entries))
    return (
        f"{NOTE}# Settings\n\n"
        "Give settings in a file (`--config FILE`), in the environment (`MAGNETAR_<name>`) or with\n"
        "`--set NAME=VALUE`. The later of these wins. An unknown name or a value out of range stops the start.\n\n"
        "*Origin* says whose name, unit and meaning a setting has. Where the default of that project differs, it is\n"
        "named, too.\n\n" + "\n".join(groups)
    )


def _spaced(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda found: " " + found[1].lower(), name)


def _meaning(group: type) -> str | None:
    """What the settings of a group are about. The module says it, where it has one group only."""
    own = inspect.getdoc(group)
    return inspect.getdoc(inspect.getmodule(group)) if own == "See the module." else own


def _setting(item: "dataclasses.Field[Any]") -> str:
    meta = item.metadata
    facts = [f"default `{_figure(item.default)}`" if item.default != "" else "no default"]
    if unit_of(item):
        facts[0] += f" {unit_of(item)}"
    if meta["minimum"] is not None:
        facts.append(f"{_figure(meta['minimum'])} to {_figure(meta['maximum'])}")
    elif meta["choices"]:
        facts.append(" or ".join(f"`{one}`" for one in meta["choices"]))
    elif isinstance(item.default, bool):
        facts.append("true or false")
    facts.append(f"origin {meta['origin']}" + (f" (there: {meta['original']})" if meta["original"] else ""))
    return f"### `{meta['name']}`\n\n{meta['doc']}\n\n*{'; '.join(facts)}*\n"


def _figure(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


# ---- admin and metrics ----


def admin_service() -> AdminService:
    """The admin's service, not started: it knows its routes and its metrics."""

    async def locate() -> tuple[str, int]:
        raise RuntimeError("this service is only looked at")

    keys = RootKeys(b"reference").node(ROLE_ADMIN, ADMIN_ID)
    return AdminService(Environment.real(threads_max=1), "reference", keys, Settings(), "127.0.0.1", 0, locate)


def metrics() -> str:
    """Every metric that `/metrics` exports."""
    text = admin_service()._metrics.render().decode()
    helps = dict(re.findall(r"^# HELP (magnetar_\w+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (magnetar_\w+) (\w+)$", text, re.MULTILINE))
    rows = [(f"`{name}`", kinds[name], helps[name]) for name in sorted(helps) if not name.endswith("_created")]
    return (
        f"{NOTE}# Metrics\n\n"
        "`GET /metrics` on the admin's port answers in Prometheus' text format. Each sample has the labels\n"
        "`service` and `node`. Figures of bookies are added up over all bookies.\n\n"
        + table(("name", "type", "meaning"), rows)
        + "\n## Figures in Ray's metrics\n\n"
        "Each process that runs on Ray gives its figures to Ray every 5 s. Ray exports them at the\n"
        "`MetricsExportPort` of the node, and its dashboard shows them. A counter gets the suffix `_total` there.\n\n"
        + table(("name", "type", "labels", "meaning"), [_ray_figure(*one) for one in ray_figures()])
    )


def ray_figures() -> list[tuple[Figure, str]]:
    """Every figure that Ray's metrics have, with the labels of its process."""
    member, queue, pool = "`cluster`, `process`", "`queue`", "`subscription`"
    found = [(one, member) for one in (*COORDINATOR_FIGURES, *BROKER_FIGURES, *BOOKIE_FIGURES)]
    return [*found, *((one, pool) for one in POOL_FIGURES), *((one, queue) for one in QUEUE_FIGURES)]


def _ray_figure(figure: Figure, labels: str) -> tuple[str, str, str, str]:
    own = f"{labels}, `{figure.by}`" if figure.by else labels
    return (f"`ray_{figure.name}{'_total' * (figure.kind == 'counter')}`", figure.kind, own, figure.meaning)


def admin() -> str:
    """Every path of the admin HTTP, each with its methods."""
    found: dict[str, list[str]] = {}
    for route in admin_service().routes:
        doc = " ".join((inspect.getdoc(route.handler) or "").split())
        found.setdefault(shown_path(route), []).append(f"- **{route.method}**: {doc}\n")
    entries = [f"## `{path}`\n\n{''.join(methods)}" for path, methods in found.items()]
    return (
        f"{NOTE}# Admin HTTP\n\n"
        "The admin listens on `--admin-port`, 8080 by default. Paths, parameters and answers are Pulsar's. A\n"
        'refusal is a status with the body `{"reason": …}`. A path of Pulsar\'s that is not on this page answers\n'
        "with status 501. Send bodies with `Content-Type: application/json`.\n\n" + "\n".join(entries)
    )


# ---- policies ----


def policies() -> str:
    """Every policy: what it says, its values, and how it is set for a namespace and for a topic."""
    entries = "\n".join(
        _policy(one) for one in POLICIES.values() if any(level and level.routed for level in (one.namespace, one.topic))
    )
    return (
        f"{NOTE}# Policies\n\n"
        "A policy holds for the topics of one namespace, or for one topic. Paths of namespaces begin with\n"
        "`/admin/v2/namespaces/<tenant>/<namespace>/`, those of topics with\n"
        "`/admin/v2/persistent/<tenant>/<namespace>/<topic>/`. `GET` shows the value, and the named method sets it.\n"
        "`DELETE` lets the wider level count again. [Policies](../operations/watching.md#policies) says more.\n\n"
        f"{entries}"
    )


def _policy(one: Policy[object]) -> str:
    found = next(level for level in (one.namespace, one.topic) if level)
    levels = [("namespace", one.namespace), ("topic", one.topic)]
    lines = [f"- {title}: {_policy_path(level)}\n" for title, level in levels if level]
    says = one.doc[:1].upper() + one.doc[1:]
    value = one.kind.text
    if isinstance(one.kind, RecordOf):
        value = "an object with these fields"
        lines += [f"- `{name}`: {kind.text}\n" for name, kind in one.kind.parts.items()]
    return f"## `{found.path}`\n\n{says}. The value is {value}.\n\n{''.join(lines)}"


def _policy_path(level: PolicyPath) -> str:
    if not level.settable:
        word = level.path.removesuffix("Map")
        return f"`GET {level.path}`; `POST` and `DELETE` of `{word}`, with the type in the query: `{word}Type`"
    value = f"?{level.parameter}=…" if level.parameter else ""
    removed = "" if level.removable else "; there is no `DELETE`"
    return f"`{'PUT' if level.put else 'POST'} {level.path}{value}`{removed}"


# ---- errors ----


def advice(error: type[BaseException]) -> tuple[str, str]:
    """What an error means, and what to do about it, from its docstring."""
    meaning, _, what_to_do = (inspect.getdoc(error) or "").partition("What to do: ")
    return " ".join(meaning.split()), " ".join(what_to_do.split())


def errors() -> str:
    """Every error: when it comes, whether trying again may help, and what to do."""
    classes = [
        kind
        for _, kind in sorted(vars(all_errors).items())
        if isinstance(kind, type) and issubclass(kind, all_errors.MagnetarError)
    ]
    public = [kind for kind in classes if kind.__name__ in magnetar.__all__]
    inside = [kind for kind in classes if kind.__name__ not in magnetar.__all__]
    return (
        f"{NOTE}# Errors\n\n"
        "All errors are subclasses of `magnetar.MagnetarError`. Names are those of the official Python client\n"
        "where it has the error. *Try again* says whether the same call may succeed later without any change.\n"
        "*Number* is what a broker answers in Pulsar's protocol, *HTTP* the status that the admin answers with.\n\n"
        f"## Errors of the Python API\n\n{''.join(_error(kind) for kind in public)}"
        "## Errors inside a cluster\n\n"
        "You see these names in logs, and in the messages of other errors.\n\n"
        f"{''.join(_error(kind) for kind in inside)}".rstrip()
        + "\n"
    )


def _error(kind: type[all_errors.MagnetarError]) -> str:
    """What happened, what to do, and whether to try again, below a heading: a table would be too wide."""
    meaning, what_to_do = advice(kind)
    again = (
        f"*Try again:* {'yes' if kind.retriable else 'no'}. *Number:* {kind.server_error}. *HTTP:* {kind.http_status}."
    )
    return (
        f"### `{kind.__name__}`\n\n{meaning}\n\n"
        + (f"*What to do:* {what_to_do} " if what_to_do else "")
        + f"{again}\n\n"
    )
