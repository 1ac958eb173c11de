"""A predicted step as a picture: one row per stage and lane, a bar per action, in plain SVG.

Needs no plotting library; any browser shows it.
"""

from html import escape
from pathlib import Path

from engine.errors import MissingError
from engine.events.schema import Event

COLOURS = {
    "forward": "#4878a8", "backward": "#6aa56a", "backward_input": "#6aa56a",
    "backward_weight": "#a5c86a", "send_f": "#c9a227", "recv_f": "#c9a227",
    "send_b": "#b5651d", "recv_b": "#b5651d", "unshard": "#8c6bb1", "reduce_grad": "#d1605e",
    "optimizer": "#555555",
}  # fmt: skip
"""Names of spans that are drawn, and how."""
_ROW, _WIDTH, _LEFT = 18, 1600.0, 110


def lanes_of(spans: list[Event]) -> list[tuple[int, str]]:
    """Rows of the picture: rank and stream."""
    return sorted({(e.rank, e.stream) for e in spans})


def svg(events: list[Event], *, title: str) -> str:
    """All spans of a step as an SVG document."""
    spans = [e for e in events if e.kind == "span" and e.name in COLOURS and e.dur_ns > 0]
    lanes = lanes_of(spans)
    row = {lane: index for index, lane in enumerate(lanes)}
    end = max((e.t_ns + e.dur_ns for e in spans), default=1)
    scale = _WIDTH / end
    height = (len(lanes) + 3) * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEFT + 20:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        f'<text x="8" y="14">{escape(title)} - {end / 1e9:.3f} s</text>',
    ]
    for (rank, stream), index in row.items():
        parts.append(f'<text x="8" y="{(index + 2) * _ROW - 5}">r{rank} {escape(stream)}</text>')
    for event in spans:
        x = _LEFT + event.t_ns * scale
        y = (row[event.rank, event.stream] + 1) * _ROW
        label = f"{event.name} {event.attrs}"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{max(event.dur_ns * scale, 0.2):.2f}" '
            f'height="{_ROW - 3}" fill="{COLOURS[event.name]}" stroke="white" '
            f'stroke-width="0.2"><title>{escape(label)}</title></rect>'
        )
    legend = "  ".join(f"{name}" for name in COLOURS)
    parts.append(f'<text x="8" y="{height - 6}">{escape(legend)}</text></svg>')
    return "\n".join(parts) + "\n"


def write(path: Path, data: str | bytes) -> None:
    """Write a result file; MissingError if the place does not take it."""
    try:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise MissingError(
            f"{path}: cannot be written: {error.strerror}",
            remedy="give a file in a folder that exists and is writable",
        ) from None
