"""The pictures of the documentation are what the code draws now."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.house.source import ROOT
from tools.pictures import FOLDER, PICTURES, stale

OF_THE_PLAN = ("ladder.svg",)


@pytest.mark.parametrize("name", [n for n in PICTURES if n not in OF_THE_PLAN])
def test_a_picture_is_current(name):
    assert not stale((name,)), f"{name} is stale: run make pictures"


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THE_PLAN)
def test_a_picture_of_predictions_is_current(name):
    assert not stale((name,)), f"{name} is stale: run make pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_well_formed_light_and_dark_and_loads_nothing(name):
    text = (FOLDER / name).read_text()
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"(?:href|src|url)\s*[=(]", text) == []


def test_every_picture_is_shown_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text() for page in pages)
    assert [name for name in PICTURES if name not in text] == []
