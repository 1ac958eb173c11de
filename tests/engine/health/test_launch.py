import subprocess
import tempfile

import pytest

from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello
from engine.health.launch import Started, Starter, new_run, reachable_host, read_hosts, start


def test_hosts_with_and_without_switches(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# rack 3\nnode1 tor0\nnode2 tor0  # spare\n\n10.0.0.7\n")
    assert read_hosts(path) == (["node1", "node2", "10.0.0.7"], {"node1": "tor0", "node2": "tor0"})


@pytest.mark.parametrize("text", ["", "# nothing\n", "-oProxyCommand=evil\n", "a b c\n", "a;rm\n"])
def test_what_is_no_list_of_nodes_is_refused(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(RecipeError):
        read_hosts(path)
    with pytest.raises(RecipeError):
        read_hosts(tmp_path / "absent")


def test_runs_have_names_of_their_own_and_the_host_an_address():
    assert new_run() != new_run()
    assert reachable_host().count(".") == 3


def test_a_starter_that_is_not_there_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingError, match="srun is not installed"):
        start("slurm", Hello(redis="redis://h", run="r"), ["n1"])


def starter(node, text, command="ssh n1 python3 -m msctl.agent"):
    """What a shell that speaks as a starter leaves behind."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - read by the starter
    process = subprocess.Popen(["sh", "-c", text], stdin=subprocess.PIPE, stderr=errors)
    return Starter((node,), process, errors, command)


@pytest.mark.multi
@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [("echo ssh: no such host >&2; exit 255", "ssh: no such host", "make `ssh n1 true` work"),
     ("exit 127", "ssh ended with 127 and said nothing", "make this start from here: ssh n1 py"),
     ("printf 'error: no Redis\n\nhint: try\n' >&2; exit 5", "error: no Redis", "")],
)  # fmt: skip
def test_a_starter_that_ended_says_why_and_what_to_do(text, why, remedy):
    ended, runs = starter("n1", text), starter("n2", "echo waiting >&2; read line")
    ended.process.wait(60)
    started = Started(["n1", "n2"], [ended, runs])
    assert started.gone() == {"n1": why}
    assert started.remedy().startswith(remedy)
    assert bool(started.remedy()) == bool(remedy)
    runs.process.communicate(timeout=60)
    assert set(started.gone()) == {"n1", "n2"}
    started.stop()
