"""The states of a job and of a node, as tables: what may happen in each, and what comes then.

Pure. The driver, the takeover of a job by another driver, and the simulation of months all move
through these tables, so what is proven of them (tests: every state has an exit, an end is always
within reach) holds for all three.
"""

from typing import Literal

from engine.errors import RunFailed

JobState = Literal[
    "starting", "running", "suspect", "collecting", "checking", "replacing", "waiting",
    "stopping", "done", "interrupted", "failed",
]  # fmt: skip
JobEvent = Literal[
    "stepped", "trouble", "cleared", "collected", "checked", "replaced", "no_node", "node_came",
    "gave_up", "stop", "ended", "all_done",
]  # fmt: skip
NodeState = Literal["joining", "ready", "active", "silent", "lost", "evicted", "left"]
NodeEvent = Literal["beat", "assigned", "released", "silence", "loss", "evict", "leave"]

FINAL: frozenset[str] = frozenset({"done", "interrupted", "failed"})
NODE_FINAL: frozenset[str] = frozenset({"left"})

JOB: dict[JobState, dict[JobEvent, JobState]] = {
    # ranks are being started, from the request to the first step
    "starting": {
        "stepped": "running", "trouble": "suspect", "stop": "stopping", "all_done": "done",
        "gave_up": "failed",
    },
    "running": {
        "stepped": "running", "trouble": "suspect", "stop": "stopping", "all_done": "done",
        "gave_up": "failed",
    },
    # something is wrong, the others are given a moment to say what they saw
    "suspect": {
        "cleared": "running", "trouble": "collecting",
        "stop": "stopping", "gave_up": "failed", "all_done": "done",
    },
    # ranks are suspended and what they know is written down
    "collecting": {"collected": "checking", "stop": "stopping", "gave_up": "failed"},
    # every node looks at itself
    "checking": {"checked": "replacing", "stop": "stopping", "gave_up": "failed"},
    # bad nodes leave, spares or fewer replicas take their place
    "replacing": {
        "replaced": "starting", "no_node": "waiting", "stop": "stopping", "gave_up": "failed",
    },
    "waiting": {"node_came": "replacing", "stop": "stopping", "gave_up": "failed"},
    # a person asked to stop: this step ends, a checkpoint is written
    "stopping": {
        "stepped": "stopping", "trouble": "interrupted", "stop": "stopping", "ended": "interrupted",
        "all_done": "interrupted", "gave_up": "failed",
    },
    "done": {}, "interrupted": {}, "failed": {},
}  # fmt: skip

NODE: dict[NodeState, dict[NodeEvent, NodeState]] = {
    "joining": {"beat": "ready", "silence": "joining", "loss": "lost", "evict": "evicted",
                "leave": "left", "released": "joining", "assigned": "active"},
    "ready": {"beat": "ready", "assigned": "active", "silence": "silent", "loss": "lost",
              "evict": "evicted", "leave": "left", "released": "ready"},
    "active": {"beat": "active", "released": "ready", "silence": "silent", "loss": "lost",
               "evict": "evicted", "leave": "left", "assigned": "active"},
    # unknown: perhaps only cut off from Redis
    "silent": {"beat": "active", "released": "silent", "silence": "silent", "loss": "lost",
               "evict": "evicted", "leave": "left", "assigned": "silent"},
    # comes back as another life of its executor
    "lost": {"beat": "ready", "evict": "evicted", "leave": "left", "loss": "lost",
             "silence": "lost", "released": "lost"},
    "evicted": {"leave": "left", "beat": "evicted", "loss": "left", "silence": "evicted",
                "released": "evicted", "evict": "evicted"},
    "left": {},
}  # fmt: skip


def next_job(state: JobState, event: JobEvent) -> JobState:
    """Where a job goes. RunFailed for an event that cannot happen there: a fault of the driver."""
    try:
        return JOB[state][event]
    except KeyError:
        raise RunFailed(
            f"a job that is {state} was told {event!r}",
            remedy="report this: the driver's states do not fit what happened",
        ) from None


def next_node(state: NodeState, event: NodeEvent) -> NodeState:
    """Where a node goes; an event that means nothing there changes nothing."""
    return NODE[state].get(event, state)
