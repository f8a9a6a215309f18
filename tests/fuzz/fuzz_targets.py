"""All targets by name."""

import fuzz_admin
import fuzz_broker
import fuzz_broker_rpc
import fuzz_client
import fuzz_coordinator
import fuzz_cursors
import fuzz_decoders
import fuzz_messages
import fuzz_records
import fuzz_rpc
import fuzz_settings
import fuzz_storage
from fuzz_target import Target

_MODULES = (
    fuzz_decoders,
    fuzz_messages,
    fuzz_records,
    fuzz_cursors,
    fuzz_broker,
    fuzz_broker_rpc,
    fuzz_client,
    fuzz_rpc,
    fuzz_coordinator,
    fuzz_admin,
    fuzz_storage,
    fuzz_settings,
)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
