import os

import pytest

from engine.health.probe import RealProbe, number, uptime


@pytest.fixture
def probe():
    return RealProbe(env=os.environ)


def test_files_that_are_absent_huge_or_binary(probe, tmp_path):
    assert probe.read(str(tmp_path / "absent")) is None
    assert probe.read(str(tmp_path)) is None
    (tmp_path / "huge").write_bytes(b"x" * (3 << 20))
    assert len(probe.read(str(tmp_path / "huge"))) == 1 << 20
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    assert probe.read(str(tmp_path / "binary")) == "\ufffd\ufffd"
    assert probe.names(str(tmp_path / "absent")) == ()


def test_the_kernels_own_files(probe):
    boot = uptime(probe)
    assert len(boot.boot_id) == 36
    assert boot.seconds > 0
    assert probe.space("/").total_bytes > 0
    assert probe.space("/absent/absent") is None
    assert probe.limits()["nofile"] != 0
    assert probe.cpus() >= 1


def test_a_number_is_the_first_word_or_nothing():
    assert number("400 Gb/sec (4X NDR)") == 400.0
    assert number("32.0 GT/s PCIe") == 32.0
    assert [number(t) for t in ("", None, "max", "N/A", "nan", "-inf", "1e999")] == [None] * 7


@pytest.mark.multi
def test_commands_end_are_absent_or_are_cut_off(probe):
    assert probe.run(("sh", "-c", "echo a; exit 3"), timeout_s=5) is not None
    assert probe.run(("sh", "-c", "echo a; exit 3"), timeout_s=5).code == 3
    assert probe.run(("no-such-program",), timeout_s=5) is None
    late = probe.run(("sleep", "30"), timeout_s=0.1)
    assert (late.code, late.seconds) == (124, 0.1)
