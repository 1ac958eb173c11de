import os
import signal

import pytest

from engine.comm.embedded_redis import find_server
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello
from engine.health.allocation import Allocation, check_allocation
from engine.health.fleet import Fleet, Plan, check_fleet
from engine.health.launch import new_run, start


def test_hosts_need_a_file():
    with pytest.raises(RecipeError, match="names no nodes"):
        check_allocation(Allocation(where="hosts"), Plan(), say=lambda text: None)


@pytest.mark.parametrize(
    ("plan", "what"),
    [(Plan(only=("gpu.eck",)), "no check 'gpu.eck'"),
     (Plan(level="passive", only=("gpu.gemm",)), "needs --level light")],
)  # fmt: skip
def test_a_plan_that_no_node_can_carry_out_starts_no_agent(plan, what):
    with pytest.raises(RecipeError, match=what):
        check_allocation(Allocation(where="local", agents=1), plan, say=pytest.fail)


@pytest.mark.multi
def test_hosts_that_cannot_be_reached_are_no_wait_and_speak_for_themselves(tmp_path, monkeypatch):
    try:
        find_server()
    except MissingError:
        pytest.skip("no Redis or Valkey server on this machine")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor word; do case $word in n[0-9]*) host=$word ;; esac; done\n"
        'echo "ssh: Could not resolve hostname $host: Name or service not known" >&2\nexit 255\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn2\n")
    plan = Plan(come_s=3600)
    with pytest.raises(MissingError) as caught:
        check_allocation(Allocation(where="hosts", hosts=hosts), plan, say=lambda text: None)
    assert caught.value.what == (
        "none of 2 nodes came: ssh: Could not resolve hostname n1: Name or service not known; "
        "ssh: Could not resolve hostname n2: Name or service not known"
    )
    assert "`ssh n1 true`" in caught.value.remedy


@pytest.mark.multi
@pytest.mark.slow
def test_real_agents_exchange_data_and_a_stopped_one_is_named():
    pytest.importorskip("torch")
    try:
        find_server()
    except MissingError:
        pytest.skip("no Redis or Valkey server on this machine")
    from engine.comm.embedded_redis import EmbeddedRedis

    with EmbeddedRedis(durable=False) as server:
        hello = Hello(redis=server.url, run=new_run())
        started = start("local", hello, [f"local-{i}" for i in range(3)])
        try:
            client = Client(parse_url(server.url))
            fleet = Fleet(client, hello.run, started.nodes)
            assert fleet.gather(60) == started.nodes
            victim = started._processes[1]
            os.kill(victim.pid, signal.SIGSTOP)
            plan = Plan(only=("host.shm",), check_s=8, timeout_s=30, size_bytes=1 << 20)
            found = check_fleet(fleet, started.nodes, plan)
            assert found.unfit == ("local-1",)
            assert [p.nodes for p in found.pairs] == [("local-0", "local-2")]
            assert all(p.is_well and p.bytes_per_s > 0 for p in found.pairs)
            os.kill(victim.pid, signal.SIGKILL)
        finally:
            started.stop()
