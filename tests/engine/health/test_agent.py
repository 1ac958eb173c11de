import msgspec
import pytest

from engine.health.agent import Done, Hello, Task, names


def test_keys_are_kept_apart_by_run_and_node():
    assert names("r", "a") == ("r/came", "r/todo/a", "r/done")


def test_messages_survive_the_wire_and_refuse_strangers():
    for noun in (Hello(redis="r", run="x"), Task(kind="end"), Done(node="n", id="1", error="e")):
        assert msgspec.json.decode(msgspec.json.encode(noun), type=type(noun)) == noun
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind":"shell"}', type=Task)
