import io
import json

import msgspec
import pytest

from engine.health import agent
from engine.health.agent import Done, Hello, Task, names


def test_a_wrong_greeting_ends_with_3(monkeypatch, capsys):
    for text in ("", "{}", "not json", '{"redis":"r","run":"x","unknown":1}'):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert agent.main() == 3
        assert "not a greeting" in capsys.readouterr().err


def test_an_unreachable_or_wrong_redis_ends_with_5(monkeypatch, capsys):
    greeting = json.dumps({"redis": "http://nowhere", "run": "x"})
    monkeypatch.setattr("sys.stdin", io.StringIO(greeting))
    assert agent.main() == 5
    assert "hint:" in capsys.readouterr().err


def test_keys_are_kept_apart_by_run_and_node():
    assert names("r", "a") == ("r/came", "r/todo/a", "r/done")


def test_messages_survive_the_wire_and_refuse_strangers():
    for noun in (Hello(redis="r", run="x"), Task(kind="end"), Done(node="n", id="1", error="e")):
        assert msgspec.json.decode(msgspec.json.encode(noun), type=type(noun)) == noun
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind":"shell"}', type=Task)
