"""The process groups that a Megatron-LM style 3D layout creates."""


def layout(world, tp=8, pp=8):
    """A list of (name, ranks), in creation order; tp innermost, then dp, then pp."""
    tp = min(tp, world)
    pp = max(1, min(pp, world // tp))
    dp = world // (tp * pp)
    assert tp * pp * dp == world, (tp, pp, dp, world)
    span = tp * dp  # ranks in one pipeline stage
    out = []
    for s in range(pp):
        for t in range(tp):
            out.append(("dp", [s * span + t + tp * d for d in range(dp)]))
    for d in range(dp):
        out.append(("mp", [s * span + d * tp + t for s in range(pp) for t in range(tp)]))
    for i in range(world // tp):
        out.append(("tp", list(range(i * tp, (i + 1) * tp))))
    for i in range(span):
        chain = [i + s * span for s in range(pp)]
        out.append(("pp", chain))
        out.append(("emb", sorted({chain[0], chain[-1]})))
        out.append(("pos", [chain[0]]))
    return out


def phases(groups, world):
    """Runs of disjoint groups, which all their ranks can create at the same time."""
    out = []
    for name, ranks in groups:
        for ph in out:
            if ph["name"] == name and not (ph["seen"] & set(ranks)):
                ph["seen"] |= set(ranks)
                ph["groups"].append(ranks)
                break
        else:
            out.append({"name": name, "seen": set(ranks), "groups": [ranks]})
    return out


if __name__ == "__main__":
    for w in (64, 256, 1024, 2048, 12288):
        g = layout(w)
        print(
            w,
            "ranks:",
            len(g),
            "groups,",
            sum(len(r) for _, r in g),
            "memberships,",
            sum(1 for _, r in g if 0 in r),
            "for rank 0,",
            len(phases(g, w)),
            "phases" if w <= 2048 else "",
        )
