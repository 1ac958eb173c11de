import socket
import threading

import pytest

from engine.comm.resp import Address, Client, ServerSaidNo, Unreachable, pack, parse_url
from engine.errors import RecipeError


@pytest.fixture
def fake():
    """A server that sends what it is told to every client, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(1 << 16)
                client.sendall(answers.pop(0) if len(answers) > 1 else answers[0])

    threading.Thread(target=serve, daemon=True).start()
    yield Client(Address(port=listener.getsockname()[1]), io_s=0.5, patience_s=0.3), answers
    listener.close()


def test_urls_are_read_and_wrong_ones_do_not_show_the_password():
    assert parse_url("redis://:p%40ss@node1:7000/2") == Address("node1", 7000, "", "", "p@ss", 2)
    assert parse_url("rediss://me:pw@h").tls
    assert parse_url("unix:///run/r.sock?password=x") == Address(path="/run/r.sock", password="x")
    for wrong in ("http://h", "redis://", "redis://:secret@h:port", "node1:6379", ""):
        with pytest.raises(RecipeError) as caught:
            parse_url(wrong)
        assert "secret" not in caught.value.what


def test_a_password_may_stand_in_a_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("p@ss\nnot this\n")
    assert parse_url(f"redis://h:7000/2?password_file={secret}").password == "p@ss"
    assert parse_url(f"unix:///run/r.sock?password_file={secret}").password == "p@ss"
    with pytest.raises(RecipeError, match="absent: the password of Redis cannot be read") as caught:
        parse_url(f"redis://h?password_file={tmp_path / 'absent'}")
    assert "chmod 600" in caught.value.remedy


def test_commands_are_packed_by_length():
    assert pack(("SET", b"\r\n", 12)) == b"*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$2\r\n12\r\n"


def test_replies_of_every_kind(fake):
    client, answers = fake
    answers.append(b"*5\r\n:7\r\n$-1\r\n$2\r\nab\r\n+OK\r\n*0\r\n")
    assert client.call(("X",)) == [[7, None, b"ab", b"OK", []]]


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400\r\n", b"$999999999999\r\n", b"*3\r\n:1\r\n", b"$5\r\nab", b"", b"$x\r\n"],
)
def test_what_is_no_answer_of_redis_ends_as_unreachable(fake, garbage):
    client, answers = fake
    answers.append(garbage)
    with pytest.raises(Unreachable):
        client.call(("PING",))


def test_a_server_that_is_loading_is_asked_again(fake):
    client, answers = fake
    answers += [b"-LOADING Redis is loading\r\n", b"+PONG\r\n"]
    assert client.call(("PING",)) == [b"PONG"]


def test_a_refusal_is_not_repeated_and_has_a_remedy(fake):
    client, answers = fake
    answers += [b"-ERR unknown command\r\n", b"+never\r\n"]
    with pytest.raises(ServerSaidNo) as caught:
        client.call(("NEW",))
    assert caught.value.remedy
