"""A fault that comes again and names nobody: test the nodes against each other (paper 4.3).

The same agents and the same leader as `msctl selfcheck --on`; they need a Redis to meet at.
"""

from typing import TYPE_CHECKING

from engine.comm.resp import Client, parse_url

if TYPE_CHECKING:
    from engine.job.driver import Driver


def compare_nodes(driver: "Driver") -> dict[str, str]:
    """Node -> why it is unfit, found by tests of all nodes, of neighbours, then by halves."""
    # all of the self-check comes along: not for every start of `msctl train`
    from engine.health.fleet import Fleet, Plan, check_fleet
    from engine.health.launch import new_run

    nodes = driver.nodes.here()
    if driver.server is None or len(nodes) < 2:
        return {}
    run = new_run()
    for node in nodes:
        driver.tell(node, "agent", run=run)
    names = [node.name for node in nodes]
    client = Client(parse_url(driver.server.url))
    try:
        plan = Plan(level="passive", bisect=True, come_s=30.0)
        report = check_fleet(Fleet(client, run, names), names, plan, say=driver.watch.on_note)
    finally:
        client.close()
    why = {r.target: r.message for r in report.group if r.status == "fail"}
    return {name: why.get(name, "its checks failed") for name in report.unfit}
