"""Emitted holes compiled by the host's compiler, around a Params whose arrays know their bounds."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from flashgen.render.environment import template_root
from tests.expr.grammar import PARAMS, TENSORS

CTYPES = {"float32": "float", "int32": "int", "bool": "bool"}
ROWS, KEYS, TILE = 8, 12, 4  # of a query tile; keys, beyond the last one too, in tiles
EXTENTS = {"b": 2, "hq": 4, "hk": 2, "q_len": 6, "kv_len": 10}

DIVISION = f"constexpr int BLOCK_N = {TILE};\n" + (template_root() / "device" / "division.cuh").read_text()
PREAMBLE = """
#include <algorithm>
#include <cmath>
#include <cstdlib>
using std::min; using std::max; using std::abs;
namespace ptx {
inline float exp2(float x) { return exp2f(x); }
inline float log2(float x) { return log2f(x); }
inline float tanh(float x) { return tanhf(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float minimum(float x, float y) { return x != x || y != y ? NAN : fminf(x, y); }
inline float maximum(float x, float y) { return x != x || y != y ? NAN : fmaxf(x, y); }
}
using u32 = unsigned;
#define __device__
#define __forceinline__ inline
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __float2int_rz(float x) { return x != x ? 0 : x >= 0x1p31f ? 2147483647 : x < -0x1p31f ? -2147483647 - 1 : int(x); }
inline float __int2float_rn(int x) { return x; }
inline float __ll2float_rn(long long x) { return x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
%(division)s
template <class T> struct Two { T left, right; };
template <class T, int RANK> struct Array {
  const T* data; int extents[RANK];
  template <class... Index> T operator()(Index... index) const {
    int at = 0, axis = 0;
    for (int i : {index...}) { if (i < 0 || i >= extents[axis]) abort(); at = at * extents[axis++] + i; }
    return data[at];
  }
  template <class... Index> const T* address(Index... index) const {
    int at = 0, axis = 0;
    for (int i : {index...}) { if (i < 0 || (i >= extents[axis] && axis < RANK - 1)) abort(); at = at * extents[axis++] + i; }
    return data + at;
  }
  bool paired(int) const { return false; }
  template <bool PAIRED> Two<T> two(const T* from, int column, int end) const {
    return {column < end ? from[column] : T(), column + 1 < end ? from[column + 1] : T()};
  }
  template <bool PAIRED> u32 flags(const T* from, int column, int end) const {
    const Two<T> each = two<PAIRED>(from, column, end);
    return each.left | each.right << 8;
  }
};
"""

CASE = """
namespace case_%(number)d {
struct Variant {
  %(uniform)s
  Variant(const Params& p, int batch, int head, int kv_head) { %(set_uniform)s }
  float to_log2() const { return %(outer)s; }
  struct Row { %(row)s };
  Row row(const Params& p, int q_idx, int kv_begin) const { Row row; %(set_row)s return row; }
  struct At { %(at)s };
  void read(const Params& p, const Row& row, int column, At* at) const { %(read)s }
  float column_slope(const Params& p) const { return %(column_slope)s; }
  float row_bias(const Params& p, const Row& row) const { return %(row_bias)s; }
  float settled(const Params& p, const Row& row) const { return %(settled)s; }
  float score(const Params& p, float s, const Row& row, const At& at, int column) const { %(score)s }
  bool keep(const Params& p, const Row& row, const At& at, int column) const { %(keep)s }
};
void at(const Params& p, const int (&place)[5], float s, float* score, bool* keep) {
  const auto [batch, head, q_idx, kv_begin, column] = place;
  const Variant variant(p, batch, head, head / p.group);
  const Variant::Row row = variant.row(p, q_idx, kv_begin);
  *score = variant.score(p, s, row, {}, column), *keep = variant.keep(p, row, {}, column);
}
void run(const Params& p, const float* s, float* score, bool* keep) {
  for (int batch = 0; batch < p.batch; ++batch) for (int head = 0; head < p.heads; ++head) {
    const Variant variant(p, batch, head, head / p.group);
    for (int q = 0; q < ROWS; ++q) for (int begin = 0; begin < KEYS; begin += TILE) {
      const Variant::Row row = variant.row(p, q, begin);
      Variant::At at[TILE];
      for (int column = 0; column < TILE; column += 2) variant.read(p, row, column, at + column);
      for (int column = 0; column < TILE; ++column, ++s) {
        const float begun = %(raw)s;
        *score++ = (variant.score(p, begun, row, at[column], column)%(besides)s) * variant.to_log2() + variant.settled(p, row) * 1.442695f;
        *keep++ = variant.keep(p, row, at[column], column);
      }
    }
  }
}
}
"""


def source(found):
    """The text of a library: run(case, Params, s, score, keep), arrays [batch, head, query, key]; at(case, Params, place, s, score, keep)
    at one place that reads nothing along the keys: batch, head, q_idx, kv_begin, column."""
    members = [f"int arg_{p.name};" if p.type == "int" else f"float arg_{p.name};" for p in PARAMS]
    members += [f"Array<{CTYPES[t.dtype]}, {len(t.shape)}> arg_{t.name};" for t in TENSORS]
    params = "struct Params { float softmax_scale; int q_len, kv_len, heads, batch, group; " + " ".join(members) + " };"
    cases = [CASE % {"number": i, **text(holes)} for i, holes in enumerate(found)]
    calls = " ".join(f"case {i}: case_{i}::run(*p, s, score, keep); break;" for i in range(len(found)))
    sizes = f"constexpr int ROWS = {ROWS}, KEYS = {KEYS}, TILE = {TILE};"
    places = " ".join(f"case {i}: case_{i}::at(*p, *place, s, score, keep); break;" for i in range(len(found)))
    run = f'extern "C" void run(int number, const Params* p, const float* s, float* score, bool* keep) {{ switch (number) {{ {calls} }} }}'
    at = "int number, const Params* p, const int (*place)[5], float s, float* score, bool* keep"
    at = f'extern "C" void at({at}) {{ switch (number) {{ {places} }} }}'
    return "\n".join([PREAMBLE % {"division": DIVISION}, sizes, params, *cases, run, at])


def text(holes):
    return {
        "uniform": " ".join(f"{m.type} {m.name};" for m in holes.uniform),
        "set_uniform": " ".join(f"{m.name} = {m.value};" for m in holes.uniform),
        "row": " ".join(f"{m.type} {m.name};" for m in holes.row),
        "set_row": " ".join(f"row.{m.name} = {m.value};" for m in holes.row),
        "outer": holes.score.factor,
        "column_slope": holes.score.column_slope or "0.0f",
        "row_bias": holes.score.row_bias or "0.0f",
        "settled": holes.outputs.settled or "0.0f",
        "raw": "*s + variant.column_slope(p) * float(column)" if holes.score.column_slope else "*s",
        "besides": " + variant.row_bias(p, row)" if holes.score.row_bias else "",
        "at": " ".join(f"{r.type} {r.name};" for r in holes.reads),
        "read": " ".join(
            f"const auto {r.name} = {r.tensor}.template {'flags' if r.flags else 'two'}<false>(row.{r.address}, column, {holes.keys}); "
            f"at[0].{r.name} = {r.both(r.name)[0]}, at[1].{r.name} = {r.both(r.name)[1]};"
            for r in holes.reads
        ),
        "score": " ".join(holes.score.body.lines if holes.score.body else ["return s;"]),
        "keep": " ".join(holes.mask.body.lines),
    }


def build(folder: Path, found, *options):
    """The library of many holes, compiled once."""
    folder.mkdir()
    (folder / "holes.cpp").write_text(source(found))
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-ffp-contract=off",
        "-Werror",
        "-Wall",
        "-Wno-unused",
        "-Wno-parentheses",
        "-Wno-tautological-compare",
        "-shared",
        "-fPIC",
        *options,
    ]
    made = subprocess.run([*command, "-o", "holes.so", "holes.cpp"], cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:4000]
    return ctypes.CDLL(str(folder / "holes.so"))


def params(values, scale, extents=EXTENTS):
    """Params as bytes laid out as C does: the arrays after the scalars, pointers aligned to 8."""
    fields = [("softmax_scale", ctypes.c_float)] + [(n, ctypes.c_int) for n in ("q_len", "kv_len", "heads", "batch", "group")]
    fields += [(f"arg_{p.name}", ctypes.c_int if p.type == "int" else ctypes.c_float) for p in PARAMS]
    fields += [(f"arg_{t.name}", array_type(len(t.shape))) for t in TENSORS]
    record = type("Params", (ctypes.Structure,), {"_fields_": fields})()
    record.softmax_scale = scale
    record.q_len, record.kv_len, record.heads, record.batch = (extents[n] for n in ("q_len", "kv_len", "hq", "b"))
    record.group = record.heads // extents["hk"]
    for p in PARAMS:
        setattr(record, f"arg_{p.name}", values[p.name])
    for t in TENSORS:
        array = getattr(record, f"arg_{t.name}")
        array.data = values[t.name].ctypes.data
        array.extents[:] = values[t.name].shape
    return record


def array_type(rank):
    return type("Array", (ctypes.Structure,), {"_fields_": [("data", ctypes.c_void_p), ("extents", ctypes.c_int * rank)]})


def run(library, number, record, s):
    """Scores in log2 units and what is kept, of raw s [batch, head, query, key]."""
    tiles = s.reshape(*s.shape[:3], KEYS // TILE, TILE)
    score, keep = np.full(tiles.shape, np.nan, np.float32), np.zeros(tiles.shape, np.bool_)
    pointers = (ctypes.c_void_p(x.ctypes.data) for x in (np.ascontiguousarray(tiles), score, keep))
    library.run(number, ctypes.byref(record), *pointers)
    return score.reshape(s.shape), keep.reshape(s.shape)


def at(library, number, record, *place, s=0.0):
    """The score, without what all scores are multiplied by, and whether the key is kept, at one place."""
    score, keep = ctypes.c_float(), ctypes.c_bool()
    library.at(number, ctypes.byref(record), (ctypes.c_int * 5)(*place), ctypes.c_float(s), ctypes.byref(score), ctypes.byref(keep))
    return score.value, keep.value
