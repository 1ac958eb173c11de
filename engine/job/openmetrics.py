"""The driver's numbers for a Prometheus: one page of OpenMetrics text, served by a thread."""

import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

from engine.errors import MissingError
from engine.job.state import JOB, NODE
from engine.job.view import JobView

_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def page(view: JobView) -> str:
    """The view as OpenMetrics text; units in the names, one line per node where it is of nodes."""
    return "\n".join([*_lines(view), "# EOF", ""])


def _lines(view: JobView) -> Iterator[str]:
    job = {"job": view.job}
    yield from _family("msctl_step", "gauge", "Optimizer updates done", [(job, view.step)])
    yield from _family(
        "msctl_steps", "gauge", "Updates of the whole run", [(job, view.total_steps)]
    )
    yield from _family(
        "msctl_step_seconds", "gauge", "Usual length of a step", [(job, view.step_s)]
    )
    yield from _family("msctl_mfu_ratio", "gauge", "Model FLOP/s over peak", [(job, view.mfu)])
    rate = [(job, view.tokens_per_s)]
    yield from _family("msctl_tokens_per_second", "gauge", "Speed of training", rate)
    if view.loss is not None:
        yield from _family("msctl_loss", "gauge", "Nats per token", [(job, view.loss)])
    counter = [(job, view.restarts)]
    yield from _family("msctl_restarts", "counter", "Starts of ranks after the first", counter)
    states = [(job | {"msctl_state": name}, int(name == view.state)) for name in JOB]
    yield from _family("msctl_state", "stateset", "State of the job", states)
    nodes = [
        (job | {"node": n.node, "msctl_node_state": s}, int(s == n.state))
        for n in view.nodes
        for s in NODE
    ]
    yield from _family("msctl_node_state", "stateset", "State of a node", nodes)
    for name, about, value in (
        ("msctl_node_load", "Processes that want to run", lambda n: n.load),
        ("msctl_node_memory_free_bytes", "Memory to be had", lambda n: n.memory_free_bytes),
        ("msctl_node_received_bytes", "By all network cards", lambda n: n.received_bytes),
        ("msctl_node_sent_bytes", "By all network cards", lambda n: n.sent_bytes),
        ("msctl_node_gpu_celsius", "The hottest", lambda n: n.gpu_temperature),
        ("msctl_node_ecc_uncorrected", "Uncorrected errors", lambda n: n.ecc_uncorrected),
    ):
        rows = [(job | {"node": n.node}, value(n)) for n in view.nodes if value(n) is not None]
        yield from _family(name, "gauge", about, rows)


def _family(
    name: str, kind: str, about: str, rows: list[tuple[dict[str, str], Any]]
) -> Iterator[str]:
    if not rows:
        return
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {about}."
    suffix = "_total" if kind == "counter" else ""
    for labels, value in rows:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{suffix}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsPage:
    """Serves `/metrics` on this machine's loopback while it is open."""

    def __init__(self, port: int, view: Callable[[], JobView], *, host: str = "127.0.0.1") -> None:
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path not in ("/", "/metrics"):
                    self.send_error(404)
                    return
                body = page(view()).encode()
                self.send_response(200)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody wants a line a scrape."""

        try:
            self._server = http.server.ThreadingHTTPServer((host, port), Answer)
        except OSError as error:
            raise MissingError(
                f"job.metrics_port = {port}: cannot listen there: {error.strerror}",
                remedy="choose another port, or 0 for no page",
            ) from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
