"""The report as one HTML file: no server, no network, light and dark.

The page is `page.html` with the report and the picture put in as JSON. Text from logs only ever
becomes text nodes; the JSON is escaped so that no log line can end its element.
"""

from importlib import resources
from pathlib import Path

import msgspec

from engine.diagnose.export import put
from engine.diagnose.finding import Report
from engine.diagnose.load import Spans
from engine.diagnose.picture import picture_of


def write_html(report: Report, path: Path, spans: Spans | None = None) -> int:
    """Write the page; returns its size in bytes."""
    page = resources.files("engine.diagnose").joinpath("page.html").read_text(encoding="utf-8")
    picture = picture_of(report, spans).values
    # the report last: a log line in it may hold any text, also that of a place in the page
    text = page.replace("{{picture}}", _embedded(picture)).replace("{{report}}", _embedded(report))
    data = text.encode()
    put(path, data)
    return len(data)


def _embedded(value: object) -> str:
    """JSON that is safe inside a script element of any HTML parser."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
