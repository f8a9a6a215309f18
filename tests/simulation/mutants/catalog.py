"""All mutants by name, and how one is switched on for a while.

    with catalog.active("#2614"):
        …run something that must notice…

Production code has no hooks for this: each mutant replaces class members or module functions and puts them back.
`MUTANTS` names, for each, the invariant that must break. `EXPLORED` are those that the exhaustive explorer finds; the
others need disks, garbage collection or time, which only the simulator has.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .balancing import BALANCING
from .compaction import COMPACTION
from .deduplication import DEDUPLICATION
from .delays import DELAYS
from .draining import DRAINING
from .expiry import EXPIRY
from .firsts import FIRSTS
from .following import FOLLOWING
from .growing import GROWING
from .keeping import KEEPING
from .mutant import Mutant
from .namespaces import NAMESPACES
from .original import ORIGINAL
from .own import OWN
from .owned import OWNED
from .policies import POLICIES
from .readers import READERS
from .repair import REPAIR
from .restarting import RESTARTING
from .resting import RESTING
from .schemas import SCHEMAS
from .silence import SILENCE
from .slots import SLOTS
from .termination import TERMINATION

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        *BALANCING,
        *COMPACTION,
        *DEDUPLICATION,
        *DELAYS,
        *DRAINING,
        *EXPIRY,
        *FIRSTS,
        *FOLLOWING,
        *GROWING,
        *KEEPING,
        *NAMESPACES,
        *ORIGINAL,
        *OWN,
        *OWNED,
        *POLICIES,
        *READERS,
        *REPAIR,
        *RESTARTING,
        *RESTING,
        *SCHEMAS,
        *SILENCE,
        *SLOTS,
        *TERMINATION,
    )
}
EXPLORED = ("#2614", "#2615", "#1591")


@contextmanager
def active(name: str) -> Iterator[Mutant]:
    """Switch one mutant on for a while. Raises KeyError for an unknown name."""
    mutant = MUTANTS[name]
    with ExitStack() as stack:
        mutant.switch_on(stack)
        yield mutant
