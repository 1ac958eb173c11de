#!/usr/bin/env python3
"""A real HDFS (NameNode and DataNode) on this machine, for tests; needs Java 8 to 17.

    python hdfs_local.py start DIR [--port 19000]    prints the URL of the file system
    python hdfs_local.py stop DIR
    python hdfs_local.py freeze|thaw|kill|run DIR namenode|datanode

The source package of pyspark 2.4.8 contains Hadoop 2.7.3 with its servers (later releases contain
clients only): pip downloads it once per DIR, and the 55 jars that are needed (39 MB) are kept.
WebHDFS is on if Debian's libjersey1-core-java, libjersey1-server-java, libjersey1-servlet-java and
libasm-java are installed.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

VERSION = "2.4.8"
KEEP = (
    "hadoop-annotations", "hadoop-auth", "hadoop-common", "hadoop-hdfs", "commons-", "guava-",
    "protobuf-java", "htrace-", "netty-3", "netty-all", "log4j-1", "slf4j-", "xercesImpl", "xmlenc",
    "jackson-core-asl", "jackson-mapper-asl", "jackson-jaxrs", "jackson-xc", "javax.servlet-api",
    "jetty-", "jsp-api", "leveldbjni", "jcl-over", "apacheds", "api-", "curator-", "zookeeper",
    "gson-", "avro-1", "jsr305", "paranamer", "snappy-java", "httpc", "jaxb-", "stax-api",
    "activation-", "javax.ws.rs-api",
)  # fmt: skip
NODES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.net", "java.io", "java.nio", "sun.nio.ch")
]
JERSEY = ("jersey1-core", "jersey1-server", "jersey1-servlet", "jsr311-api", "asm")
LOGGING = """log4j.rootLogger=WARN,c
log4j.appender.c=org.apache.log4j.ConsoleAppender
log4j.appender.c.target=System.err
log4j.appender.c.layout=org.apache.log4j.PatternLayout
log4j.appender.c.layout.ConversionPattern=%d %p %c{2}: %m%n
"""
START_S = 120.0


class Hdfs:
    """One NameNode and one DataNode whose files lie in a folder."""

    def __init__(self, root: str | Path, port: int = 19000) -> None:
        self.root, self.port = Path(root).absolute(), port
        self.url = f"hdfs://127.0.0.1:{port}"

    @property
    def has_webhdfs(self) -> bool:
        """Whether the NameNode's HTTP interface can run (port + 1)."""
        return len(_jersey()) == len(JERSEY)

    def start(self) -> None:
        """Download, configure and format where that was not done; return when it serves."""
        self.root.mkdir(parents=True, exist_ok=True)
        if shutil.which("java") is None:
            sys.exit("hdfs_local.py needs Java 8 to 17, e.g. apt-get install openjdk-17-jre")
        fetch_jars(self.root)
        self._configure()
        if not (self.root / "name" / "current").is_dir():
            format_ = self._spawn("namenode", "-format", "-force", "-nonInteractive")
            if format_.wait(90):
                sys.exit(f"format failed, see {self.root / 'namenode.log'}")
        for node in NODES:
            self.run(node)

    def run(self, node: str) -> None:
        """Start one daemon and wait for its port."""
        (self.root / f"{node}.pid").write_text(str(self._spawn(node).pid))
        _wait_for(self.port + (0 if node == "namenode" else 5), self.root / f"{node}.log")

    def send(self, node: str, sign: signal.Signals) -> None:
        """Signal a daemon; no error if it is gone."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.root / f"{node}.pid").read_text()), sign)

    def stop(self) -> None:
        """End both, frozen or not."""
        for node in NODES:
            self.send(node, signal.SIGTERM)
            self.send(node, signal.SIGCONT)

    def _spawn(self, node: str, *arguments: str) -> "subprocess.Popen[bytes]":
        path = ":".join([str(self.root / "conf"), *_jersey(), str(self.root / "jars" / "*")])
        with (self.root / f"{node}.log").open("ab") as log:
            return subprocess.Popen(
                ["java", *OPENS, "-Xmx384m", "-cp", path, NODES[node], *arguments],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _configure(self) -> None:
        conf, port = self.root / "conf", self.port
        for part in ("hdfs", "datanode", "secondary"):
            web = conf / "webapps" / part / "WEB-INF"
            web.mkdir(parents=True, exist_ok=True)
            (web / "web.xml").write_text('<?xml version="1.0"?><web-app version="2.5"/>')
        (conf / "webapps" / "static").mkdir(exist_ok=True)
        site = {
            "fs.defaultFS": self.url,
            "hadoop.tmp.dir": self.root / "tmp",
            "dfs.replication": 1,
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.fs-limits.min-block-size": 1024,
            "dfs.namenode.name.dir": f"file://{self.root / 'name'}",
            "dfs.datanode.data.dir": f"file://{self.root / 'data'}",
            "dfs.namenode.http-address": f"127.0.0.1:{port + 1}",
            "dfs.namenode.https-address": f"127.0.0.1:{port + 2}",
            "dfs.datanode.address": f"127.0.0.1:{port + 3}",
            "dfs.datanode.http.address": f"127.0.0.1:{port + 4}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{port + 5}",
            "dfs.webhdfs.enabled": str(self.has_webhdfs).lower(),
        }
        entries = (
            f"<property><name>{k}</name><value>{v}</value></property>" for k, v in site.items()
        )
        body = f"<configuration>{''.join(entries)}</configuration>"
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(body)
        (conf / "log4j.properties").write_text(LOGGING)


def fetch_jars(root: Path) -> None:
    """Take the jars out of the source package, unless they are there."""
    jars, download = root / "jars", root / "download"
    if list(jars.glob("hadoop-hdfs-*.jar")):
        return
    download.mkdir(exist_ok=True)
    limits = download / "constraints.txt"  # its setup.py needs a pypandoc that still has convert()
    limits.write_text("pypandoc<1.5\n")
    pins = {"PIP_CONSTRAINT": str(limits), "PIP_BUILD_CONSTRAINT": str(limits)}
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "pyspark",
         "-d", str(download), f"pyspark=={VERSION}"],
        check=True, env=os.environ | pins,
    )  # fmt: skip
    archive, draft = download / f"pyspark-{VERSION}.tar.gz", root / "jars.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            data = tar.extractfile(member) if "/deps/jars/" in member.name else None
            if data is not None and name.startswith(KEEP):
                (draft / name).write_bytes(data.read())
    draft.rename(jars)
    archive.unlink()


def _jersey() -> list[str]:
    paths = [f"/usr/share/java/{name}.jar" for name in JERSEY]
    return [path for path in paths if os.path.exists(path)]


def _wait_for(port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                sys.exit(f"port {port} does not answer, see {log}")
            time.sleep(0.3)


SIGNALS = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "kill": signal.SIGKILL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["start", "stop", "run", *SIGNALS])
    parser.add_argument("dir")
    parser.add_argument("node", nargs="?", choices=list(NODES))
    parser.add_argument("--port", type=int, default=19000)
    args = parser.parse_args()
    hdfs = Hdfs(args.dir, args.port)
    if args.action == "start":
        hdfs.start()
        print(hdfs.url)
    elif args.action == "stop":
        hdfs.stop()
    elif args.node is None:
        parser.error(f"{args.action} needs a node: {' or '.join(NODES)}")
    elif args.action == "run":
        hdfs.run(args.node)
    else:
        hdfs.send(args.node, SIGNALS[args.action])


if __name__ == "__main__":
    main()
