"""An operator of a simulated cluster: the coordinator's admin methods, from a client's process."""

from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.names import ROLE_ADMIN
from magnetar.runtime.rpc.keys import Identity

from ..world.cluster import CLUSTER_ID, KEYS
from .workload import Workload


async def new_admin(workload: Workload) -> CoordinatorClient:
    """To be called, used and closed in the process of the workload."""
    env = workload.process.env
    identity = Identity(CLUSTER_ID, ROLE_ADMIN, workload.name, env.random.hex(8))
    keys = KEYS.node(ROLE_ADMIN, workload.name)
    admin = CoordinatorClient(env, identity, keys, workload.cluster.settings, workload.cluster.locate)
    await workload.again(admin.start)
    return admin
