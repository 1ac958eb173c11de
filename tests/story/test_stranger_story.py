"""A stranger: an empty home, an empty environment, the wheel, the promised commands elsewhere."""

import subprocess
import sys

import pytest

from tools.package import build, smoke

pytestmark = [pytest.mark.multi, pytest.mark.slow]


def test_the_wheel_in_an_empty_environment_gives_a_plan_and_a_verdict(tmp_path):
    pytest.importorskip("build")
    wheel = build(tmp_path)
    try:
        faults = smoke(sys.executable, wheel, full=False)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip cannot install here: {error}")
    assert faults == []
