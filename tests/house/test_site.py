"""The documentation as a site: it builds without a warning and loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tests.house.source import ROOT

pytest.importorskip("mkdocs")
pytestmark = [pytest.mark.multi, pytest.mark.slow]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Loads(HTMLParser):
    """What a browser fetches by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(said.get("src"))
        if tag == "link" and said.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(said.get("href"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        assert [one for one in parser.found if one and "//" in one] == [], page
    for style in site.rglob("*.css"):
        linked = re.findall(
            r"url\(['\"]?(?!['\"]?data:)([^)'\"]*)", style.read_text(encoding="utf-8")
        )
        assert [one for one in linked if "//" in one] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["index.html", "explanation/diagnose-accuracy.html"])
def test_a_browser_shows_a_page_without_an_error_or_a_request(site, width, name, tmp_path):
    script = (
        "<script>addEventListener('load', () => { document.body.dataset.wide ="
        " document.documentElement.scrollWidth - innerWidth; })</script></body>"
    )
    page = site / name
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    seen = subprocess.run(
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--window-size={width},900", f"--user-data-dir={tmp_path}", "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=4000", f"file://{page}",
        ],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    told = [line for line in seen.stderr.splitlines() if ":CONSOLE" in line]
    wrong = [line for line in told if "Uncaught" in line or "ERR_" in line or "net::" in line]
    # a page opened as a file has no service that could count stars or versions
    assert [line for line in wrong if "Worker" not in line] == []
    wide = re.search(r'data-wide="(-?\d+)"', seen.stdout)
    assert wide is not None
    assert int(wide[1]) <= 0
