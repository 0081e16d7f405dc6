"""Ranges as CUDA text: the host's compiler makes of it what NumPy does, at any lengths and values."""

import random
import subprocess

import numpy as np
from hypothesis import given, settings

from flashgen.errors import SpecError
from flashgen.expr.prove.affine import param
from flashgen.expr.prove.intervals import KEYS
from flashgen.expr.tiles.cuda import number
from tests.expr.masks import EXACT, MASKS, PARAMS, RELAXED, ranges_of, rows_of

HEADER = """\
#include <algorithm>
#include <cstdio>
using std::max; using std::min;
template <class T, int RANK> struct Array {
  const T* data; long long strides[RANK];
  template <class... Index> T operator()(Index... index) const {
    long long at = 0, axis = 0;
    ((at += index * strides[axis++]), ...);
    return data[at];
  }
};
struct int4 { int x, y, z, w; };
struct Params {
  int q_len, kv_len, heads, batch, group, arg_left, arg_right, arg_n, arg_stride, arg_c;
  Array<int, 1> arg_lens; Array<int, 2> arg_starts; Array<bool, 1> arg_flags;
  const int4 *seen_0, *seen_1, *seeing_0, *seeing_1;
};
int floor_div(int a, int n) { return a / n - (a % n < 0); }
long long floor_div(long long a, long long n) { return a / n - (a % n < 0); }
int floor_mod(int a, int n) { return a % n + (a % n < 0 ? n : 0); }
long long floor_mod(long long a, long long n) { return a % n + (a % n < 0 ? n : 0); }
"""
MAIN = """\
int main() {
  int which, q_begin, batch, head, kv_head, lens[2], starts[12], flags[4]; bool bits[4]; int4 seen[2][8]; Params p;
  while (scanf("%d %d %d %d %d", &which, &q_begin, &batch, &head, &kv_head) == 5) {
    for (int* x : {&p.q_len, &p.kv_len, &p.arg_left, &p.arg_right, &p.arg_n, &p.arg_stride, &p.arg_c}) scanf("%d", x);
    for (int& x : lens) scanf("%d", &x);
    for (int& x : starts) scanf("%d", &x);
    for (int i = 0; i < 4; ++i) { scanf("%d", flags + i); bits[i] = flags[i]; }
    for (auto& found : seen) {
      scanf("%d %d %d %d", &found[0].x, &found[0].y, &found[0].z, &found[0].w);
      for (int4& x : found) x = found[0];
    }
    p.seen_0 = p.seeing_0 = seen[0], p.seen_1 = p.seeing_1 = seen[1];
    p.heads = 4, p.batch = 2, p.group = 2;
    p.arg_lens = {lens, {1}}, p.arg_starts = {starts, {3, 1}}, p.arg_flags = {bits, {1}};
    KERNELS[which](p, batch, head, kv_head, q_begin);
    puts("");
  }
}
"""


def function(i, found):
    text = found.cuda()
    body = [*text.lines, *(f'printf("%d %d ", {begin}, {end});' for begin, end, _ in text.loops)]
    sizes = f"constexpr int BLOCK_M = {found.block_m}, BLOCK_N = {found.block_n}, rows = BLOCK_M;"
    sizes += "".join(f" const int4 {x.name} = *p.{x.name};" for x in text.pairings)
    return "\n  ".join([f"void k{i}(const Params& p, int batch, int head, int kv_head, int {found.side.first}) {{", sizes, *body]) + "\n}\n"


def at_tile(found, begin, q_len, kv_len, given_values):
    """The loops of one query tile, or key tile; evaluate() would hold all of them."""
    known = {key if key in ("b", "h", "hk") or "." in key else param(key): x for key, x in given_values.items()}
    known |= {str(found.side.first): begin, "q_len": q_len, "kv_len": kv_len, "BLOCK_M": found.block_m, "BLOCK_N": found.block_n}
    with np.errstate(over="raise"):
        for name, value in found.steps:
            known[name] = number(value, known)
            assert -(2**31) <= known[name] < 2**31
        return " ".join(f"{number(loop.begin, known)} {number(loop.end, known)}" for loop in found.loops)


