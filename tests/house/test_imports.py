"""Rule 1: who may know whom, and who may know torch."""

import ast

from tests.house.source import ROWS, dotted, files, imports, name, nodes, room, room_of_module, tree

TORCH_ROOMS = {"job", "train", "parallel", "model", "optim", "data", "ops", "comm", "device"}
TORCH_FILES = {
    # rooms that are free of torch but for these files
    "engine/ckpt/snapshot.py", "engine/ckpt/flush.py", "engine/ckpt/restore.py",
    "engine/ckpt/copying.py", "engine/ckpt/dcp.py",
    "engine/ckpt/piece.py",  # what the three exchange: slices of tensors
    "engine/health/gpu.py", "engine/health/collective.py", "engine/health/init.py",
}  # fmt: skip
DISTRIBUTED_FILES = {"engine/ckpt/dcp.py"}  # torch's checkpoint files, without a process group
JOB_WITHOUT_TORCH = "engine/job/driver.py"
CUDA_FILES = {"engine/device.py", "engine/health/gpu.py", "engine/health/collective.py"}
TERMINAL = ("typer", "rich", "click")
ENTRY_POINTS = {"engine/train/worker.py"}  # a rank under torchrun is a process of its own


def test_every_folder_is_a_room_of_the_table():
    assert {room(p) for p in files() if name(p) != "engine/__init__.py"} <= set(ROWS)


def test_imports_go_down():
    wrong = []
    for path in files():
        here = room(path)
        for item in imports(path) if here != "__init__" else ():
            there = room_of_module(item.module)
            if there in ROWS and there != here and ROWS[there] >= ROWS[here]:
                wrong.append(f"{name(path)}:{item.line}: {here} imports {item.module}")
    assert not wrong, "\n".join(wrong)


def test_torch_stays_behind_its_line():
    free = [
        path for path in files()
        if name(path) not in TORCH_FILES
        and (room(path) not in TORCH_ROOMS or name(path) == JOB_WITHOUT_TORCH)
    ]  # fmt: skip
    wrong = [f"{name(path)}:{i.line}" for path in free for i in imports(path)
             if i.module.split(".")[0] == "torch"]  # fmt: skip
    assert not wrong, f"torch is imported by {wrong}"


def test_only_msctl_knows_the_terminal():
    wrong = [line for path in files() if room(path) != "msctl" for line in _terminal(path)]
    assert not wrong, "\n".join(wrong)


def _terminal(path):
    """What a file has to do with the terminal or the end of the process."""
    wrong = [f"{name(path)}:{i.line}: {i.module}" for i in imports(path)
             if i.module.split(".")[0] in TERMINAL]  # fmt: skip
    forbidden = {"print", "input", "exit"}
    if name(path) not in ENTRY_POINTS:
        forbidden.add("sys.exit")
    guards = [node for node in tree(path).body if isinstance(node, ast.If)
              and ast.unparse(node.test) == "__name__ == '__main__'"]  # fmt: skip
    process = {inner for guard in guards for inner in ast.walk(guard)}  # ends its own process
    wrong += [
        f"{name(path)}:{node.lineno}: {dotted(node.func)}"
        for node in nodes(path)
        if node not in process and isinstance(node, ast.Call) and dotted(node.func) in forbidden
    ]
    return wrong


def test_only_comm_calls_torch_distributed():
    others = [p for p in files() if room(p) != "comm" and name(p) not in DISTRIBUTED_FILES]
    wrong = [f"{name(path)}:{i.line}" for path in others for i in imports(path)
             if i.module.startswith("torch.distributed")]  # fmt: skip
    wrong += [f"{name(path)}:{node.lineno}" for path in others for node in nodes(path)
              if dotted(node).startswith("torch.distributed")]  # fmt: skip
    assert not wrong, wrong


def test_cuda_is_called_in_few_files():
    others = [path for path in files() if name(path) not in CUDA_FILES]
    wrong = [f"{name(path)}:{node.lineno}" for path in others for node in nodes(path)
             if dotted(node).startswith("torch.cuda")]  # fmt: skip
    assert not wrong, wrong


def test_a_package_file_holds_its_docstring_and_nothing_else():
    for path in [p for p in files() if p.name == "__init__.py"]:
        assert ast.get_docstring(tree(path)), f"{name(path)} has no docstring"
        allowed = 2 if name(path) == "msctl/__init__.py" else 1  # its __version__
        assert len(tree(path).body) <= allowed, f"{name(path)} holds more than its docstring"


def test_the_environment_is_read_by_executables_only():
    executables = {"engine/train/worker.py"}  # the rank's entry point under torchrun
    others = [p for p in files() if room(p) not in ("job", "msctl") and name(p) not in executables]
    wrong = [f"{name(path)}:{node.lineno}" for path in others for node in nodes(path)
             if dotted(node) in ("os.environ", "os.getenv")]  # fmt: skip
    assert not wrong, wrong
