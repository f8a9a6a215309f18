"""The table of commands: every route of the admin has one, and what a command sends is what the admin reads."""

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from magnetar.actors.admin.openapi import shown_path
from magnetar.actors.policies.effective import POLICIES
from magnetar.cluster.admin.commands import COMMANDS, WITHOUT_COMMAND, of_noun
from magnetar.cluster.admin.nouns import NOUNS
from magnetar.cluster.admin.policies import SPELLINGS, Spelling
from magnetar.cluster.admin.session import AdminAnswer, AdminSession
from magnetar.cluster.command_line import app
from tools.reference_pages import admin_service

Request = tuple[str, str, dict[str, Any], Any]


def served() -> set[tuple[str, str]]:
    """Method and path of every route that the admin serves."""
    return {(route.method, shown_path(route)) for route in admin_service().routes}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What commands ask for, in place of an admin."""
    found: list[Request] = []

    def ask(session: AdminSession, method: str, path: str, parts: Any, query: Any, body: Any = None) -> AdminAnswer:
        found.append((method, path.format_map(parts), dict(query), body))
        return AdminAnswer(b"", {})

    monkeypatch.setattr(AdminSession, "ask", ask)
    return found


def run(*arguments: str) -> None:
    done = CliRunner().invoke(app, ["admin", "--admin-url", "http://admin:1", *arguments])
    assert done.exit_code == 0, done.output


@pytest.mark.promise("32.13")
def test_every_route_has_a_command_or_a_reason_and_every_command_a_route() -> None:
    asked = {route for command in COMMANDS for route in command.asked}
    without = served() - asked - set(WITHOUT_COMMAND)
    assert not without, f"add a row to the tables in cluster/admin, or to WITHOUT_COMMAND: {sorted(without)}"
    assert asked - served() == set(), "these routes are not served"
    assert set(WITHOUT_COMMAND) & asked == set() and set(WITHOUT_COMMAND) <= served()


def test_names_of_commands_are_unique_and_their_nouns_are_known() -> None:
    names = [(command.noun, command.verb) for command in COMMANDS]
    assert sorted(names) == sorted(set(names))
    assert {noun for noun, _ in names} == set(NOUNS)


def test_each_command_fills_the_path_that_it_asks() -> None:
    for command in COMMANDS:
        given = {argument.word for argument in command.arguments}
        resource = {"topic": {"tenant", "namespace", "domain", "topic"}, "namespace": {"tenant", "namespace"}}
        filled = given.union(*(resource.get(word, set()) for word in given))
        for _, path in command.asked:
            own = {"timestamp", "position", "domain"} if command.run is not None else set()
            assert set(re.findall(r"\{(\w+)\}", path)) <= filled | own, command


def test_spellings_name_policies_and_parts_that_exist() -> None:
    for noun, spellings in SPELLINGS.items():
        for name, spelling in spellings.items():
            if name not in POLICIES:
                continue
            parts = getattr(POLICIES[name].kind, "parts", {"": None})
            assert set(spelling.options) <= set(parts), (noun, name)


def test_a_policy_has_commands_made_from_its_path_and_kind_unless_it_is_spelled() -> None:
    commands = {command.verb: command for command in of_noun("topicPolicies")}
    assert {"get-publish-rate", "set-publish-rate", "remove-publish-rate"} <= set(commands)
    for name, policy in POLICIES.items():
        if policy.topic is None or SPELLINGS["topicPolicies"].get(name, Spelling()).verb:
            continue
        verb = re.sub(r"([A-Z])", r"-\1", policy.topic.path).lower().replace("-t-t-l", "-ttl")
        assert (f"set-{verb}" in commands) == policy.topic.settable, name
        assert (f"remove-{verb}" in commands) == policy.topic.removable, name
        assert f"get-{verb}" in commands, name


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (
            ("tenants", "create", "t", "-r", "a,b", "-r", "c"),
            ("PUT", "/admin/v2/tenants/t", {}, {"adminRoles": ["a", "b", "c"]}),
        ),
        (("tenants", "delete", "t", "-f"), ("DELETE", "/admin/v2/tenants/t", {"force": True}, None)),
        (("topics", "stats", "x"), ("GET", "/admin/v2/persistent/public/default/x/stats", {}, None)),
        (
            ("topics", "create-partitioned-topic", "-p", "4", "non-persistent://a/b/c"),
            ("PUT", "/admin/v2/non-persistent/a/b/c/partitions", {}, 4),
        ),
        (
            ("topics", "partitioned-stats", "x", "--no-per-partition"),
            ("GET", "/admin/v2/persistent/public/default/x/partitioned-stats", {"perPartition": False}, None),
        ),
        (
            ("subscriptions", "create", "x", "-s", "s", "-m", "3:4:-1"),
            (
                "PUT",
                "/admin/v2/persistent/public/default/x/subscription/s",
                {},
                {"ledgerId": 3, "entryId": 4},
            ),
        ),
        (
            ("namespaces", "set-retention", "a/b", "-t", "3h", "-s", "10G"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/retention",
                {},
                {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10240},
            ),
        ),
        (
            ("namespaces", "set-retention", "a/b", "--time", "-1", "--size", "-1"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/retention",
                {},
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            ),
        ),
        (
            ("topicPolicies", "set-message-ttl", "x", "-t", "2m"),
            ("POST", "/admin/v2/persistent/public/default/x/messageTTL", {"messageTTL": 120}, None),
        ),
        (
            ("topicPolicies", "get-retention", "x", "-ap"),
            ("GET", "/admin/v2/persistent/public/default/x/retention", {"applied": True}, None),
        ),
        (
            ("namespaces", "set-deduplication", "a/b", "--disable"),
            ("POST", "/admin/v2/namespaces/a/b/deduplication", {}, False),
        ),
        (
            ("namespaces", "set-delayed-delivery", "a/b", "-e", "-t", "2s"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/delayedDelivery",
                {},
                {"active": True, "tickTime": 2000, "maxDeliveryDelayInMillis": 0},
            ),
        ),
        (
            ("namespaces", "set-dispatch-rate", "a/b", "-md", "10"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/dispatchRate",
                {},
                {
                    "dispatchThrottlingRateInMsg": 10,
                    "dispatchThrottlingRateInByte": -1,
                    "ratePeriodInSecond": 1,
                },
            ),
        ),
        (
            ("namespaces", "set-subscription-types-enabled", "a/b", "-t", "Shared,Failover"),
            ("POST", "/admin/v2/namespaces/a/b/subscriptionTypesEnabled", {}, ["Shared", "Failover"]),
        ),
        (
            ("namespaces", "set-auto-topic-creation", "a/b", "-e", "-t", "partitioned", "-n", "3"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/autoTopicCreation",
                {},
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
            ),
        ),
        (
            ("namespaces", "set-schema-compatibility-strategy", "a/b", "-c", "FULL"),
            ("PUT", "/admin/v2/namespaces/a/b/schemaCompatibilityStrategy", {}, "FULL"),
        ),
        (
            ("namespaces", "set-backlog-quota", "a/b", "-l", "1M", "-p", "producer_exception"),
            (
                "POST",
                "/admin/v2/namespaces/a/b/backlogQuota",
                {"backlogQuotaType": "destination_storage"},
                {"limitSize": 1 << 20, "limitTime": -1, "policy": "producer_exception"},
            ),
        ),
    ],
)
def test_a_command_asks_for_what_it_says(arguments: tuple[str, ...], request_: Request, sent: list[Request]) -> None:
    run(*arguments)
    assert sent == [request_]


def test_topics_of_both_domains_are_listed(sent: list[Request]) -> None:
    run("topics", "list", "a/b")
    run("topics", "list", "a/b", "-td", "non-persistent")
    assert [path for _, path, _, _ in sent] == [
        "/admin/v2/persistent/a/b",
        "/admin/v2/non-persistent/a/b",
        "/admin/v2/non-persistent/a/b",
    ]


def test_brokers_of_a_cluster_are_listed_if_one_is_given(sent: list[Request]) -> None:
    run("brokers", "list")
    run("brokers", "list", "standalone")
    assert [path for _, path, _, _ in sent] == ["/admin/v2/brokers", "/admin/v2/brokers/standalone"]


def test_a_cursor_is_reset_to_a_message_or_back_in_time(sent: list[Request]) -> None:
    run("topics", "reset-cursor", "x", "-s", "s", "-m", "1:2")
    run("topics", "reset-cursor", "x", "-s", "s", "-t", "1h")
    path = "/admin/v2/persistent/public/default/x/subscription/s/resetcursor"
    assert sent[0] == ("POST", path, {}, {"ledgerId": 1, "entryId": 2})
    assert re.fullmatch(f"{path}/\\d{{13}}", sent[1][1])
    done = CliRunner().invoke(app, ["admin", "--admin-url", "http://a:1", "topics", "reset-cursor", "x", "-s", "s"])
    assert done.exit_code == 1 and "--time or --messageId" in done.output
