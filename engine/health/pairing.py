"""Find the bad node among many from tests between pairs, in at most four rounds (paper 4.3).

Round 1 and 2 test each node with both neighbours under its switch (even pairs, odd pairs). Rounds 3
and 4 test every node that failed once with two nodes that never failed. Only a node that fails with
both of these is bad, or one that fails with three nodes that are not bad themselves: a lossy link
passes now and then. One that passes with either had a bad link, or a test that failed by chance.

Pure arithmetic: a round is a list of pairs that can run side by side, results are given back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

Pair = tuple[str, str]
_FLAKY = 3


class Findings(NamedTuple):
    """What the tests showed."""

    bad: tuple[str, ...]
    """Nodes that failed with every partner."""
    links: tuple[Pair, ...]
    """Pairs that failed although both of their nodes pass with others."""
    unsure: tuple[str, ...]
    """Nodes that failed and could not be tested against a clean one."""
    rounds: int


class Neighbours:
    """A test in progress: take `next_round()`, run it, `give` the results, until it is empty."""

    def __init__(self, nodes: Sequence[str], switch_of: Mapping[str, str] | None = None) -> None:
        self._rings = rings(nodes, switch_of or {})
        self._failed: dict[str, set[str]] = {n: set() for ring in self._rings for n in ring}
        self._passed: dict[str, set[str]] = {n: set() for ring in self._rings for n in ring}
        self._at = 0
        self._rounds = 0
        self._references: list[tuple[Pair, ...]] | None = None
        self._clean: tuple[str, ...] = ()

    def next_round(self) -> tuple[Pair, ...]:
        """Pairs to test next, each node at most once; empty when all is known."""
        while self._at < 4:
            if self._at < 2:
                pairs = tuple(p for ring in self._rings for p in _alternate(ring, self._at))
            else:
                if self._references is None:
                    self._references = self._plan_references()
                at = self._at - 2
                pairs = self._references[at] if at < len(self._references) else ()
            self._at += 1
            if pairs:
                self._rounds += 1
                return pairs
        return ()

    def give(self, results: Mapping[Pair, bool]) -> None:
        """Results of a round: did each pair pass."""
        for (a, b), is_well in results.items():
            kept = self._passed if is_well else self._failed
            kept[a].add(b)
            kept[b].add(a)

    def _plan_references(self) -> list[tuple[Pair, ...]]:
        """Two rounds in which each suspect meets two different clean nodes.

        A clean node serves one suspect a round. With more suspects than clean nodes, more rounds
        would be needed: the suspects left over are reported as unsure, never as good.
        """
        suspects = [n for n, others in self._failed.items() if others]
        clean = [n for n, others in self._failed.items() if not others and self._passed[n]]
        self._clean = tuple(clean)  # from here on they may fail, with a bad partner
        if not suspects or not clean:
            return []
        found = []
        for turn in (0, 1):
            shift = 0 if turn == 0 else max(1, len(clean) // 2)
            used = min(len(suspects), len(clean))
            found.append(
                tuple((suspects[i], clean[(i + shift) % len(clean)]) for i in range(used))
                if turn == 0 or len(clean) > 1
                else ()
            )
        return [pairs for pairs in found if pairs]

    def findings(self) -> Findings:
        """The verdict on what was tested so far."""
        clean = set(self._clean)
        bad, unsure = [], []
        for node, others in self._failed.items():
            if not others:
                continue
            references = (others | self._passed[node]) & clean
            if self._passed[node]:
                continue  # passed with someone: a link, chance, or a node that fails now and then
            if len(references) >= 2 or (references and len(clean) == 1):
                bad.append(node)
            else:
                unsure.append(node)
        for node, others in self._failed.items():
            if node not in bad and len(others - set(bad)) >= _FLAKY:
                bad.append(node)
        unsure = [node for node in unsure if node not in bad]
        blamed = set(bad) | set(unsure)
        links = sorted({
            (min(a, b), max(a, b)) for a, others in self._failed.items() for b in others
            if a not in blamed and b not in blamed
        })  # fmt: skip
        return Findings(tuple(bad), tuple(links), tuple(unsure), self._rounds)


def rings(nodes: Sequence[str], switch_of: Mapping[str, str]) -> list[list[str]]:
    """Nodes by switch, each group a ring of neighbours; lonely nodes form one ring together."""
    groups: dict[str, list[str]] = {}
    for node in dict.fromkeys(nodes):
        groups.setdefault(switch_of.get(node, ""), []).append(node)
    lonely = [g[0] for g in groups.values() if len(g) == 1]
    found = [g for g in groups.values() if len(g) > 1]
    if len(lonely) == 1 and found:
        found[0] = [*found[0], *lonely]
    elif lonely:
        found.append(lonely)
    return found


def _alternate(ring: Sequence[str], turn: int) -> Iterator[Pair]:
    """Even pairs (0-1, 2-3 ...) or odd pairs (1-2, 3-4 ... last-first) of a ring.

    In a ring of odd length the node that would be alone meets nobody this round; it meets one
    neighbour in the other round, and joins the suspects if that fails.
    """
    size = len(ring)
    if size == 2:
        if turn == 0:
            yield ring[0], ring[1]
        return
    last = size - 1 if turn == 0 or size % 2 else size
    for i in range(turn, last, 2):
        yield ring[i], ring[(i + 1) % size]


def tournament(nodes: Sequence[str]) -> list[tuple[Pair, ...]]:
    """Rounds in which every node meets every other once: one stays, the rest go round."""
    ring: list[str] = [*dict.fromkeys(nodes)]
    if len(ring) % 2:
        ring.append("")  # who meets nobody has a rest
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append(tuple((min(p), max(p)) for p in pairs if all(p)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def halves(groups: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """The next round of a bisection: each failed group in two, siblings side by side."""
    found: list[tuple[str, ...]] = []
    for group in groups:
        middle = (len(group) + 1) // 2
        found += [tuple(half) for half in (group[:middle], group[middle:]) if half]
    return found


class Bisection:
    """Faults that show only when many nodes work together: halve what fails until it is small.

    A group that fails while both of its halves pass is reported as it is: the fault needs its size.
    """

    def __init__(self, nodes: Sequence[str], *, smallest: int = 2) -> None:
        self._open: list[tuple[str, ...]] = [tuple(nodes)]
        self._parents: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._smallest = smallest
        self._found: list[tuple[str, ...]] = []
        self.rounds = 0

    def next_round(self) -> list[tuple[str, ...]]:
        """Groups to test side by side; empty when done."""
        return list(self._open)

    def give(self, results: Mapping[tuple[str, ...], bool]) -> None:
        """Results of a round: did each group pass."""
        self.rounds += 1
        failed = [g for g in self._open if not results.get(g, False)]
        for parent in dict.fromkeys(self._parents[g] for g in self._open if g in self._parents):
            children = [g for g in self._open if self._parents.get(g) == parent]
            if all(results.get(g, False) for g in children):
                self._found.append(parent)
        self._found += [g for g in failed if len(g) <= self._smallest]
        larger = [g for g in failed if len(g) > self._smallest]
        self._open = halves(larger)
        self._parents = {half: g for g in larger for half in halves([g])}

    @property
    def suspects(self) -> list[tuple[str, ...]]:
        """The smallest groups that failed, largest last."""
        return sorted(self._found, key=len)
