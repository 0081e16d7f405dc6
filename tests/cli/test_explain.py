"""`flashgen explain`: its numbers against counting, its page, its picture."""

import io
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.cli import main
from flashgen.cli.gradients import measure_backward
from flashgen.cli.picture import in_characters
from flashgen.cli.work import measure, read_values
from flashgen.expr import evaluate
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.spec import Spec

MASKS = ("full", "causal", "causal & window(100, 0)", "prefix(70) | causal", "chunk(90)", "kv_idx < lens[b]", "kv_idx % 3 == 0")


@given(st.sampled_from(MASKS), st.integers(1, 700), st.integers(1, 700))
@settings(max_examples=40)
def test_the_work_is_what_counting_gives(mask, q_len, kv_len):
    lens = {"lens": {"shape": ["b"], "dtype": "int32"}} if "lens" in mask else {}
    chosen = plan(Spec(head_dim=64, dtype="float16", mask=mask, tensors=lens, block={"m": 64, "n": 64}), "sm_90a")
    values = read_values(chosen.spec, ["lens=130"] if lens else [], q_len, kv_len)
    work = measure(chosen, q_len, kv_len, values)
    q_idx, kv_idx = np.arange(q_len)[:, None], np.arange(kv_len)
    seen = evaluate(chosen.expressions.mask, {**values, "q_idx": q_idx, "kv_idx": kv_idx, "q_len": q_len, "kv_len": kv_len})
    pairs = int(np.broadcast_to(seen, (q_len, kv_len)).sum())
    assert work.visible == pytest.approx(pairs / (q_len * kv_len))
    assert work.flops == 2 * pairs * 128
    assert work.executed_flops >= work.flops
    assert sum(work.tiles.values()) == -(-q_len // 64) * -(-kv_len // 64)


def test_json_has_the_plan_and_its_reasons(flashgen):
    ran = flashgen("explain", "causal", "--arch", "sm_90a", "--json", "--q-len", 1024)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["plan"]["skeleton"] == "forward_sm90"
    assert {entry["field"] for entry in found["plan"]["reasons"]} >= {"tile", "order", "rescale"}
    assert found["rejected"]
    assert all(candidate["candidate"] and candidate["reason"] for candidate in found["rejected"])
    assert (found["q_len"], found["kv_len"], found["heads"]) == (1024, 1024, 1)
    assert found["flops"] == 2 * 256 * 1024 * 1025 // 2
    assert found["bytes"] == 4 * 1024 * 128 * 2 + 4 * 1024
    assert found["tiles"]["empty"] > found["tiles"]["partial"] > 0
    assert found["roofline"]["intensity"] == found["flops"] / found["bytes"]
    assert found["counts"]["floating-point operations of products"]["number"] == found["executed_flops"]
    assert found["counts"]["bytes written there"] == {"formula": "B*H*S_q*(2*D_v + 4)", "number": (2 * 128 + 4) * 1024}


def test_the_page_answers(flashgen):
    ran = flashgen("explain", "softcap", "--q-len", 512, "--kv-len", 700)
    assert (ran.code, ran.err) == (0, "")
    for word in (
        "softcap * tanh(s / softcap)",
        "rejected",
        "shared memory",
        "roofline",
        "512 queries and 700 keys",
        "passes over the keys",
        "█",
    ):
        assert word in ran.out


@pytest.mark.parametrize("arch", ["sm_80", "sm_120", "host"])
def test_every_architecture_has_a_page(flashgen, arch):
    assert flashgen("explain", "gqa", "--arch", arch, "--q-len", 256).code == 0


def test_one_key_value_head_serves_a_group(flashgen):
    found = json.loads(flashgen("explain", "gqa", "--json", "--q-len", 256).out)
    assert found["heads"] == 4
    assert found["bytes"] == (4 + 1) * 256 * 256 * 2 + 4 * 4 * 256


def test_params_and_tensors_shape_the_picture(flashgen, tmp_path):
    (tmp_path / "pad.yaml").write_text(
        "dtype: float16\nhead_dim: 64\nmask: kv_idx < lens[b] - cut\nparams: {cut: 0}\ntensors: {lens: {shape: [b], dtype: int32}}\n"
    )
    spec, size = tmp_path / "pad.yaml", ("--q-len", 256, "--kv-len", 1024, "--json")
    visible = [
        json.loads(flashgen("explain", spec, *size, *more).out)["visible"] for more in ((), ("--param", "lens=512", "--param", "cut=256"))
    ]
    assert visible == [1.0, 0.25]


@pytest.mark.parametrize("item", ["lens=3", "nope", "h=a", "softcap=x"])
def test_a_param_that_is_none(flashgen, item):
    ran = flashgen("explain", "softcap", "--param", item)
    assert ran.code == 2
    assert item in ran.err


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_saved(flashgen, tmp_path, suffix):
    path = tmp_path / f"mask.{suffix}"
    assert flashgen("explain", "window", "--q-len", 2048, "--png", path).code == 0
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_a_picture_of_an_unknown_kind(flashgen, tmp_path):
    ran = flashgen("explain", "full", "--q-len", 64, "--png", tmp_path / "mask.exe")
    assert ran.code == 2
    assert "mask.exe" in ran.err


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2))
def test_pictures_fit_and_do_not_lie(rows, columns, kind):
    lines = in_characters(np.full((rows, columns), kind, np.int8))
    assert 1 <= len(lines) <= 32
    assert {len(line) for line in lines} <= set(range(1, 65))
    assert set("".join(lines)) == {"·▒█"[kind]}


