"""What flushers say to each other through the store: parts, claims, markers."""

import msgspec
import pytest

from engine.ckpt.catalog import CLAIM
from engine.ckpt.parts import (
    already_there,
    hold_for,
    is_of_another,
    marker_state,
    part_name,
    read_parts,
)
from engine.ckpt.save import NotOurs, Part, claim_note, claimed_by, hold
from engine.errors import CheckpointError
from tests.engine.ckpt.node import Node


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 9999, b'{"rank": 0, "surprise": 1}'])
def test_a_torn_part_names_its_file(node, body):
    job = node.job(8)
    for rank in range(2):
        node.store.put(
            f"step-00000008/{part_name(rank)}", [memoryview(body if rank else b'{"rank":0}')]
        )
    with pytest.raises(CheckpointError, match=r"step-00000008/part-00001\.json"):
        read_parts(node.store, job)


def test_parts_are_complete_when_every_rank_has_one(node):
    job = node.job(8)
    assert read_parts(node.store, job) is None
    for name in ("part-00000.json", "part-1.json", "part-00002.json", "xpart-00001.json"):
        node.store.put(f"step-00000008/{name}", [memoryview(b'{"rank":0}')])
    assert read_parts(node.store, job) is None
    node.store.put("step-00000008/part-00001.json", [memoryview(b'{"rank":1}')])
    assert [part.rank for part in read_parts(node.store, job)] == [0, 1]
    assert [part_name(0), part_name(123456)] == ["part-00000.json", "part-123456.json"]


def test_a_part_is_believed_only_if_it_is_this_snapshots_and_its_file_is_there(node):
    ticket = node.snapshot(8, 0)
    assert already_there(node.store, ticket) is None
    node.round()
    assert already_there(node.store, ticket) == node.spool.ticket(0, 0).part
    name = "step-00000008/part-00000.json"
    whole = node.store.get(name, 1 << 20)
    part = msgspec.json.decode(whole, type=Part)
    for body in (
        whole[:-9], b"null", b"[]", b"\xff",
        msgspec.json.encode(msgspec.structs.replace(part, tensors=())),
        msgspec.json.encode(msgspec.structs.replace(part, file=None)),
    ):  # fmt: skip
        node.store.put(name, [memoryview(body)])
        assert already_there(node.store, ticket) is None
    node.store.put(name, [memoryview(whole)])
    node.store.put("step-00000008/rank-00000.safetensors", [memoryview(b"short")])
    assert already_there(node.store, ticket) is None


def test_a_folder_is_held_by_the_first_run_that_writes_into_it(node):
    hold(node.store, "step-00000008", "ours")
    hold(node.store, "step-00000008", "ours")
    with pytest.raises(NotOurs, match="step-00000008: another run writes a checkpoint") as caught:
        hold(node.store, "step-00000008", "theirs")
    assert "checkpoint.path" in caught.value.remedy
    assert claimed_by(node.store.get(f"step-00000008/{CLAIM}", 4096)) == "ours"


def test_a_run_that_loses_the_race_for_a_folder_finds_out(node, monkeypatch):
    def create(name, data):
        node.store.put(name, [memoryview(claim_note(owner="theirs"))])
        return False

    monkeypatch.setattr(node.store, "create", create)
    with pytest.raises(NotOurs):
        hold(node.store, "step-00000008", "ours")


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"\xff", b"{}"])
def test_a_torn_claim_is_nobodys(note):
    assert claimed_by(note) == ""


def test_jobs_ask_whose_a_folder_is_only_if_they_have_an_owner(node):
    ours, nobodys = node.job(8, owner="ours"), node.job(9)
    assert not is_of_another(node.store, ours)
    hold_for(node.store, ours)
    hold_for(node.store, nobodys)
    assert not is_of_another(node.store, ours)
    assert not is_of_another(node.store, nobodys)
    theirs = node.job(8, owner="theirs")
    assert is_of_another(node.store, theirs)
    with pytest.raises(NotOurs):
        hold_for(node.store, theirs)


def test_a_marker_is_absent_torn_or_whole(node):
    assert marker_state(node.store, "step-00000008") == "absent"
    node.save(8)
    node.round()
    name = "step-00000008/COMMITTED"
    assert marker_state(node.store, "step-00000008") == "whole"
    whole = node.store.get(name, 4096)
    for torn in (b"", whole[:-3]):
        node.store.put(name, [memoryview(torn)])
        assert marker_state(node.store, "step-00000008") == "torn"
