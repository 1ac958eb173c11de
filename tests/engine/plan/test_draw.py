import xml.etree.ElementTree as ElementTree

import pytest

from engine.errors import MissingError
from engine.plan.draw import svg, write
from engine.plan.setup import PlanLayout
from engine.plan.simulate import predicted_events
from tests.engine.plan.case import job


def test_the_picture_is_well_formed_and_has_a_bar_for_every_action():
    events = predicted_events(job("13b", gpus=32, batch=8), PlanLayout(tp=8, pp=4))
    root = ElementTree.fromstring(svg(events, title="a < b"))
    bars = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(bars) >= 2 * 4 * 8


def test_a_place_that_takes_no_file_is_named(tmp_path):
    with pytest.raises(MissingError) as caught:
        write(tmp_path / "absent" / "x.svg", "x")
    assert "absent" in caught.value.what
