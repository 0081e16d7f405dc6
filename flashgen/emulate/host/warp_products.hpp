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

// Lane 4 * g + i holds of a, in pairs along k: rows g, g + 8 at k = 2 * i, then both at k = 2 * i + 8; of b column g at both k; of d
// columns 2 * i and the next of row g, then of row g + 8.
template <class Widen>
void Deferred::multiply(int which, Widen widen) {
  const Product& one = products[0][which];
  alignas(32) float left[32][8];                     // a as the lanes hold it
  Pairs held[2];
  const Pairs* b[2] = {held, held + 1};
  const bool loaded = one.call.kind.loaded;
  if (loaded) b[0] = &matrices[one.call.b[0]], b[1] = &matrices[one.call.b[1]];
  using Quad = std::uint32_t __attribute__((vector_size(16)));
  static_assert(sizeof(Product::Call) == sizeof(Quad));
  Quad different{}, of_one;
  std::memcpy(&of_one, &one.call, sizeof of_one);
  for (int lane = 0; lane < 32; ++lane) {
    const Product& product = products[lane][which];
    const Vector eight = widen_8(product.a, widen);
    std::memcpy(left[lane], &eight, sizeof eight);
    Quad call;
    std::memcpy(&call, &product.call, sizeof call);
    different |= call ^ of_one;
    for (int half = 0; half < 2 && !loaded; ++half) held[half].of[lane % 4][lane / 4] = product.call.b[half];
  }
  if (different[2] | different[3] | (loaded ? different[0] | different[1] : 0)) diverged();
  Vector right[2][4][2];                             // [k / 8][k / 2 % 4][k % 2]
  for (int i = 0; i < 8; ++i) {
    const Words pairs = b[i / 4]->of[i % 4];
    right[i / 4][i % 4][0] = widen(pairs & 0xFFFFu), right[i / 4][i % 4][1] = widen(pairs >> 16);
  }
  alignas(32) float sums[2][4][8];
  for (int first = 0; first < 8; first += 4) {       // and 8 rows further down: eight sums in registers
    Vector sum[2][4] = {};
    for (int k = 0; k < 2; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 2; ++j)
          for (int row = 0; row < 4; ++row)
            for (int lower = 0; lower < 2; ++lower) sum[lower][row] += left[(first + row) * 4 + i][4 * k + 2 * lower + j] * right[k][i][j];
    std::memcpy(sums, sum, sizeof sum);
    for (int lane = 0; lane < 16; ++lane) add_four(products[4 * first + lane][which].d, sums[0][lane / 4] + lane % 4 * 2, sums[1][lane / 4] + lane % 4 * 2);
  }
}

}  // namespace cuda_on_host
