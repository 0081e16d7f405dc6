"""Steps of an engine: new tokens join their sequences in pages, and their attention is the one that a loop over sequences computes."""

import ast
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen.vllm
from flashgen.errors import CallError
from flashgen.spec.layout import TOKENS_FIRST
from flashgen.vllm.layer import Layer, attend, keep
from tests.vllm.steps import ALL, KINDS, D, Step

LENGTHS = st.tuples(st.sampled_from([0, 1, 1, 5, 17]), st.sampled_from([0, 1, 15, 16, 30]))  # new tokens, keys before them


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=4), fill=st.sampled_from([0, 2]), inside=st.booleans())
@settings(max_examples=8)
def test_steps_are_those_of_a_loop_over_sequences(kind, lengths, fill, inside):
    step, layer = Step(lengths, fill, KINDS[kind], inside), Layer(head_dim=D, scale=0.3, **KINDS[kind])
    keep(layer, step.cache, step.batch, step.k, step.v)
    attend(layer, step.q, step.cache, step.batch, step.out, step.values)
    assert np.abs(step.out[: step.total] - step.expected(layer)).max(initial=0) < 4e-3


@pytest.mark.parametrize(("lengths", "fill", "single"), [([(1, 4), (1, 0)], 0, True), ([(1, 4)], 3, True), ([(2, 4), (1, 3)], 0, False)])
def test_single_tokens_are_calls_without_lengths_of_queries(lengths, fill, single):
    assert Step(lengths, fill, {}, tokens_inside=True).batch.single is single


def test_single_tokens_beside_a_sequence_without_one_are_not():
    """A token's place does not say whose it is, where a batch has fewer tokens than sequences."""
    assert not Step([(1, 4), (0, 3), (1, 2)], 0, {}, tokens_inside=True).batch.single


def test_what_is_written_stays_in_pages_of_its_sequences():
    step, layer = Step([(5, 14), (1, 0)], 1, {}, tokens_inside=True), Layer(head_dim=D, scale=1.0)
    there = np.isfinite(step.cache).any(axis=(1, 3))
    keep(layer, step.cache, step.batch, step.k, step.v)
    new = np.isfinite(step.cache).any(axis=(1, 3)) & ~there
    assert new.sum() == step.total
    assert set(np.nonzero(new)[0]) <= set(step.batch.block_table[:2].flat)


def test_a_cache_of_another_dtype_is_refused():
    step, layer = Step([(2, 3)], 0, {}, tokens_inside=True), Layer(head_dim=D, scale=1.0)
    with pytest.raises(CallError, match="k is float32"):
        attend(layer, step.q, step.cache.astype("f4"), step.batch, step.out, {})


def test_a_spec_reads_like_one_written_by_hand():
    spec = Layer(head_dim=64, scale=0.125, **ALL).spec("bfloat16", 16, TOKENS_FIRST)
    assert (spec.scale, spec.page, spec.layout) == ("scaling", 16, TOKENS_FIRST)
    assert {param.name: param.default for param in spec.params} == {"scaling": 0.125, "softcap": 5.0}


def test_the_entry_point_leads_to_the_backend():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    module, _, name = tomllib.loads(text)["project"]["entry-points"]["vllm.general_plugins"]["flashgen"].partition(":")
    assert getattr(flashgen.vllm, name) is flashgen.vllm.register
    assert module == flashgen.vllm.__name__
    module, _, name = flashgen.vllm.BACKEND.rpartition(".")
    file = Path(flashgen.vllm.__file__).parent / f"{module.rpartition('.')[2]}.py"
    assert name in {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)}
