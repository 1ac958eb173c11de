import pytest

from engine.events.schema import NAMES, VERSION, Event, check


def _event(**changed) -> Event:
    base = {"rank": 0, "seq": 0, "kind": "span", "name": "forward", "t_ns": 1,
            "attrs": {"chunk": 0, "microbatch": 1}}  # fmt: skip
    return Event(**(base | changed))


def test_a_good_event_has_no_fault():
    assert check(_event()) is None


@pytest.mark.parametrize(
    ("changed", "fault"),
    [({"v": VERSION + 1}, "schema version"),
     ({"name": "forwards"}, "unknown event name 'forwards'"),
     ({"kind": "value"}, "forward is a span, not a value"),
     ({"attrs": {}}, "lacks chunk, microbatch"),
     ({"attrs": {"chunk": 0}}, "lacks microbatch")],
)  # fmt: skip
def test_a_fault_is_named(changed, fault):
    assert fault in (check(_event(**changed)) or "")


def test_an_open_span_may_lack_attributes():
    assert check(_event(kind="open", attrs={})) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_name_says_what_it_means(name):
    assert NAMES[name].meaning
    assert name == name.lower()


def test_events_do_not_share_attributes():
    assert Event(rank=0, seq=0, kind="span", name="data", t_ns=0).attrs == {}
