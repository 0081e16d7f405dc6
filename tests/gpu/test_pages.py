"""Keys in pages and new keys into them, on a GPU: the bits of keys in one piece, and of NumPy's."""

import numpy as np
import pytest

import flashgen
from flashgen.bench.cases import rounded
from flashgen.bench.paged import in_pages, table
from flashgen.spec import Spec
from tests.plan.agreement import judge

cupy = pytest.importorskip("cupy")


def on_gpu(x):
    return cupy.asarray(x)


@pytest.mark.parametrize("page", [1, 16, 256])
@pytest.mark.parametrize(("layout", "q_len"), [("bshd", 1), ("bhsd", 130), ("bshd", 600), ("thd", 0)])
def test_as_the_reference(page, layout, q_len):
    spec = Spec(head_dim=64, dtype="float16", layout=layout, mask="causal & window(300, 0)", cache={"page": page}, outputs=["o", "lse"])
    rng, lens, room = np.random.RandomState(page), np.int32([700, 0, 1024, 33]), 1024
    block_table = table(4, room // page, rng)
    keys = [rounded(rng.standard_normal((4, 2, room, 64)), "float16") for _ in range(2)]
    for b, n in enumerate(lens):
        keys[0][b, :, n:], keys[1][b, :, n:] = np.nan, np.inf
        block_table[b, -(-n // page) :] = rng.choice([-1, 2**31 - 1])
    values = {"kv_lens": lens, "block_table": block_table}
    if layout == "thd":
        values["cu_seqlens_q"] = np.int32([0, 200, 201, 201, 230])
        q = rounded(rng.standard_normal((230, 8, 64)), "float16")
    else:
        q = rounded(rng.standard_normal((4, 8, q_len, 64)), "float16").transpose(spec.order.from_heads_first)
    k, v = (in_pages(spec, x, block_table) for x in keys)
    given = {name: on_gpu(x) for name, x in values.items()}
    o, lse = flashgen.compile(spec)(on_gpu(q), on_gpu(k), on_gpu(v), **given)
    judge(spec, {"o": o.get(), "lse": lse.get()}, q, k, v, **values)


def test_pages_past_two_to_the_31_elements():
    """One buffer whose pages of one key lie so far apart that the last begin beyond what 32 bits count."""
    if cupy.cuda.Device().mem_info[0] < 8 << 30:
        pytest.skip("8 GB of memory are not free")
    pages, wide, d = 24000, 98304, 128
    buffer, rng = cupy.zeros((pages, wide), np.float16), np.random.default_rng(23)
    keys = [on_gpu(rng.standard_normal((pages, d)).astype(np.float16)) for _ in range(2)]
    buffer[:, :d], buffer[:, -d:] = keys
    views = [x[:, None, None] for x in (buffer[:, :d], buffer[:, -d:])]
    spec = Spec(head_dim=d, dtype="float16", mask="causal", cache={"page": 1})
    q = on_gpu(rng.standard_normal((1, 16, 1, d)).astype(np.float16))
    given = {"kv_lens": on_gpu(np.int32([pages])), "block_table": on_gpu(np.arange(pages, dtype=np.int32)[::-1][None].copy())}
    far = flashgen.compile(spec)(q, *views, **given).get()
    near = flashgen.compile(spec)(q, *(x.reshape(pages, 1, 1, d) for x in keys), **given).get()
    assert far.tobytes() == near.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_append(dtype, interleaved):
    rng = np.random.RandomState(0)
    arrays = {name: rounded(rng.standard_normal((3, 5, 2, 64)), dtype) for name in ("k", "v")}
    arrays |= {name: rounded(rng.standard_normal((20, 16, 2, 64)), dtype) for name in ("k_cache", "v_cache")}
    arrays |= {"kv_lens": np.int32([5, 33, 3]), "block_table": table(3, 6, rng)}
    angles = rng.standard_normal((96, 32))
    rotary = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    sent = {name: on_gpu(x) for name, x in arrays.items()}
    flashgen.append(**sent, rotary=tuple(map(on_gpu, rotary)), interleaved=interleaved)
    flashgen.append(**arrays, rotary=tuple(rotary), interleaved=interleaved)
    np.testing.assert_allclose(sent["k_cache"].get(), arrays["k_cache"], rtol=2e-3 if dtype == "float16" else 1e-6, atol=1e-5)
    np.testing.assert_array_equal(sent["v_cache"].get(), arrays["v_cache"])
