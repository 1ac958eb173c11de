import pytest

from engine.plan.words import attention_of, system_of, zero_of


@pytest.mark.parametrize(
    ("row", "system"),
    [
        ({"zero_stage_or_dist_opt": "FSDP2 (ZeRO-3)", "tp": "1"}, "fsdp"),
        ({"attention": "TE/cuDNN fused", "tp": "1"}, "nemo"),
        ({"zero_stage_or_dist_opt": "ZeRO-3", "year": "2021", "tp": "1"}, "deepspeed-2021"),
        ({"overlap": "none (launch blocking)", "tp": "1"}, "megatron-deepspeed"),
        ({"attention": "flash", "tp": "1"}, "megatron-flash"),
        ({"attention": "full (unfused)", "tp": "1"}, "megatron-2021"),
        ({"model_name": "GPT 32B (Megatron-Core)", "tp": "8"}, "nemo"),
    ],
)
def test_systems_are_recognised_by_what_rows_say(row, system):
    assert system_of(row) == system


@pytest.mark.parametrize(
    ("text", "system", "kernel", "guessed"),
    [
        ("TE/cuDNN fused", "nemo", "cudnn", False),
        ("flash (torch/triton impl)", "fsdp", "triton", False),
        ("SDPA flash2", "fsdp", "flash2", False),
        ("full (fused softmax kernel)", "megatron-deepspeed", "fused-softmax", False),
        ("full (unfused)", "megatron-2021", "unfused", False),
        ("torch", "megatron-2021", "eager", False),
        ("", "megatron-core", "cudnn", True),
        ("", "megatron-2021", "unfused", True),
    ],
)
def test_kernels_are_read_and_guesses_are_named(text, system, kernel, guessed):
    notes = []
    assert attention_of({"attention": text}, system, notes) == kernel
    assert bool(notes) == guessed


@pytest.mark.parametrize(
    ("text", "stage", "ranks"),
    [
        ("ZeRO-1 over 8 ranks (hybrid)", 1, 8),
        ("FSDP2 (ZeRO-3)", 3, 0),
        ("HSDP (hybrid shard)", 3, 8),
        ("dist-opt", 1, 0),
        ("ZeRO-2", 2, 0),
        ("none", 0, 0),
    ],
)
def test_what_is_sharded_is_read(text, stage, ranks):
    assert zero_of(text, {}) == (stage, ranks)
