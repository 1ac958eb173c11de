from hypothesis import given
from hypothesis import strategies as st

from engine.health.kernel_log import find_patterns, find_xids, normal_pci, parse_log, within

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_every_form_of_a_line_is_read_with_its_time():
    text = "\n".join(
        [
            f"3,1234,5678900000,-;{XID}",
            " SUBSYSTEM=pci",
            f"<3>[ 5678.900000] {XID}",
            f"[ 5678.900000] {XID}",
            f"[ 5678.900000] node17 kernel: {XID}",
            XID,
        ]
    )
    lines = parse_log(text)
    assert [line.at_s for line in lines] == [5678.9] * 4 + [-1.0]
    assert {line.text for line in lines} == {XID}


def test_a_repeated_xid_counts_once_a_second_and_device():
    log = parse_log(
        "\n".join(
            [
                f"[ 10.1] {XID}",
                f"[ 10.9] {XID}",
                f"[ 11.2] {XID}",
                f"[ 10.1] {XID.replace('3b', '5d')}",
            ]
        )
    )
    found = find_xids(log)
    assert [(x.code, x.pci, int(x.at_s)) for x in found] == [
        (79, "0000:3b:00.0", 10),
        (79, "0000:3b:00.0", 11),
        (79, "0000:5d:00.0", 10),
    ]


def test_sxid_tells_its_switch_and_whether_it_is_fatal():
    (found,) = find_xids(
        parse_log(
            "[ 1.0] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
        )
    )
    assert (found.switch, found.code, found.fatal, found.pci) == (3, 20034, True, "0000:c1:00.0")


def test_a_window_keeps_recent_lines_and_those_without_time():
    lines = parse_log("[ 10.0] old\n[ 990.0] new\nno time")
    assert [line.text for line in within(lines, 1000.0, 100.0)] == ["new", "no time"]
    assert len(within(lines, 1000.0, 0.0)) == 3


def test_addresses_are_written_one_way():
    for text in ("00000000:3B:00.0", "0000:3b:00", "0000:3b:00.0"):
        assert normal_pci(text) == "0000:3b:00.0"


def test_an_xid_is_not_counted_again_as_a_kernel_pattern():
    assert find_patterns(parse_log(f"[ 1.0] {XID}")) == []
    (match,) = find_patterns(parse_log("[ 1.0] Out of memory: Killed process 1 (a)\n" * 3))
    assert (match.pattern.name, match.times) == ("oom", 3)


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_exception(text):
    lines = parse_log(text)
    find_xids(lines)
    find_patterns(lines)
