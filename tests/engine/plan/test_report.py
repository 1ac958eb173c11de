from engine.plan.report import CONVENTION, PlanReport
from engine.plan.request import Request, make_plan


def test_a_report_names_the_flop_convention_and_survives_json():
    import msgspec

    report = make_plan(Request(model="13b", gpus=64, top=2))
    assert "6N" in CONVENTION
    assert report.convention == CONVENTION
    assert msgspec.json.decode(msgspec.json.encode(report), type=PlanReport) == report
