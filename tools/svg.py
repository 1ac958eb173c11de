"""A few SVG elements whose colours follow the reader's light or dark setting."""

from collections.abc import Iterable
from html import escape

STYLE = (
    "<style>:root{--ink:#1f2328;--soft:#6e7781;--line:#d0d7de;--paper:#ffffff;"
    "--a:#0969da;--b:#8250df;--c:#1a7f37;--d:#bc4c00;--e:#9a6700;--f:#57606a;--bad:#cf222e}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#8d96a0;--line:#3d444d;"
    "--paper:#0d1117;--a:#4493f8;--b:#ab7df8;--c:#3fb950;--d:#f0883e;--e:#d29922;--f:#9198a1;"
    "--bad:#f85149}}"
    "text{font:12px system-ui,sans-serif;fill:var(--ink)}.soft{fill:var(--soft)}"
    ".in{fill:var(--paper);font-size:10px;text-anchor:middle}.end{text-anchor:end}"
    ".mid{text-anchor:middle}</style>"
)
COLOURS = ("a", "b", "c", "d", "e", "f")


def page(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """A whole picture; the title is what a screen reader says."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img" aria-label="{escape(title)}">\n{STYLE}\n'
        f'<rect width="{width:g}" height="{height:g}" fill="var(--paper)"/>\n{body}\n</svg>\n'
    )


def box(x: float, y: float, w: float, h: float, colour: str, *, shade: float = 1.0) -> str:
    """A filled rectangle in a named colour, shade 0..1."""
    seen = f' fill-opacity="{shade:.2f}"' if shade < 1 else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
        f'fill="var(--{colour})"{seen}/>'
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text; kind is a class of the style."""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name}>{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = "bad") -> str:
    """A line with a dot where it arrives."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--{colour})" '
        f'stroke-width="1.2"/><circle cx="{x2:.1f}" cy="{y2:.1f}" r="2.4" fill="var(--{colour})"/>'
    )
