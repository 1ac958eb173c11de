"""The table of categories: complete, in an order without ties, with a thing to do for each."""

from engine.diagnose.categories import CATEGORIES, next_step
from engine.diagnose.logs.table import RULES, WAKE


def test_no_two_categories_have_one_place():
    orders = [category.order for category in CATEGORIES.values()]
    assert len(set(orders)) == len(orders)


def test_hardware_comes_before_programs_and_bare_waiting_last():
    order = {name: category.order for name, category in CATEGORIES.items()}
    assert max(order[n] for n in ("gpu_lost", "gpu_ecc", "gpu_nvlink")) < order["driver_stack"]
    assert order["driver_stack"] < order["net_config"]
    assert order["pcie_acs"] < order["lib_bug"] < order["rank_blocked"]
    last = sorted(order, key=lambda name: order[name])[-3:]
    assert last == ["crash", "unknown_hang", "unreadable"]


def test_every_category_says_what_it_means_and_what_to_do():
    for name, category in CATEGORIES.items():
        assert category.domain, name
        assert category.meaning, name
        assert next_step(name) == category.next
        assert len(category.next.split()) > 3, name


def test_every_rule_of_the_logs_has_its_category():
    assert {rule.category for rule in RULES} - {WAKE} <= set(CATEGORIES)
