// mma.sync (PTX ISA 9.0, 9.7.14.5.8): d[16][8] += a[16][16] * b[16][8] by a warp.
#pragma once
#include "deferred.hpp"

namespace cuda_on_host {

// To the accumulators of four lanes, two numbers of a row and two of the row 8 further down each.
inline void add_rows(char* const* tops, std::int32_t d, const Vector& upper, const Vector& lower) {
  using Pairs = double __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  const auto u = reinterpret_cast<const Pairs&>(upper), l = reinterpret_cast<const Pairs&>(lower);
  const Pairs even = picked<0, 4, 2, 6>(u, l), odd = picked<1, 5, 3, 7>(u, l);   // of lanes 0 and 2, of 1 and 3
  for (int i = 0; i < 4; ++i) {
    Four sum, mine;
    std::memcpy(&mine, reinterpret_cast<const char*>(i % 2 ? &odd : &even) + i / 2 * 16, 16);
    std::memcpy(&sum, tops[i] + d, 16);
    sum += mine;
    std::memcpy(tops[i] + d, &sum, 16);
  }
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
  Vector sums[16];
  for (int first = 0; first < 16; first += 8) {        // eight sums in registers
    Vector sum[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int row = 0; row < 8; ++row) sum[row] += left[first + row][k] * right[k];
    std::memcpy(sums + first, sum, sizeof sum);
  }
  for (int row = 0; row < 8; ++row) add_rows(tops + 4 * row, step.d, sums[row], sums[row + 8]);
}

}  // namespace cuda_on_host