def random_values(rng, top, kv_len):
    big = 2**31 - 1
    given_values = {key: rng.choice([rng.randint(-9, 99), rng.randint(-big - 1, big)]) for key in ("left", "right", "c")}
    given_values |= {key: rng.choice([rng.randint(1, 99), rng.randint(1, big)]) for key in ("n", "stride")}
    given_values |= {"b": rng.randint(0, 1), "h": rng.randint(0, 3), "hk": rng.randint(0, 1)}
    reads = lambda count: np.array([rng.choice([rng.randint(-5, top), -big - 1, big]) for _ in range(count)])  # noqa: E731
    for i in range(2):
        bounds = [*sorted((rng.randint(0, kv_len), rng.randint(0, kv_len))), *sorted((rng.randint(0, kv_len), rng.randint(0, kv_len)))]
        given_values |= {f"{name}_{i}.{field}": bound for name in ("seen", "seeing") for field, bound in zip("xyzw", bounds, strict=True)}
    return given_values | {"lens": reads(2), "starts": reads(12).reshape(4, 3), "flags": np.array([rng.random() < 0.5 for _ in range(4)])}


def test_cuda_text_agrees_with_numpy(tmp_path):
    """Also at the longest lengths and any 32-bit values, with signed overflow trapped."""
    rng = random.Random(7)
    texts = [
        *EXACT,
        "kv_idx % n < q_len % stride",
        "kv_idx * left <= q_idx * right",
        "kv_idx * 5 < q_idx * kv_len",
        "kv_idx * n < c * q_idx",
    ]

    @settings(RELAXED, database=None, derandomize=True)
    @given(MASKS)
    def collect(text):
        texts.append(text)

    collect()
    found = []
    for text in texts:
        try:
            of = rng.choice([ranges_of, rows_of])
            found.append(of(text, rng.choice([1, 5, 64, 128]), rng.choice([1, 7, 64, 96, 128])))
        except SpecError:
            continue
    table = f"void (*const KERNELS[])(const Params&, int, int, int, int) = {{{', '.join(f'k{i}' for i in range(len(found)))}}};\n"
    (tmp_path / "keys.cpp").write_text("".join([HEADER, *(function(i, x) for i, x in enumerate(found)), table, MAIN]))
    options = ["-std=c++17", "-O1", "-w", "-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]
    subprocess.run(["g++", *options, "-o", tmp_path / "keys", tmp_path / "keys.cpp"], check=True)
    lines, expected = [], []
    for i, x in enumerate(found):
        for trial in range(60):
            top = [70, 5000, 2**30][trial % 3]
            q_len, kv_len = rng.choice([rng.randint(1, top), top]), rng.choice([0, rng.randint(0, top), top])
            kv_len = kv_len if x.side is KEYS else max(1, kv_len)  # else there is no key tile
            length, block = (q_len, x.block_m) if x.side is KEYS else (kv_len, x.block_n)
            begin, given_values = rng.randrange(-(-length // block) or 1) * block, random_values(rng, top, kv_len)
            sent = [i, begin, *(given_values[key] for key in ("b", "h", "hk")), q_len, kv_len, *(given_values[key] for key in PARAMS)]
            sent += [int(value) for key in ("lens", "starts", "flags") for value in given_values[key].ravel()]
            sent += [given_values[f"seen_{i}.{field}"] for i in range(2) for field in "xyzw"]
            lines.append(" ".join(map(str, sent)))
            expected.append(at_tile(x, begin, q_len, kv_len, given_values))
    output = subprocess.run([tmp_path / "keys"], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    assert len(found) > 100
    assert [line.strip() for line in output.splitlines()] == expected
