"""Series of bytes by NIC: a bad row costs that row, whatever it holds."""

import numpy as np
import pytest

from engine.diagnose.foreign import Inputs, diagnose_foreign
from engine.diagnose.readers.counters import read_traffic
from engine.diagnose.readers.files import FileFault

DT = 0.1
ROWS = [f"{i * DT:.1f},{nic},{1e9 + i}" for i in range(60) for nic in "abc"]


def written(tmp_path, *more, head="t,nic,bytes_per_s", rows=ROWS):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([head, *rows, *more]) + "\n")
    return path


def test_counters_and_rates_are_read(tmp_path):
    rates = np.random.default_rng(1).uniform(1e9, 2e9, (2, 600))
    counters = np.cumsum(rates * DT, axis=1)
    lines = ["t,nic,bytes"]
    for nic in range(2):
        lines += [f"{i * DT:.1f},nic{nic},{counters[nic, i]:.0f}" for i in range(counters.shape[1])]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    read = read_traffic(path)
    assert read.dt_s == pytest.approx(DT)
    got = read.bytes_per_s[:, 10:-10].mean()
    assert got == pytest.approx(rates[:, 10:-10].mean(), rel=0.01)
    path.write_text("nonsense\n")
    with pytest.raises(FileFault):
        read_traffic(path)


def test_a_column_called_time_and_every_sample_of_it_are_read(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{100 + i * 0.5},mlx5_{nic},{1e9 * (nic + 1)}" for i in range(8) for nic in range(2)]
    path.write_text("\n".join(["time,device,bytes_per_s", *rows]))
    read = read_traffic(path)
    assert read.nics == ("mlx5_0", "mlx5_1")
    assert read.dt_s == 0.5
    assert read.bytes_per_s.tolist() == [[1e9] * 8, [2e9] * 8]
    path.write_text("\n".join(["time,device,bytes_per_s", *rows[:14]]))
    with pytest.raises(FileFault, match="fewer than eight"):
        read_traffic(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nan,a,1", "line 182: 'nan' is no time"),
        ("inf,a,1", "line 182: 'inf' is no time"),
        ("6.0,a,nan", "line 182: 'nan' is no time and no count"),
        ("6.0,a,inf", "line 182: 'inf' is no time and no count"),
        ("6.0,a,1e300", "line 182: '1e300' is no time and no count"),
        ("6.0,a,fast", "line 182: could not convert string to float: 'fast'"),
        ("6.0,a", "line 182: float() argument must be"),
        (",a,1", "line 182: no column 'time'"),
        ("6.0," + "x" * 200_000 + ",1", "line 181: no column 'time'"),
    ],
)
def test_a_row_without_a_number_is_left_out_and_named(row, reason, tmp_path):
    read = read_traffic(written(tmp_path, row))
    assert read.nics == ("a", "b", "c")
    assert read.bytes_per_s.shape == (3, 60)
    assert np.isfinite(read.bytes_per_s).all()
    (fault,) = read.faults
    assert fault.startswith("rows left out: 1, the first in ")
    assert reason in fault


@pytest.mark.parametrize("t", ["1e15", "-1e15", "1e9"])
def test_a_time_far_from_all_others_does_not_ask_for_petabytes(t, tmp_path):
    read = read_traffic(written(tmp_path, f"{t},a,1"))
    assert read.bytes_per_s.shape == (3, 60)
    assert read.faults == (
        f"points in time left out: 1 far from the others, the first t = {float(t):g}",
    )


def test_a_nic_with_one_value_of_its_counter_has_no_rate(tmp_path):
    rows = [f"{i * DT:.1f},{nic},{i * 1000}" for i in range(60) for nic in "ab"]
    read = read_traffic(written(tmp_path, "1.0,zz,7", head="t,nic,bytes", rows=rows))
    assert read.nics == ("a", "b")
    assert read.bytes_per_s == pytest.approx(1e4)
    assert read.faults == ("NICs left out: 1 with too few values, the first 'zz'",)
    few = [f"{t},{nic},1" for t, nic in enumerate("abcdefghi")]
    with pytest.raises(FileFault, match="fewer than eight"):
        read_traffic(written(tmp_path, head="t,nic,bytes", rows=few))


def test_a_torn_first_row_does_not_turn_rates_into_counters(tmp_path):
    read = read_traffic(written(tmp_path, rows=["0.0,a", *ROWS]))
    assert read.bytes_per_s.min() >= 1e9


def test_nics_that_are_read_one_after_the_other_have_their_own_interval(tmp_path):
    rows = [f"{i + nic * 1e-5},n{nic},5" for i in range(20) for nic in range(8)]
    read = read_traffic(written(tmp_path, rows=rows))
    assert read.dt_s == pytest.approx(1.0)
    assert read.bytes_per_s.shape == (8, 20)


def test_a_broken_line_of_json_costs_that_line(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [f'{{"t": {i}, "nic": "a", "bytes_per_s": 5}}' for i in range(9)]
    path.write_text("\n".join([*lines[:4], '{"t": 4, "nic', *lines[4:], "[1]"]))
    read = read_traffic(path)
    assert read.bytes_per_s.shape == (1, 9)
    assert read.faults == ("rows left out: 2, the first in line 5: no column 'time'",)


def test_the_report_names_what_of_the_traffic_was_left_out(tmp_path):
    report = diagnose_foreign(Inputs(traffic=written(tmp_path, "nan,a,1")))
    assert report.read == {"traffic files": 1}
    assert "rows left out: 1" in report.unreadable[0].text
    assert report.unreadable[0].file.endswith("t.csv")
