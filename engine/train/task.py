"""What every rank of a start is told, as JSON between driver, nursery and rank."""

from engine.spec.base import Noun


class RankTask(Noun, frozen=True, kw_only=True):
    """One start of a run."""

    folder: str
    world: int
    host: str
    port: int
    steps: int = 0
    """Steps to do in this invocation; 0 = up to the recipe's last."""
    until: int = 0
    """Stop after this step, counted from the run's beginning; 0 = no such limit."""
    resume: str = "auto"
    """`auto`, `never` or a step number."""
    local_offset: int = 0
    """Global rank of the first rank on this node."""
    node: str = ""
    """Name of this node; empty: its host's."""
    memory: str = ""
    """Folder in memory for snapshots; empty: /dev/shm."""
    loader: str = ""
    """Address of the node's loader process; empty: every rank reads for itself."""
    store_url: str = ""
    """Redis at which ranks meet, with its password by file; empty: rank 0 serves a TCPStore."""
    store_prefix: str = ""
    """What this start's keys in that Redis begin with: another for each start."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes in order of rank, for messages about ranks that do not come."""
    attempt: int = 0
    """Which start of the job this is: 0, 1, ...; what an older one sends is refused."""
    beats: str = ""
    """File in memory for this node's heartbeat slots; empty: nobody watches."""
    skip: tuple[int, ...] = ()
    """Steps whose batch is left out: their numbers were bad more than once."""
    drills: tuple[str, ...] = ()
    """Faults to inject, as `KIND:rank=R@step=N`; see engine/train/rehearse.py."""
