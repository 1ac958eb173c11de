"""What a rank is told survives the way from driver to nursery to rank."""

import msgspec
import pytest

from engine.train.task import RankTask


def test_it_goes_through_json_unchanged():
    task = RankTask(folder="runs/a b", world=8, host="::1", port=29500, steps=3, resume="12")
    assert msgspec.json.decode(msgspec.json.encode(task), type=RankTask) == task


def test_it_refuses_what_it_does_not_know():
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"folder":"a","world":1,"host":"h","port":1,"gpus":8}', type=RankTask)
