"""What the driver makes of beats: ranks of this start only, ends in order, strangers refused."""

from engine.health.heartbeat import Heartbeat, RankBeat, encode_beat
from engine.job.nodes import Node, Nodes


class Wire:
    """A link that holds what a test puts into it."""

    def __init__(self) -> None:
        self.data: list[bytes] | None = []

    def put(self, node: str, seq: int, *ranks: RankBeat, attempt: int = 0, **more) -> None:
        beat = Heartbeat(node=node, seq=seq, boot="x", attempt=attempt, ranks=ranks, **more)
        self.data.append(encode_beat(beat))

    def fileno(self) -> int:
        return -1

    def messages(self):
        data, self.data = self.data, [] if self.data is not None else None
        return data

    def tell(self, order, listen=None) -> None:
        pass

    def close(self) -> None:
        pass


def two() -> tuple[Nodes, Node, Node]:
    nodes = Nodes()
    a, b = Node("a", Wire()), Node("b", Wire())
    nodes.add(a)
    nodes.add(b)
    nodes.begin(0, [(a, (0, 1)), (b, (2, 3))])
    return nodes, a, b


def test_ends_are_kept_in_the_order_in_which_they_were_heard():
    nodes, a, b = two()
    b.link.put("b", 1, RankBeat(rank=3, code=-9), RankBeat(rank=2))
    a.link.put("a", 1, RankBeat(rank=0, code=1), RankBeat(rank=1, code=1))
    nodes.take(b)
    nodes.take(a)
    nodes.take(a)
    assert [(r.rank, r.code) for r in nodes.ended] == [(3, -9), (0, 1), (1, 1)]
    assert nodes.node_of(3) == "b"
    assert nodes.node_of(9) == ""


def test_what_belongs_to_an_older_start_or_to_other_nodes_does_not_count():
    nodes, a, _ = two()
    a.link.put("a", 1, RankBeat(rank=0, code=-9), attempt=-1)
    a.link.put("a", 2, RankBeat(rank=3, code=-9))
    nodes.take(a)
    assert nodes.ended == []
    assert a.state == "active"


def test_an_echo_changes_nothing_and_a_stranger_is_refused():
    nodes, a, _ = two()
    a.link.put("a", 5, RankBeat(rank=0, step=9))
    a.link.put("a", 4, RankBeat(rank=0, step=8))
    a.link.put("b", 9, RankBeat(rank=0, step=99))
    a.link.data.append(b"{nonsense")
    there, refused = nodes.take(a)
    assert there
    assert len(refused) == nodes.refused == 2
    assert nodes.ranks[0].step == 9


def test_a_lost_node_takes_its_ranks_with_it():
    nodes, _, b = two()
    b.link.data = None
    assert nodes.take(b) == (False, [])
    nodes.lose(b, "gone")
    assert (b.state, b.note) == ("lost", "gone")
    assert [(r.rank, r.code) for r in nodes.ended] == [(2, -9), (3, -9)]
    assert [n.name for n in nodes.here()] == ["a"]


def test_answers_and_work_are_collected():
    nodes, a, _ = two()
    a.link.put("a", 1, RankBeat(rank=0, works=((4, 0.5, 0.2),)), answers={"1.7": "fit"})
    nodes.take(a)
    assert nodes.answers == {"1.7": {"a": "fit"}}
    assert nodes.works == [(0, 4, 0.5, 0.2)]
