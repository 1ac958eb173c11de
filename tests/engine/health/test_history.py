"""Earlier looks: written, read back, bounded, and nodes that were unfit before."""

from engine.health import history
from engine.health.history import FILE, Past, lemons, recall, remember
from engine.health.result import CheckResult, NodeReport

DAY_S = 86400.0


def report(node, status="ok", time_s=1000.0):
    result = CheckResult(check="gpu.ecc", target="gpu3", status=status, message="2 errors")
    return NodeReport(node=node, machine="m", profile="p", level="light", time_s=time_s, seconds=2,
                      results=(result,))  # fmt: skip


def test_looks_are_read_back_in_order_for_one_node_or_all(tmp_path):
    folder = tmp_path / "new"
    assert recall(folder) == []
    assert remember(folder, [report("a"), report("b", "fail")])
    assert remember(folder, [report("a", "warn", 2000.0)])
    assert [(p.node, p.status) for p in recall(folder)] == [
        ("a", "ok"), ("b", "fail"), ("a", "warn"),
    ]  # fmt: skip
    (past,) = recall(folder, "b")
    assert (past.worst, past.level, past.seconds) == ("gpu.ecc gpu3: 2 errors", "light", 2.0)


def test_torn_and_foreign_lines_are_skipped(tmp_path):
    remember(tmp_path, [report("a")])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"node": 3}\n\xff\xfe\n{"node":"b","time_s"')
    assert [p.node for p in recall(tmp_path)] == ["a"]


def test_a_long_history_loses_its_older_half(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_MAX_BYTES", 4000)
    for number in range(60):
        remember(tmp_path, [report(f"n{number:02d}")])
    kept = [p.node for p in recall(tmp_path)]
    assert kept[-1] == "n59"
    assert kept == [f"n{n:02d}" for n in range(60 - len(kept), 60)]
    assert (tmp_path / FILE).stat().st_size < 4500


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    assert not remember(tmp_path / "file", [report("a")])


def test_lemons_are_nodes_that_were_unfit_in_the_last_month():
    def past(node, status, days):
        return Past(node=node, time_s=100 * DAY_S - days * DAY_S, level="light", status=status)

    looks = [past("a", "fail", 1), past("a", "error", 20), past("a", "warn", 2),
             past("b", "fail", 31), past("c", "ok", 1)]  # fmt: skip
    assert lemons(looks, now_s=100 * DAY_S) == {"a": 2}
