import logging

import pytest

from engine import log


@pytest.fixture(autouse=True)
def _restore_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_line_names_level_process_and_logger(tmp_path):
    log.configure("r00012", level=logging.INFO, file=tmp_path / "log" / "rank.log", stderr=False)
    logging.getLogger("engine.comm").info("group ready ranks=%d", 8)
    logging.getLogger("engine.comm").debug("not shown")
    (line,) = (tmp_path / "log" / "rank.log").read_text().splitlines()
    assert line.endswith("I r00012 engine.comm: group ready ranks=8")


def test_configuring_again_replaces_the_parents_name(tmp_path, capsys):
    log.configure("driver")
    log.configure("r00001", level=logging.WARNING)
    logging.getLogger("x").warning("late")
    assert capsys.readouterr().err.count("late") == 1
    assert logging.getLogger().level == logging.WARNING
