"""Lines of stages, their short form, and what they refuse."""

import pytest

from mvc.errors import InvalidPipeline, WrongUsage
from mvc.lossy.lc.stages import expand
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS


@pytest.mark.parametrize(
    ("short", "line"),
    [
        ("lc", "expq:mean | promote:budget=0.05 | ans"),
        ("lc:x=2", "expq | promote:2 | packed"),
        ("lc: x=3, mean, huffman", "expq:mean | promote:3 | huffman"),
        ("lc:budget=0.05", "expq | promote:budget=0.05 | ans"),
        ("lc:tensor,mean,error=.30", "expq:mean,tensor | promote:error=0.3 | ans"),
        ("lc:uniform,budget=0.02", "uniform:budget=0.02 | ans"),
        ("lc:uniform,error=0.1,tensor,packed", "uniform:error=0.1,tensor | packed"),
    ],
)
def test_short_forms(short, line):
    pipeline = Pipeline.parse(short)
    assert pipeline.text == line
    assert pipeline == Pipeline.parse(line)
    assert pipeline.forward_only
    assert (pipeline.operator, pipeline.scope) == ("add", "group")
    assert pipeline.features == {"lc"}
    assert pipeline.coding() is pipeline
    assert pipeline.full() == Pipeline.parse("planes | zstd:huff")
    assert pipeline.full().features == frozenset()


@pytest.mark.parametrize(
    ("text", "line", "decisions"),
    [
        ("every:1/9 | lc:x=2", "every:1/9 | expq | promote:2 | packed", ["every:1/9"]),
        (
            "every:2/1|drift:adwin | lc: uniform, budget=.1",
            "every:2/1 | drift:adwin | uniform:budget=0.1 | ans",
            ["every:2/1", "drift:adwin"],
        ),
    ],
)
def test_a_short_form_after_decisions(text, line, decisions):
    pipeline = Pipeline.parse(text)
    assert pipeline.text == line
    assert [stage.text for stage in pipeline.decisions] == decisions
    assert pipeline.coding().text == line.removeprefix(" | ".join([*decisions, ""]))
    assert pipeline.forward_only


def test_only_these_go_forward_only():
    forward = [name for name, text in PRESETS.items() if Pipeline.parse(text).forward_only]
    assert forward == ["lc"]
    assert Pipeline.parse("expq | huffman").forward_only
    assert Pipeline.parse("every:1/2 | expq | ans").coding().text == "expq | ans"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lc:", "has no option ''"),
        ("lc:mean", "one bound"),
        ("lc:x=2,budget=0.1", "one bound"),
        ("lc:x=2,ans,packed", "one coder"),
        ("lc:uniform,x=2", "has no option 'x=2'"),
        ("lc:uniform,mean,budget=0.1", "has no option 'mean'"),
        ("lc:x=2,x=3", "has x twice"),
        ("lc:x=2,zstd", "has no option 'zstd'"),
        ("lc:x=9", "X must be a whole number from 1 to 8"),
        ("uniform:budget=0.1,mean | ans", "has no option 'mean'"),
        ("uniform:budget=0.1,error=0.1 | ans", "needs exactly one bound"),
        ("expq", "ends with buckets of changes"),
        ("expq | promote:2", "ends with symbols of changes"),
        ("expq:middle | ans", "has no option 'middle'"),
        ("expq | promote:budget=0 | ans", "from 0.0001 to 1"),
        ("expq | promote:share=1 | ans", "has no option 'share=1'"),
        ("uniform:0.1 | ans", "has no option '0.1'"),
        ("expq | zstd:1", "gets buckets of changes"),
        ("grid:1 | expq | ans", "needs to be first"),
        ("sub | ans", "needs the symbols"),
        ("expq | elide | ans", "gets buckets of changes"),
        ("expq | ans | packed", "gets bytes"),
        ("every:1/9 | lc:", "has no option ''"),
        ("every:1/9 | lc", "is a preset, and cannot be combined"),
        ("lc:x=2 | every:1/9", "every:1/9 .* needs to be first"),
        ("lc:x=2 | zstd:1", "gets bytes"),
        ("xor | lc:x=2", "stage expq .* needs to be first"),
        ("every:1/9 | lc:x=2 | lc:x=2", "stage expq .* needs to be first"),
    ],
)
def test_refuses(text, why):
    with pytest.raises(InvalidPipeline, match=why):
        Pipeline.parse(text)


def test_chunks_are_refused():
    pipeline = Pipeline.parse("lc:x=2")
    state = memoryview(bytearray(8))
    with pytest.raises(WrongUsage, match=r"codes no|cannot (en)?code"):
        pipeline.encode_chunk(state, state, 4)
    with pytest.raises(WrongUsage, match=r"codes no|cannot (en)?code"):
        pipeline.apply_chunk(state, state, 4, reverse=False)
    with pytest.raises(WrongUsage, match=r"codes no|cannot (en)?code"):
        pipeline.delta(state, state, 4)


def test_expand_is_idempotent_on_its_result():
    assert Pipeline.parse(expand("lc:x=1")).text == expand("lc:x=1")
