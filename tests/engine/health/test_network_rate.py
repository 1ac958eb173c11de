import pytest

from engine.errors import MissingError
from engine.health.look import Look
from engine.health.network_rate import find_slow, loopback, parse_perftest, rnic_pairs
from engine.health.probe import Ran
from engine.health.profile import Bar, builtin_profiles, choose
from engine.health.recording import RecordedProbe
from tests.engine.health.machines import machine

TABLE = """
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    93420            0.00               391.83             0.046710
---------------------------------------------------------------------------------------
"""
BAR = Bar(at_least=45e9, unit="B/s", source="x")


class Perftest(RecordedProbe):
    """A recorded machine on which perftest measures what a rule says."""

    def __init__(self, recording, rate):
        super().__init__(recording)
        self.rate = rate

    def run(self, command, *, timeout_s):
        if command[0] == "ib_write_bw":
            return Ran(code=0, out="--use_cuda=<index>")
        if command[0] == "sh":
            return Ran(code=0, out=TABLE.replace("391.83", f"{self.rate(command[2]):.2f}"))
        return super().run(command, timeout_s=timeout_s)


def look(rate):
    recording, _ = machine("h100")
    return Look(probe=Perftest(recording, rate), profile=choose(builtin_profiles(), recording.gpus))


def test_the_average_of_perftests_table_in_bytes():
    assert parse_perftest(TABLE) == pytest.approx(391.83e9 / 8)
    assert parse_perftest("Couldn't connect") == 0.0


def test_healthy_cards_pass_loopback_and_pairs():
    for check in (loopback, rnic_pairs):
        (result,) = check(look(lambda script: 391.0))
        assert result.status == "ok"
        assert "paths" in result.message


def test_a_slow_card_a_slow_gpu_and_a_slow_path_are_told_apart():
    (card,) = loopback(look(lambda s: 190.0 if "-d mlx5_3" in s else 391.0))
    assert (card.status, card.target) == ("fail", "mlx5_3")
    (gpu,) = loopback(look(lambda s: 190.0 if "--use_cuda=5" in s else 391.0))
    assert gpu.target == "gpu5"
    slow = ("-d mlx5_1 ", "--use_cuda=2 ")
    (path,) = loopback(look(lambda s: 190.0 if all(word in s for word in slow) else 391.0))
    assert path.target == "mlx5_1<->gpu2"


def test_asymmetry_between_two_cards_is_a_warning():
    def rate(script):
        if "-d mlx5_0 >" in script and "-d mlx5_1 local" in script:
            return 371.0
        return 430.0 if "-d mlx5_1 >" in script and "-d mlx5_0 local" in script else 410.0

    (found,) = rnic_pairs(look(rate))
    assert (found.status, found.target) == ("warn", "mlx5_0<->mlx5_1")


def test_no_perftest_is_a_skip():
    recording, _ = machine("h100")
    bare = Look(probe=RecordedProbe(recording), profile=choose(builtin_profiles(), recording.gpus))
    with pytest.raises(MissingError, match="ib_write_bw"):
        loopback(bare)


def test_blame_prefers_rows_then_columns_then_cells():
    rates = {(a, b): 50e9 for a in "abc" for b in "xyz"}
    assert find_slow(rates, BAR, 0.1) == []
    rates |= {("a", "x"): 1e9, ("a", "y"): 1e9, ("c", "z"): 1e9}
    assert [b.part for b in find_slow(rates, BAR, 0.1)] == ["a", "c<->z"]
