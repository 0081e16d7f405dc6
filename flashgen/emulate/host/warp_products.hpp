// mma.sync (PTX ISA 9.0, 9.7.14.5.8): d[16][8] += a[16][16] * b[16][8] by a warp.
#pragma once
#include "deferred.hpp"

namespace cuda_on_host {

inline void add_four(float* d, const float* upper, const float* lower) {   // two of each
  using Pair = double __attribute__((vector_size(16)));
  using Quad = float __attribute__((vector_size(16)));
  double first, second;
  std::memcpy(&first, upper, 8), std::memcpy(&second, lower, 8);
  Quad all;
  std::memcpy(&all, d, 16);
  all += reinterpret_cast<Quad>(Pair{first, second});
  std::memcpy(d, &all, 16);
}

// Operand a as rows of floats. Lane 4 * g + i holds, in pairs along k: rows g, g + 8 at k = 2 * i, then both at k = 2 * i + 8. It is kept
// for the products that follow.
template <class Widen>
const float (&Deferred::left_of(const Step& step, Widen widen))[16][16] {
  const std::uint32_t number = step.kind.a_loaded ? step.a / 4 : static_cast<std::uint32_t>(step.fragments - fragments[0]) / 32;
  Left& kept = converted[number % std::size(converted)];
  const Left::Key key{number, step.kind};
  if (kept.key == key) return kept.of;
  kept.key = key;
  for (int j = 0; j < 4; ++j) {
    Matrix part;
    if (step.kind.a_loaded) part = transposed(matrices[step.a + j]);
    else for (int lane = 0; lane < 32; ++lane) std::memcpy(reinterpret_cast<char*>(&part) + 4 * lane, reinterpret_cast<const char*>(step.fragments + lane) + 4 * j, 4);
    for (int row = 0; row < 8; ++row) {
      const Vector eight = widen(part.rows[row]);
      std::memcpy(kept.of[row + j % 2 * 8] + j / 2 * 8, &eight, sizeof eight);
    }
  }
  return kept.of;
}

// Of b lane 4 * g + i holds column g at k = 2 * i and the next, then at k = 2 * i + 8; of d columns 2 * i and the next of row g, then of row g + 8.
template <class Widen>
void Deferred::multiply(const Step& step, Widen widen) {
  Matrix held[2];
  const Matrix* b[2] = {held, held + 1};
  for (int half = 0; half < 2; ++half)
    if (step.kind.b_loaded) {
      b[half] = &matrices[step.b[half]];
    } else {
      for (int lane = 0; lane < 32; ++lane) std::memcpy(reinterpret_cast<char*>(held + half) + 4 * lane, &pairs[&step - steps][lane][half], 4);
      held[half] = transposed(held[half]);
    }
  const auto& left = left_of(step, widen);
  Vector right[16];
  for (int k = 0; k < 16; ++k) right[k] = widen(b[k / 8]->rows[k % 8]);
  alignas(32) float sums[16][8];
  for (int first = 0; first < 16; first += 8) {        // eight sums in registers
    Vector sum[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int row = 0; row < 8; ++row) sum[row] += left[first + row][k] * right[k];
    std::memcpy(sums[first], sum, sizeof sum);
  }
  const std::int32_t d = step.d;
  for (int row = 0; row < 8; ++row)
    for (int i = 0; i < 4; ++i) add_four(reinterpret_cast<float*>(tops[4 * row + i] + d), sums[row] + 2 * i, sums[row + 8] + 2 * i);
}

}  // namespace cuda_on_host
