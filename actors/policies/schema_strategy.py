"""The strategies by which a topic's schemas may follow each other, by Pulsar's names."""

import enum

from .kinds import Choice


class SchemaCompatibilityStrategy(enum.Enum):
    """What they mean is said in `actors.schemas.compatibility`."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class StrategyWord(Choice[SchemaCompatibilityStrategy]):
    """A strategy. The word UNDEFINED takes the value away."""

    nothing = SchemaCompatibilityStrategy.UNDEFINED.value
