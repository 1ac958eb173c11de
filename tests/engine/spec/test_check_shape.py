import pytest

from engine.spec.check import check
from tests.engine.spec.samples import changed


@pytest.mark.parametrize(
    ("sections", "what", "remedy"),
    [({"model": {"heads": 3}, "layout": {"tp": 1}}, "does not divide model.hidden = 64",
     "set model.heads to 1 or 2 or 4"),
     ({"model": {"kv_heads": 3}, "layout": {"tp": 1}}, "model.kv_heads = 3",
      "set model.kv_heads to 1 or 2 or 4"),
     ({"model": {"hidden": 60, "position": "rotary"}}, "model.head_dim = 15 is odd", "to 16"),
     ({"model": {"dropout": 1.0}}, "drops everything", "below 1"),
     ({"model": {"window": 65}}, "model.window = 65 is not from 0 to model.seq = 64", "up to 64"),
     ({"model": {"window": -1}}, "model.window = -1", "up to 64"),
     ({"model": {"window": [8] * 9}}, "lists 9 values for model.layers = 8", "list 1 to 8"),
     ({"model": {"window": []}}, "lists 0 values", "list 1 to 8"),
     ({"layout": {"tp": 3}},
      "layout.tp = 3 does not divide model.heads = 4 nor model.ffn = 256 nor "
      "model.vocab = 256 nor model.seq = 64 (split by", "set layout.tp to 1 or 2 or 4"),
     ({"model": {"vocab": 257}}, "does not divide model.vocab = 257", "set layout.tp to 1"),
     ({"model": {"kv_heads": 1}}, "does not divide model.kv_heads = 1", "set layout.tp to 1"),
     ({"model": {"seq": 63}}, "does not divide model.seq = 63", "layout.tp to 1"),
     ({"layout": {"pp": 1, "dp": 1}}, "layout.vpp = 2 cuts the model into chunks", "vpp to 1"),
     ({"layout": {"vpp": 3}}, "= 2 * 3 = 6 does not divide model.layers = 8", "is 2 or 4 or 8"),
     ({"batch": {"global_batch": 18}}, "is not a multiple of", "to 16 or 20"),
     ({"batch": {"global_batch": 2}}, "is not a multiple of", "set batch.global_batch to 4"),
     ({"batch": {"global_batch": 20}}, "gives 5 micro-batches", "batch.global_batch to 16"),
     ({"schedule": {"kind": "1f1b"}}, 'schedule.kind = "1f1b" holds one chunk', "kind to auto"),
     ({"batch": {"global_batch": 1 << 26}}, "the limit is 1048576", "raise"),
     ({"model": {"layers": 8 << 20}}, "beyond the limit of 10000", "at most 10000"),
     ({"overlap": {"tp": True, "tp_pieces": 1}}, "hides nothing: with overlap.tp_pieces = 1",
      "to 0 (auto)"),
     ({"overlap": {"tp": True}, "layout": {"sequence_parallel": False}},
      "hides nothing: without sequence parallelism", "layout.sequence_parallel to true"),
     ({"overlap": {"tp_halves": True}, "batch": {"micro_batch": 1, "global_batch": 8}},
      "batch.micro_batch = 1 has no halves", "to an even number"),
     ({"overlap": {"tp_halves": True}, "train": {"recompute": "full"}},
      'train.recompute = "full" runs whole layers again', "to selective or none"),
     ({"overlap": {"tp": True}, "model": {"seq": 34}}, "into 2 to 16 equal pieces", "model.seq"),
     ({"overlap": {"tp_pieces": 5}}, "does not divide the 32 tokens of a rank", "to 2 or 4 or 8"),
     ({"schedule": {"group": 3}}, "do not fall into rounds of schedule.group = 3", "to 0"),
     ({"schedule": {"kind": "breadth-first", "run_ahead": 2}}, "is fixed, but", "run_ahead to 0"),
     ({"schedule": {"kind": "breadth-first", "group": 2}}, "has no rounds", "to 0"),
     ({"seed": 1 << 63}, "seed = 9223372036854775808 is beyond", "at most")],
)  # fmt: skip
def test_a_contradiction_is_found_and_only_it(sections, what, remedy):
    given = frozenset() if "hidden" in str(sections) or "heads" in str(sections) else None
    problems = check(changed(**sections), given=given)
    assert len(problems) == 1, problems
    assert what in problems[0].what.replace(" (default)", "")
    assert remedy in problems[0].remedy


@pytest.mark.parametrize(
    "sections",
    [{}, {"model": {"seq": 63}, "layout": {"sequence_parallel": False}}, {"layout": {"tp": 4}},
     {"model": {"kv_heads": 2}}, {"model": {"window": [8, 0]}},
     {"schedule": {"kind": "interleaved"}},
     {"layout": {"vpp": 1}, "schedule": {"kind": "gpipe"}}, {"layout": {"pp": 1, "vpp": 1}},
     {"model": {"heads": 3, "head_dim": 10}, "layout": {"tp": 1}}],
)  # fmt: skip
def test_what_fits_passes(sections):
    assert check(changed(**sections)) == []
