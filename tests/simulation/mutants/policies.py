"""Bugs of our own choosing in how policies travel to brokers."""

from contextlib import ExitStack

from magnetar.actors.coordinator.member_lists import MemberLists
from magnetar.actors.members.contracts_coordinator import NamespacePolicies

from .mutant import Mutant, replace


def _keep_policies_secret(stack: ExitStack) -> None:
    replace(stack, MemberLists, "policies_changed", lambda self, change: None)


def _keep_topic_policies_secret(stack: ExitStack) -> None:
    tell = MemberLists.policies_changed

    def policies_changed(self: MemberLists, change: NamespacePolicies) -> None:
        if "://" not in change.namespace:
            tell(self, change)

    replace(stack, MemberLists, "policies_changed", policies_changed)


POLICIES = (
    Mutant("policy not sent", "a change of policies is not sent to brokers", "I8", _keep_policies_secret, "cluster"),
    Mutant(
        "topic policy not sent",
        "a change of a topic's policies is not sent to brokers",
        "I8",
        _keep_topic_policies_secret,
        "cluster",
    ),
)
