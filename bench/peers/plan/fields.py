"""Names that other systems' configurations accept, read from their published packages.

    python bench/peers/plan/fields.py torchtitan-0.2.1.whl megatron_core-0.16.1.whl > fields.json

Nothing is run: the classes are read from the syntax trees inside the wheels.
"""

import ast
import json
import sys
import zipfile

FILES = {
    "torchtitan/config/job_config.py": "torchtitan",
    "megatron/core/model_parallel_config.py": "megatron",
    "megatron/core/transformer/transformer_config.py": "megatron",
    "megatron/core/distributed/distributed_data_parallel_config.py": "megatron",
    "megatron/core/optimizer/optimizer_config.py": "megatron",
}


def classes(text: str) -> dict[str, list[str]]:
    return {
        node.name: [a.target.id for a in node.body if isinstance(a, ast.AnnAssign)]
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }


def main() -> None:
    found: dict[str, dict[str, list[str]]] = {"torchtitan": {}, "megatron": {}}
    for wheel in sys.argv[1:]:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name in FILES:
                    found[FILES[name]] |= classes(archive.read(name).decode())
    wanted = {"Model", "Training", "Parallelism", "ActivationCheckpoint", "Compile", "JobConfig"}
    found["torchtitan"] = {k: v for k, v in found["torchtitan"].items() if k in wanted}
    json.dump(found, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
