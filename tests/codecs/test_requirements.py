import itertools
import math
import subprocess
import sys

import pytest

import mvc
from mvc.errors import WrongUsage
from mvc.pipelines import ACCURACY_DROPS, SPEEDS, Requirements
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS


def test_the_presets():
    found = {Requirements().pipeline}
    for drop, speed in itertools.product(ACCURACY_DROPS, SPEEDS):
        needs = Requirements(lossy=True, accuracy_drop=drop, speed=speed)
        pipeline = Pipeline.parse(needs.pipeline)
        assert pipeline.lossy
        assert bool(pipeline.decisions) == (speed == "slow")
        assert needs.measured
        found.add(needs.pipeline)
    assert Requirements().measured is None
    assert found == {
        "lossless",
        "frontier-0",
        "frontier-0-guarded",
        "frontier-0.1-guarded",
        "frontier-1-guarded",
    }
    assert found <= set(PRESETS)


@pytest.mark.parametrize("drop", ACCURACY_DROPS)
def test_a_guarded_preset_has_the_bound_of_its_name(drop):
    text = PRESETS[Requirements(lossy=True, accuracy_drop=drop, speed="slow").pipeline]
    (guard,) = Pipeline.parse(text).decisions
    assert guard.text == f"guard:{drop / 100:g}"


def test_without_lossy_nothing_is_lost():
    for speed in SPEEDS:
        assert Requirements(speed=speed).pipeline == "lossless"
        for drop in set(ACCURACY_DROPS) - {0}:
            with pytest.raises(WrongUsage, match="without lossy no accuracy is lost"):
                Requirements(accuracy_drop=drop, speed=speed)
    assert not Pipeline.parse("lossless").lossy


def test_numbers_as_they_come():
    assert Requirements(lossy=True, speed="slow", accuracy_drop=1.0).pipeline == (
        "frontier-1-guarded"
    )
    assert Requirements(lossy=True, accuracy_drop=0.0).pipeline == "frontier-0"
    assert Requirements().max_recovery == 10
    assert Requirements(0.5).max_recovery == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_recovery": 0}, "max_recovery must be a number of seconds above 0, not 0"),
        ({"max_recovery": -1}, "max_recovery must be .* above 0"),
        ({"max_recovery": math.inf}, "max_recovery must be .* above 0"),
        ({"max_recovery": math.nan}, "max_recovery must be .* above 0"),
        ({"max_recovery": "10"}, "max_recovery must be .* above 0"),
        ({"max_recovery": True}, "max_recovery must be .* above 0"),
        ({"lossy": "no"}, "lossy must be True or False"),
        ({"speed": "medium"}, "speed must be fast or slow, not 'medium'"),
        ({"accuracy_drop": 0.5}, "accuracy_drop must be 0, 0.1 or 1 .*, not 0.5"),
        ({"accuracy_drop": False}, "accuracy_drop must be 0, 0.1 or 1"),
        ({"accuracy_drop": "1"}, "accuracy_drop must be 0, 0.1 or 1"),
    ],
)
def test_refusals_name_the_parameter(wrong, message):
    with pytest.raises(WrongUsage, match=message):
        Requirements(**wrong)


def test_is_cheap_to_ask():
    code = (
        "import sys, mvc; assert mvc.Requirements(lossy=True).pipeline == 'frontier-0'; "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "Requirements" in dir(mvc)
