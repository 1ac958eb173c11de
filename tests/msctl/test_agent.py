import io
import json

from msctl import agent


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
