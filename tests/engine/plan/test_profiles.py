import pytest

from engine.errors import RecipeError
from engine.plan.profiles import fitted, profile


def test_the_shipped_constants_are_physical():
    constants = fitted()
    physics = constants.physics
    for share in (physics.hbm, physics.intra, physics.inter, physics.wave_share):
        assert 0.3 < share < 1
    for speed in constants.devices.values():
        assert 0.4 < speed < 1.1
    for system in constants.profiles.values():
        assert 0.9 < system.slope < 1.25, system.name
        assert 0 <= system.intercept_s < 1
        assert 0.02 < system.log_error < 0.2


def test_fp16_runs_at_the_speed_of_bf16():
    constants = fitted()
    assert constants.speed_of("H100-80GB", "fp16") == constants.speed_of("H100-80GB", "bf16")
    assert 0.6 < constants.speed_of("no such device", "bf16") < 1.0


def test_an_unknown_system_names_those_there_are():
    with pytest.raises(RecipeError) as caught:
        profile("slurmatron")
    assert "megascale" in caught.value.remedy


def test_a_device_nobody_published_about_is_as_fast_as_its_kin():
    constants = fitted()
    kin = [v for k, v in constants.devices.items() if k[:2] in ("B2", "GB") and k.endswith("/fp8")]
    assert constants.speed_of("B300", "fp8") == pytest.approx(sum(kin) / len(kin))
    assert constants.speed_of("A100-80GB", "fp16") == constants.devices["A100-80GB"]
    assert 0.4 < constants.speed_of("MI300X-192GB", "bf16") < 1.0
    assert constants.speed_of("GB200", "bf16") == constants.devices["B200-180GB/bf16"]
