// 8 x 8 elements of 16 bits, of which ldmatrix and mma.sync are made, and their widening to float.
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace cuda_on_host {

using Vector = float __attribute__((vector_size(32)));
using Words = std::uint32_t __attribute__((vector_size(32)));
using Halves = std::uint16_t __attribute__((vector_size(16)));

// Eight numbers of 16 bits.
inline Vector widen_bf16(Halves bits) { return reinterpret_cast<Vector>(__builtin_convertvector(bits, Words) << 16); }
inline Vector widen_f16(Halves bits) {
#ifdef __F16C__
  return reinterpret_cast<Vector>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  const Words words = __builtin_convertvector(bits, Words);
  const auto scaled = reinterpret_cast<Vector>((words & 0x7FFFu) << 13) * 0x1p112f;
  const auto special = reinterpret_cast<Words>((words & 0x7C00u) == 0x7C00u) & 0x7F800000u;   // infinities and NaN
  return reinterpret_cast<Vector>(reinterpret_cast<Words>(scaled) | special | (words & 0x8000u) << 16);
#endif
}
template <class Widen> Vector widen_8(const void* from, Widen widen) {   // neighbours in memory
  Halves eight;
  std::memcpy(&eight, from, sizeof eight);
  return widen(eight);
}

struct Matrix { Halves rows[8]; };                     // as a lane each holds a pair of neighbours: lane l elements 2 * (l % 4) and the next of row l / 4

template <int... kFrom, class Elements> Elements picked(Elements a, Elements b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, kFrom...);
#else
  using Numbers = decltype(a < b);                     // integers of the elements' size
  return __builtin_shuffle(a, b, Numbers{kFrom...});
#endif
}
// Rows i and i + 4 interleaved: an element's index, row and column in bits, turns by one bit each time.
inline Matrix transposed(Matrix m) {
  for (int turn = 0; turn < 3; ++turn) {
    Matrix next;
    for (int i = 0; i < 4; ++i) {
      next.rows[2 * i] = picked<0, 8, 1, 9, 2, 10, 3, 11>(m.rows[i], m.rows[i + 4]);
      next.rows[2 * i + 1] = picked<4, 12, 5, 13, 6, 14, 7, 15>(m.rows[i], m.rows[i + 4]);
    }
    m = next;
  }
  return m;
}

}  // namespace cuda_on_host
