"""Read what `msctl plan --emit` writes with the parsers of the systems it is for.

    bench/peers/plan/check_emit.sh FOLDER

makes a virtual environment in FOLDER, installs torchtitan and megatron-core there and runs this.
torchtitan's own ConfigManager reads the TOML; the flags for Megatron-LM become the fields of
megatron-core's configuration classes, whose own checks run when they are made. Flags that only
Megatron-LM's training script has (it is on no package index) are counted as not checked.
"""

import argparse
import dataclasses
import importlib.util
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PLANS = (
    ("175b", "1024", ()),
    ("llama3-8b", "64", ("--set", "layout.pp=2")),
    ("llama3-70b", "512", ("--cluster", "h100-nvl8", "--set", "layout.tp=8")),
    ("llama2-13b", "128", ("--set", "layout.recompute=full")),
)


def emitted(python: str, kind: str, model: str, gpus: str, more: tuple[str, ...]) -> str:
    """What msctl writes, by the interpreter that has msctl."""
    command = [python, "-m", "msctl", "plan", "--model", model, "--gpus", gpus, *more,
               "--emit", kind, "-q"]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def torchtitan(text: str) -> str:
    """Parse a TOML with torchtitan's ConfigManager; the package's own start-up needs a GPU."""
    if "torchtitan" not in sys.modules:
        package = types.ModuleType("torchtitan")
        spec = importlib.util.find_spec("torchtitan")
        assert spec is not None, "torchtitan is installed"
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["torchtitan"] = package
    from torchtitan.config import ConfigManager

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        config = ConfigManager().parse_args(["--job.config_file", file.name])
    one = config.parallelism
    return (
        f"tp {one.tensor_parallel_degree} pp {one.pipeline_parallel_degree} "
        f"dp {one.data_parallel_shard_degree} {one.pipeline_parallel_schedule}"
    )


def megatron(text: str) -> str:
    """Make megatron-core's configuration objects from the flags."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    flags = {
        name.replace("-", "_"): (value or "true")
        for name, value in re.findall(r"--([a-z0-9-]+)(?: ([^-\\\n][^\\\n]*?))?\s*(?:\\|$)", text)
    }
    rename = {"num_query_groups": "num_query_groups", "micro_batch_size": None}
    used: set[str] = set()
    made = []
    for kind in (TransformerConfig, DistributedDataParallelConfig, OptimizerConfig):
        fields = {f.name: f.type for f in dataclasses.fields(kind)}
        values = {}
        for flag, value in flags.items():
            name = rename.get(flag, flag)
            if name in fields:
                values[name] = _value(value)
                used.add(flag)
        if kind is TransformerConfig and int(flags["pipeline_model_parallel_size"]) > 1:
            values["pipeline_dtype"] = __import__("torch").bfloat16
            each = flags.get("num_layers_per_virtual_pipeline_stage")
            if each:
                stages = int(flags["pipeline_model_parallel_size"])
                values["virtual_pipeline_model_parallel_size"] = (
                    int(flags["num_layers"]) // stages // int(each)
                )
        made.append(kind(**values))
    one = made[0]
    left = sorted(set(flags) - used)
    return (
        f"tp {one.tensor_model_parallel_size} pp {one.pipeline_model_parallel_size} "
        f"vpp {one.virtual_pipeline_model_parallel_size}; not checked: {', '.join(left)}"
    )


def _value(text: str) -> object:
    """A flag's value in the type it looks like."""
    if text == "true":
        return True
    if "," in text:
        return tuple(int(word) for word in text.split(","))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("msctl", help="interpreter that has msctl")
    python = parser.parse_args().msctl
    failed = 0
    for model, gpus, more in PLANS:
        for kind, reader in (("torchtitan", torchtitan), ("megatron", megatron)):
            try:
                says = reader(emitted(python, kind, model, gpus, more))
            except subprocess.CalledProcessError as error:
                says, failed = f"FAILED: {error.stderr.strip()[-300:]}", failed + 1
            except Exception as error:
                says, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
            print(f"{kind:10s} {model:11s} {gpus:>5s}  {says}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
