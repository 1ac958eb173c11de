"""What error numbers mean: kinds, actions, and numbers that nobody has listed."""

import pytest

from engine.health.kernel_log import Xid
from engine.health.xid import XIDS, Meaning, meaning


def error(code, text="", switch=-1, fatal=False):
    return Xid(code, "0000:10:00.0", 1.0, text, switch, fatal)


def test_only_hardware_fails_a_node():
    for means in XIDS.values():
        assert means.status == ("fail" if means.kind == "hardware" else "warn")
        assert (means.action == "watch") == (means.kind != "hardware")
        assert means.text
        assert means.remedy
    assert Meaning("unknown", "t", "watch", "r").status == "warn"


@pytest.mark.parametrize(
    ("codes", "kind", "action"),
    [
        ((13, 31, 32, 43, 45, 66, 69, 137), "program", "watch"),
        ((63, 121), "event", "watch"),
        ((64, 92, 157), "hardware", "rma"),
        ((79, 110, 143), "hardware", "reboot"),
        ((38, 48, 61, 62, 74, 94, 95, 109, 119, 120, 123, 136, 140, 155, 156, 158), "hardware",
         "reset"),
        ((144, 145, 146, 147, 148, 149, 150), "hardware", "reset"),
    ],
)  # fmt: skip
def test_numbers_have_their_kind_and_action(codes, kind, action):
    for code in codes:
        means = meaning(error(code))
        assert (means.kind, means.action) == (kind, action), code


def test_the_table_is_that_of_the_list_above():
    assert len(XIDS) == 8 + 2 + 3 + 3 + 16 + 7
    assert {143, 151, 154} & set(XIDS) == {143}


@pytest.mark.parametrize("code", [0, 1, 151, 999, 10**9])
def test_a_number_that_nobody_listed_is_seen_and_drains_nothing(code):
    means = meaning(error(code))
    assert (means.kind, means.status, means.action) == ("unknown", "warn", "watch")
    assert f"Xid {code} " in means.text


@pytest.mark.parametrize(
    ("text", "status", "action"),
    [
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fail", "reset"),
        ("changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fail", "reboot"),
        ("changed from 0x0 (None) to 0x3 (Drain P2P)", "fail", "reset"),
        ("changed from 0x0 (None) to 0x4 (Drain and Reset)", "fail", "reset"),
        ("changed from 0x1 (GPU Reset Required) to 0x0 (None)", "warn", "none"),
        ("changed from 0x2 (Node Reboot Required) to 0x1 (GPU Reset Required)", "fail", "reset"),
        ("changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "fail", "reboot"),
        ("", "warn", "none"),
    ],
)
def test_for_154_the_driver_itself_names_what_to_do(text, status, action):
    means = meaning(error(154, f"NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action {text}"))
    assert (means.status, means.action) == (status, action)


def test_the_links_of_a_switch_are_reset_together():
    assert meaning(error(20034, switch=0, fatal=True)).action == "reset"
    assert meaning(error(20034, switch=0, fatal=True)).status == "fail"
    mild = meaning(error(12028, switch=0))
    assert (mild.kind, mild.status, mild.action) == ("event", "warn", "watch")
    assert meaning(error(79, switch=5)).text != XIDS[79].text
