"""A job is followed from its folder to its end; one whose driver is gone is not waited for."""

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from engine.errors import MissingError
from engine.job.follow import follow
from engine.job.view import JobView, ViewWriter

VIEW = JobView(job="j", state="running", attempt=0, driver_pid=os.getpid(), time_s=time.time(),
               step=1, total_steps=9)  # fmt: skip


def test_each_view_is_given_once_until_the_end(tmp_path: Path):
    writer = ViewWriter(tmp_path)
    writer.write(VIEW)
    end = msgspec.structs.replace(VIEW, state="done", step=9, time_s=VIEW.time_s + 1)
    timer = threading.Timer(0.2, writer.write, (end,))
    timer.start()
    assert [(v.state, v.step) for v in follow(tmp_path, every_s=0.01)] == [
        ("running", 1), ("done", 9),
    ]  # fmt: skip
    timer.join()


def test_a_driver_that_is_gone_is_an_error_with_the_way_on(tmp_path: Path):
    old = msgspec.structs.replace(VIEW, time_s=time.time() - 60, driver_pid=1 << 22)
    ViewWriter(tmp_path).write(old)
    with pytest.raises(MissingError) as caught:
        list(follow(tmp_path, every_s=0.01))
    assert "takes over" in caught.value.remedy
