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
    assert constants.speed_of("no such device", "bf16") == 1.0


def test_an_unknown_system_names_those_there_are():
    with pytest.raises(RecipeError) as caught:
        profile("slurmatron")
    assert "megascale" in caught.value.remedy
