// mma.sync (PTX ISA 9.0, 9.7.14.5.8): d[16][8] += a[16][16] * b[16][8] by a warp.
//
// Each lane leaves its operands and goes on. The lanes meet where a run of products ends (runs.py finds those), or at the next ldmatrix;
// the last one to come multiplies for all, in order. Outside of runs they meet at every product.
#pragma once
#include "meetings.hpp"
#include "tensor_core.hpp"

namespace cuda_on_host {

// What a thread has left since it last met its warp.
struct Products {
  static constexpr int kMost = 8;
  struct Product {                                     // its share
    std::uint32_t a[4], b[2];
    float* d;
  };
  Product left[kMost];
  int count = 0, runs = 0;                             // of them; of runs that the thread is in
  std::uint32_t elements = 0, trace = 0;               // a bit a product: of float16; a digest of where they stand

  void add(Operation::Element type, float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, Place place) {
    Product& product = left[count];
    std::memcpy(product.a, a, sizeof product.a);
    product.b[0] = b0, product.b[1] = b1;
    product.d = d;
    trace = trace * 33 + place;
    elements |= static_cast<std::uint32_t>(type == Operation::Element::f16) << count++;
    if (runs == 0 || count == kMost) meet();
  }
  void begin_run() { ++runs; }
  void end_run() {
    if (--runs == 0 && count) meet();
  }
  [[gnu::noinline]] static void meet();                // out of the way of `add`
};

inline void add_four(float* d, const float* upper, const float* lower) {   // two of each
  using Pairs = double __attribute__((vector_size(16)));
  using Quad = float __attribute__((vector_size(16)));
  double first, second;
  std::memcpy(&first, upper, 8), std::memcpy(&second, lower, 8);
  Quad all;
  std::memcpy(&all, d, 16);
  all += reinterpret_cast<Quad>(Pairs{first, second});
  std::memcpy(d, &all, 16);
}

// Lane 4 * g + i holds of a, in pairs along k: rows g, g + 8 at k = 2 * i, then both at k = 2 * i + 8; of b column g at both k; of d
// columns 2 * i and the next of row g, then of row g + 8.
template <class Widen>
void multiply(const Products* lanes, int which, Widen widen) {
  std::uint32_t b[2][4][8];                          // [k / 8][k / 2 % 4][column]
  alignas(32) float left[32][8], sums[2][4][8];      // a as the lanes hold it
  for (int lane = 0; lane < 32; ++lane) {
    const Products::Product& product = lanes[lane].left[which];
    const Vector eight = widen_8(product.a, widen);
    std::memcpy(left[lane], &eight, sizeof eight);
    for (int half = 0; half < 2; ++half) b[half][lane % 4][lane / 4] = product.b[half];
  }
  Vector right[2][4][2];                             // [k / 8][k / 2 % 4][k % 2]
  for (int i = 0; i < 8; ++i) {
    Words pairs;
    std::memcpy(&pairs, b[i / 4][i % 4], sizeof pairs);
    right[i / 4][i % 4][0] = widen(pairs & 0xFFFFu), right[i / 4][i % 4][1] = widen(pairs >> 16);
  }
  for (int first = 0; first < 8; first += 4) {       // and 8 rows further down: eight sums in registers
    Vector sum[2][4] = {};
    for (int k = 0; k < 2; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 2; ++j)
          for (int row = 0; row < 4; ++row)
            for (int lower = 0; lower < 2; ++lower) sum[lower][row] += left[(first + row) * 4 + i][4 * k + 2 * lower + j] * right[k][i][j];
    std::memcpy(sums, sum, sizeof sum);
    for (int lane = 0; lane < 16; ++lane) add_four(lanes[4 * first + lane].left[which].d, sums[0][lane / 4] + lane % 4 * 2, sums[1][lane / 4] + lane % 4 * 2);
  }
}

// Once the lanes of the running warp have met.
inline void multiply_what_is_left() {
  const Thread& t = this_thread();
  Products* const lanes = t.warp->threads->left;       // neighbours
  const int count = lanes->count;
  if (t.warp->gone) t.block->fault("mma.sync in a warp that is not whole", "lanes that have returned, and the number of threads");
  for (int lane = 1; lane < 32; ++lane)
    if (lanes[lane].trace != lanes->trace || lanes[lane].count != count)
      t.block->fault("the warp diverged: its lanes come from different mma.sync", "a branch around one that not all 32 lanes take");
  for (int i = 0; i < count; ++i)
    if (lanes->elements >> i & 1) multiply(lanes, i, widen_f16);
    else multiply(lanes, i, widen_bf16);
  for (int lane = 0; lane < 32; ++lane) lanes[lane].count = 0, lanes[lane].elements = 0, lanes[lane].trace = 0;
}
inline void Products::meet() { this_thread().block->meet("mma.sync", multiply_what_is_left); }

}  // namespace cuda_on_host
