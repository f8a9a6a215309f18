"""What this repository uses of Ray's compiled module, beside the classes that Ray has types for."""

from collections.abc import Mapping

from ray.includes.object_ref import ObjectRef as ObjectRef
from ray.includes.object_ref import _set_future_helper as _set_future_helper
from ray.includes.unique_ids import ActorClassID as ActorClassID
from ray.includes.unique_ids import ActorID as ActorID
from ray.includes.unique_ids import BaseID as BaseID
from ray.includes.unique_ids import ClusterID as ClusterID
from ray.includes.unique_ids import FunctionID as FunctionID
from ray.includes.unique_ids import JobID as JobID
from ray.includes.unique_ids import NodeID as NodeID
from ray.includes.unique_ids import ObjectID as ObjectID
from ray.includes.unique_ids import PlacementGroupID as PlacementGroupID
from ray.includes.unique_ids import TaskID as TaskID
from ray.includes.unique_ids import UniqueID as UniqueID
from ray.includes.unique_ids import WorkerID as WorkerID
from ray.includes.unique_ids import check_id as check_id

class _GcsNode:
    node_manager_address: str
    state: int

class GcsClient:
    def __init__(self, address: str) -> None: ...
    def get_all_node_info(self, timeout: float | None = None) -> Mapping[NodeID, _GcsNode]: ...
    def drain_node(
        self, node_id: str, reason: int, reason_message: str, deadline_timestamp_ms: int
    ) -> tuple[bool, str]: ...

class AuthenticationTokenLoader:
    @staticmethod
    def instance() -> AuthenticationTokenLoader: ...
    def has_token(self, ignore_auth_mode: bool = False) -> bool: ...
    def reset_cache(self) -> None: ...

class Config:
    @staticmethod
    def initialize(config_list: str) -> None: ...
