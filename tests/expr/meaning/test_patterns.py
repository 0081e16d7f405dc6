"""Masks that people ask for, each against its own definition in plain Python."""
# ruff: noqa: ARG005 - a definition takes sequence, query and key, whichever it reads

import numpy as np
import pytest

import flashgen
from flashgen.errors import CallError
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.spec import Spec, load
from tests.plan.agreement import arrays, error
from tests.plan.any_spec import read

PARENTS = [-1, 0, 0, 1, 1, 2, 5, 5, 3]  # of the nodes of a tree, each before its children
Q, K = len(PARENTS), 40
DENSE = np.random.default_rng(0).random((Q, K)) > 0.5


def ancestors(parents, words):
    """Bit j of word j // 32 of node i: whether j is i or above it."""
    bits = np.zeros((len(parents), words), np.uint32)
    for i, parent in enumerate(parents):
        bits[i] = bits[parent] if parent >= 0 else 0
        bits[i, i // 32] |= np.uint32(1 << i % 32)
    return bits.view(np.int32)


def below(parents, i, j):
    return j == i or (parents[i] >= 0 and below(parents, parents[i], j))


TENSORS = {
    "words": {"shape": ["b", "q_len", 2], "dtype": "int32"},
    "lens": {"shape": ["b"], "dtype": "int32"},
    "dense": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "bool"},
}
VALUES = {
    "words": np.broadcast_to(ancestors(PARENTS, 2), (2, Q, 2)),
    "lens": np.int32([17, 0]),
    "dense": np.broadcast_to(DENSE, (2, 4, Q, K)),  # stride 0 over batch and heads
}
OFF = K - Q
PATTERNS = {  # expression: whether query i of sequence b sees key j
    f"(kv_idx < {OFF}) | bit(words[b, q_idx, (kv_idx - {OFF}) // 32], (kv_idx - {OFF}) % 32)": (
        lambda b, i, j: j < OFF or below(PARENTS, i, j - OFF)
    ),
    "causal & ((q_idx + kv_len - q_len - kv_idx) % 3 == 0)": lambda b, i, j: j <= i + OFF and (i + OFF - j) % 3 == 0,
    "causal & (window(5, 0) | (kv_idx % 8 == 7))": lambda b, i, j: j <= i + OFF and (i + OFF - j <= 5 or j % 8 == 7),
    "kv_idx < lens[b]": lambda b, i, j: j < VALUES["lens"][b],
    "dense[b, h, q_idx, kv_idx]": lambda b, i, j: DENSE[i, j],
    "(causal & dense[b, h, q_idx, kv_idx]) | (kv_idx < lens[b]) & ~chunk(16)": (
        lambda b, i, j: (j <= i + OFF and DENSE[i, j]) or (j < VALUES["lens"][b] and j // 16 != (i + OFF) // 16)
    ),
}


@pytest.mark.parametrize("mask", PATTERNS)
def test_a_pattern_is_its_definition(mask):
    spec = Spec(head_dim=16, dtype="float32", mask=mask, tensors=read(TENSORS, mask), block={"m": 16, "n": 16})
    q, k, v = arrays(spec, 2, 4, 2, Q, K)
    seen = np.array([[[PATTERNS[mask](b, i, j) for j in range(K)] for i in range(Q)] for b in range(2)])
    stated = Spec(
        head_dim=16, dtype="float32", mask="seen[b, q_idx, kv_idx]", tensors={"seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}}
    )
    want = reference(stated, q, k, v, seen=seen)
    found = interpret(plan(spec, "host"), q, k, v, VALUES)
    assert error(found["o"], want[0]) < 1e-5
    assert error(found["lse"], want[1]) < 1e-5
    assert error(reference(spec, q, k, v, **VALUES)[0], want[0]) < 1e-12


def test_trees_of_many_words():
    parents = [-1, *(i // 2 for i in range(99))]
    spec = Spec(**(load("specs/tree.yaml").to_json() | {"head_dim": 16, "dtype": "float32"}))
    q, k, v = arrays(spec, 1, 2, 1, 100, 130)
    seen = np.array([[j < 30 or below(parents, i, j - 30) for j in range(130)] for i in range(100)])[None]
    stated = Spec(
        head_dim=16, dtype="float32", mask="seen[b, q_idx, kv_idx]", tensors={"seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}}
    )
    found = interpret(plan(spec, "host"), q, k, v, {"ancestors": ancestors(parents, 4)[None]})
    assert error(found["o"], reference(stated, q, k, v, seen=seen)[0]) < 1e-5


def test_a_tree_has_as_many_words_as_its_nodes_fill():
    spec = Spec(**(load("specs/tree.yaml").to_json() | {"head_dim": 16, "dtype": "float32"}))
    q, k, v = arrays(spec, 1, 2, 1, 200, 230)
    with pytest.raises(CallError, match=r"ancestors has shape \[1, 200, 4\]: expected \[1, 200, 7\]"):
        flashgen.compile(spec, backend="interpreter")(q, k, v, ancestors=np.zeros((1, 200, 4), np.int32))


def test_what_lies_before_a_tree_is_not_masked():
    loops = plan(load("specs/tree.yaml"), "sm_90a").attention.ranges.loops
    assert [loop.masked for loop in loops] == [False, True]