def test_a_picture_in_ascii_where_nothing_else_can_be_written(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.argv", ["flashgen", "explain", "causal", "--q-len", "2048"])
    with pytest.raises(SystemExit) as end:
        main()
    out.flush()
    text = out.buffer.getvalue().decode("latin-1")
    assert not end.value.code
    assert "mask: # no mask code, + mask tested, . never loaded" in text
    assert set(text) <= set(map(chr, range(128)))


def test_long_sequences_need_little_memory():
    chosen = plan(Spec(head_dim=64, dtype="float16", mask="causal", block={"m": 128, "n": 64}), "sm_90a")
    tracemalloc.start()
    work = measure(chosen, 1_000_000, 1_000_000, read_values(chosen.spec, [], 1_000_000, 1_000_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert work.visible == 1_000_001 / 2_000_000
    assert max(work.picture.classes.shape) <= 1024
    assert peak < 200 << 20


def test_what_is_too_much_to_count_is_refused(flashgen, tmp_path):
    (tmp_path / "third.yaml").write_text("dtype: float16\nhead_dim: 64\nmask: kv_idx * q_idx % 3 == 0\n")
    ran = flashgen("explain", tmp_path / "third.yaml", "--q-len", 10_000_000, "--kv-len", 400_000)
    assert (ran.code, ran.out) == (2, "")
    assert "10000000 queries and 400000 keys" in ran.err
    assert "--q-len" in ran.err


@given(st.sampled_from([mask for mask in MASKS if "lens" not in mask]), st.integers(1, 900), st.integers(1, 900))
@settings(max_examples=20)
def test_bands_are_pieces_of_the_grid(mask, q_len, kv_len):
    chosen = plan(Spec(head_dim=64, dtype="float16", mask=mask, block={"m": 64, "n": 64}), "sm_90a")
    values = read_values(chosen.spec, [], q_len, kv_len)
    whole = chosen.attention.ranges.classes(q_len, kv_len, values)
    for rows in (1, 3, 100):
        np.testing.assert_array_equal(np.concatenate(list(chosen.attention.ranges.bands(q_len, kv_len, values, rows))), whole)
    one = measure(chosen, q_len, kv_len, values)
    np.testing.assert_array_equal(one.picture.classes, whole)


BACKWARD = "name: bent\ndtype: float16\nhead_dim: 64\nmask: causal\nbackward: true\n"


@given(st.sampled_from(MASKS), st.integers(1, 500), st.integers(1, 500), st.booleans())
@settings(max_examples=15)
def test_the_work_of_a_backward(mask, q_len, kv_len, deterministic):
    lens = {"lens": {"shape": ["b"], "dtype": "int32"}} if "lens" in mask else {}
    spec = Spec(head_dim={"qk": 64, "v": 32}, dtype="float16", mask=mask, tensors=lens, group=3, backward=True, deterministic=deterministic)
    chosen, values = plan_backward(spec, "sm_80"), read_values(spec, ["lens=130"] if lens else [], q_len, kv_len)
    forward = measure(plan(spec, "sm_80"), q_len, kv_len, values)
    work = measure_backward(chosen, forward, values)
    pairs = round(forward.visible * q_len * kv_len)
    assert work.flops == 2 * 3 * pairs * (3 * 64 + 2 * 32)
    assert work.executed_flops >= work.flops
    assert work.bytes == 2 * (3 * q_len + kv_len) * 2 * 96 + 4 * 3 * q_len
    assert 4 * 3 * q_len * 2 <= work.memory <= 4 * 3 * (q_len + 256) * (2 + 64) + 64 * (q_len + kv_len)


def test_a_backward_has_a_plan_and_work_of_its_own(flashgen, tmp_path):
    (tmp_path / "bent.yaml").write_text(BACKWARD)
    ran = flashgen("explain", tmp_path / "bent.yaml", "--arch", "sm_80", "--json", "--q-len", 256, "--kv-len", 256)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["backward"]
    assert found["plan"]["skeleton"] == "backward_sm80"
    assert found["flops"] == 2 * 256 * 257 // 2 * 5 * 64
    assert found["roofline"]["intensity"] == found["flops"] / found["bytes"]
    for arch in ("sm_80", "host"):
        text = flashgen("explain", tmp_path / "bent.yaml", "--arch", arch, "--q-len", 256).out
        assert "work of the gradients, one head" in text
        assert "query tiles of a key tile: " in text
    assert "backward" not in json.loads(flashgen("explain", "causal", "--arch", "sm_80", "--json").out)


@pytest.mark.parametrize(
    ("arch", "deterministic", "said"),
    [
        ("sm_90a", False, "by the blocks of all key tiles in any order"),
        ("sm_90a", True, "by the blocks of all key tiles in turns: a number a query tile says whose comes next"),
        ("sm_80", True, "in those of a kernel of its own, a block a query tile"),
    ],
)
def test_the_plan_of_a_backward_says_in_which_order_dq_is_summed(flashgen, tmp_path, arch, deterministic, said):
    (tmp_path / "plain.yaml").write_text(f"dtype: float16\nhead_dim: 64\nbackward: true\ndeterministic: {str(deterministic).lower()}\n")
    told = flashgen("explain", tmp_path / "plain.yaml", "--arch", arch, "--q-len", 256).out
    assert said in " ".join(told.split())


def test_memory_of_sums_in_integers(flashgen, tmp_path):
    """104 bytes an element of a tensor whose gradient has the same bits in every run, and no dq in float32."""
    spec, memory = tmp_path / "sums.yaml", []
    said = "head_dim: 64\ndtype: bfloat16\nbackward: true\nscore: s + t[h, kv_idx]\n"
    said += "tensors: {t: {shape: [hq, kv_len], dtype: float32, grad: true}}\n"
    for more in ("", "deterministic: true\n"):
        spec.write_text(said + more)
        found = json.loads(flashgen("explain", spec, "--json", "--q-len", 256, "--arch", "sm_80").out)
        memory.append(found["backward"]["memory"])
    assert memory[1] - memory[0] == 104 * 256 - 4 * 256 * 64
