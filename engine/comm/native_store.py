"""The native form of the Redis store: find it, build it, open it.

Same keys and scripts as `engine/comm/store.py`, so that ranks of both forms may meet. torch's
threads use it without the interpreter's lock: the watchdog of NCCL is not starved by a busy rank.
torch's store interface is not part of its stable ABI, so a library serves one torch and one Python;
where there is none the Python form serves. Sources: engine/csrc/store.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.comm.resp import parse_url
from engine.comm.store import SCRIPTS, RedisStore
from engine.errors import MissingError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "store"
_NAME = "msctl_store"
_BUILD_S = 600.0
_IO_S = 5.0


def best_store(url: str, *, prefix: str, timeout_s: float) -> dist.Store:
    """The native form if it has been built for this torch, else the Python form."""
    library = library_path()
    if library.is_file() and not parse_url(url).tls:
        try:
            return native_store(url, prefix=prefix, timeout_s=timeout_s, library=library)
        except MissingError as error:
            logger.warning("the Python form of the store is used: %s", error.what)
    return RedisStore(url, prefix=prefix, timeout_s=timeout_s)


def native_store(
    url: str, *, prefix: str = "", timeout_s: float = 300.0, library: Path | None = None,
    io_s: float = _IO_S,
) -> dist.Store:  # fmt: skip
    """A store on Redis in C++. MissingError without its library, or if the server wants TLS."""
    module = _load(library or library_path())
    at = parse_url(url)
    if at.tls:
        raise MissingError("the native store speaks no TLS", remedy="use the Python form")
    address = module.Address(
        host=at.host, port=at.port, path=at.path, user=at.user, password=at.password,
        database=at.database,
    )  # fmt: skip
    found: dist.Store = module.RedisStore(
        address=address, prefix=prefix, ids=f"{uuid.uuid4().hex}:", scripts=list(SCRIPTS),
        timeout_s=timeout_s, io_s=io_s,
    )  # fmt: skip
    return found


def library_path(cache: Path | None = None) -> Path:
    """Where the library for these sources, this torch and this Python is, or would be."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    key = (torch.__version__, sysconfig.get_config_var("SOABI"), platform.machine())
    digest.update(repr(key).encode())
    folder = cache or Path.home() / ".cache" / "msctl" / "native"
    return folder / f"{_NAME}-{digest.hexdigest()}.so"


def build(cache: Path | None = None) -> Path:
    """Compile the library if it is not there: about 20 s of one core. MissingError says why not."""
    library = library_path(cache)
    if library.is_file():
        return library
    for tool in ("make", "c++"):
        if shutil.which(tool) is None:
            raise _absent(f"{tool} is not installed")
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        command = [
            "make", "-C", str(SOURCES), "-f", "store.mk", f"OUT={folder}", f"NAME={_NAME}.so",
            f"TORCH={Path(torch.__file__).parent}",
            f"PYTHON_INCLUDE={sysconfig.get_paths()['include']}",
        ]  # fmt: skip
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=_BUILD_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise _absent(f"the build took longer than {_BUILD_S:.0f} s") from None
        if ended.returncode:
            said = [line for line in ended.stderr.splitlines() if "rror" in line]
            raise _absent(f"the build failed: {said[0].strip() if said else ended.returncode}")
        os.replace(Path(folder, f"{_NAME}.so"), library)
    return library


@functools.cache
def _load(library: Path) -> Any:
    """The library as a module; only from a folder that nobody else can write to."""
    try:
        state = library.parent.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise _absent(f"{library.parent} is not the user's own, or others may write to it")
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
        spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
        assert spec is not None, "a loader was given"
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise _absent(f"{library} does not load: {error}") from None
    return module


def _absent(why: str) -> MissingError:
    return MissingError(
        f"no native store: {why}",
        remedy=f"install make, c++ and Python's headers, then run `{Path(sys.executable).name} "
        "-m engine.comm.native_store`; the Python form works without",
    )


if __name__ == "__main__":
    print(build())
