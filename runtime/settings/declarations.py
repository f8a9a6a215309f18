"""All settings of a cluster: one frozen group per file, checked together here, and read from text.

Outside (file, environment, `--set`) a setting that Pulsar or BookKeeper has carries their name, unit and meaning. Its
default is theirs, too, unless the declaration says `original`. Inside, the field says its unit last.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import InvalidTopicName, SettingError
from ...protocol.topics import check_named_entity
from . import text as setting_text
from .addresses import AddressSettings
from .bookie import BookieSettings
from .broker import BrokerSettings
from .compaction import CompactionSettings
from .deduplication import DeduplicationSettings
from .delayed_delivery import DelayedDeliverySettings
from .keeping import KeepingSettings
from .limits import ClientLimitSettings, TopicListSettings
from .listeners import PROXY, TLS
from .load_balancing import LoadBalancingSettings
from .managed_ledgers import ManagedLedgerSettings
from .membership import MembershipSettings
from .replication import RepairSettings, ReplicationSettings
from .same_address import SameAddressSettings
from .security import SecuritySettings
from .tls import TlsSettings

ENVIRONMENT_PREFIX = "MAGNETAR_"


@dataclass(frozen=True)
class Settings(
    TlsSettings,
    AddressSettings,
    DeduplicationSettings,
    KeepingSettings,
    DelayedDeliverySettings,
    TopicListSettings,
    RepairSettings,
    BookieSettings,
    LoadBalancingSettings,
    MembershipSettings,
    BrokerSettings,
    ManagedLedgerSettings,
    ReplicationSettings,
    SameAddressSettings,
    ClientLimitSettings,
    CompactionSettings,
    SecuritySettings,
):
    """The settings of a cluster. Instances are always valid: `__post_init__` raises SettingError otherwise.

    The fields stand in the reverse order of the groups above.
    """

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            setting_text.check(item, getattr(self, item.name))
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise SettingError(
                "ensemble size >= write quorum >= ack quorum must hold, but they are "
                f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}"
            )
        if self.ack_quorum < 2 and not self.allow_single_copy_acks:
            raise SettingError(
                "with an ack quorum of 1 a ledger loses entries when one disk fails: choose 2, or set "
                "allowAckQuorumOfOne=true"
            )
        if self.bookie_frame_size_max_bytes < self.max_message_size_bytes + 1024:
            raise SettingError("nettyMaxFrameSizeBytes must be at least 1,024 above maxMessageSize")
        try:
            check_named_entity("cluster", self.cluster_name)
        except InvalidTopicName as error:
            raise SettingError(f"clusterName: {error}") from None
        if (self.retention_minutes == 0) != (self.retention_size_mb == 0):
            raise SettingError(
                "defaultRetentionTimeInMinutes and defaultRetentionSizeInMB must be 0 both, or none of them: -1 is no "
                "bound"
            )
        self.enabled_subscription_types()
        self.check_addresses()
        self.check_security()
        self.check_tls(
            bound=f"{TLS}://" in self.bind_addresses.lower(),
            forwards=f"{PROXY}://" in self.advertised_listeners.lower(),
        )
        if self.disk_usage_warn >= self.disk_usage_full:
            raise SettingError("diskUsageWarnThreshold must be below diskUsageThreshold")
        if self.session_timeout_s < 2 * self.heartbeat_interval_s:
            raise SettingError("sessionTimeoutSeconds must be at least two heartbeatIntervalSeconds")
        if self.minor_compaction_threshold > self.major_compaction_threshold:
            raise SettingError("minorCompactionThreshold must not be above majorCompactionThreshold")
        if self.ledger_rollover_min_minutes > self.ledger_rollover_max_minutes:
            raise SettingError(
                "managedLedgerMinLedgerRolloverTimeMinutes must not be above managedLedgerMaxLedgerRolloverTimeMinutes"
            )
        if (
            self.segment_size_bytes < 2 * self.bookie_frame_size_max_bytes
            and self.segment_size_bytes > 1 << 20
            and self.max_message_size_bytes > 5_242_880
        ):
            raise SettingError("logSizeLimit must hold at least two frames of nettyMaxFrameSizeBytes")

    @classmethod
    def load(
        cls,
        file: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> "Settings":
        """Defaults, then the file (`name=value` lines, `#` comments), then `MAGNETAR_<name>` variables, then overrides.

        Raises SettingError for unknown names (all of them), a value of the wrong type and an impossible combination.
        """
        return cls.from_dict(cls.read(file, environment, overrides))

    @classmethod
    def read(
        cls,
        file: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> dict[str, setting_text.Value]:
        """The settings that are given, by outside name. Each of them is possible by itself. Raises SettingError."""
        given: dict[str, setting_text.Value] = {}
        if file is not None:
            given.update(_parse_all(setting_text.read_file(file), f"{file}: "))
        source = os.environ if environment is None else environment
        by_name = _fields_by_name()
        variables = {
            name.removeprefix(ENVIRONMENT_PREFIX): value
            for name, value in source.items()
            if name.startswith(ENVIRONMENT_PREFIX) and name.removeprefix(ENVIRONMENT_PREFIX) in by_name
        }
        given.update(_parse_all(variables, "environment: "))
        given.update(_parse_all(overrides or {}, ""))
        return given

    def to_dict(self) -> dict[str, setting_text.Value]:
        """Values by outside name."""
        return {item.metadata["name"]: getattr(self, item.name) for item in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Settings":
        """The inverse of `to_dict`; missing ones take their default. Raises SettingError."""
        by_name = _fields_by_name()
        setting_text.check_names(by_name, values)
        given = {by_name[name].name: value for name, value in values.items()}
        return dataclasses.replace(cls(), **given)


def _fields_by_name() -> dict[str, setting_text.Field]:
    return {item.metadata["name"]: item for item in dataclasses.fields(Settings)}


def _parse_all(values: Mapping[str, str], where: str) -> dict[str, setting_text.Value]:
    by_name = _fields_by_name()
    parsed: dict[str, setting_text.Value] = {}
    try:
        setting_text.check_names(by_name, values)
        for name, text in values.items():
            parsed[name] = setting_text.parse(by_name[name], text.strip())
            setting_text.check(by_name[name], parsed[name])
    except SettingError as error:
        raise SettingError(f"{where}{error}") from None
    return parsed
