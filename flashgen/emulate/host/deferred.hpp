// What the lanes of a warp leave and go on: ldmatrix and mma.sync in runs (runs.py), where nobody can tell when they are done.
//
// The lanes meet where a run ends, at the next ldmatrix outside of runs, before whatever else orders memory, or when there is no room left.
// The last one to come does it all, as of when each lane came to it: between the two no clock moves and nothing is stored. Outside of runs
// they meet at every product.
#pragma once
#include "meetings.hpp"
#include "tensor_core.hpp"

namespace cuda_on_host {

struct Pairs { Words of[4]; };                         // 8 x 8 elements of 16 bits, in pairs along k: of rows 2 * i and the next, by column

struct Load {                                          // a lane's share of an ldmatrix
  std::uint32_t row;                                   // where it lies
  Place place;
  std::uint32_t first;                                 // number of a matrix
  std::uint16_t matrices, transposed;
};
struct Product {                                       // a lane's share of an mma.sync
  struct Call {
    std::uint32_t b[2];                                // what the lane holds, or numbers of matrices that were loaded
    Place place;
    ptx::Kind kind;
  } call;
  std::uint32_t a[4];
  float* d;
};

// A warp's.
struct Deferred {
  static constexpr int kLoads = 20, kProducts = 32;
  Product products[32][kProducts];                     // by lane
  Load loads[32][kLoads];
  std::vector<Pairs> matrices;                         // that ldmatrix has loaded in this run

  void add(Thread& t) {
    t.top->product = products[t.lane], t.top->load = loads[t.lane];
    t.top->full = t.top->product + 1;
  }
  void begin_run(const Thread& t) {
    if (t.top->runs++ == 0) t.top->full = products[t.lane] + kProducts;
  }
  void end_run(const Thread& t) {
    if (--t.top->runs) return;
    if (left(t)) meet();
    t.top->full = products[t.lane] + 1;
    t.top->matrices = 0;
  }
  bool left(const Thread& t) const { return t.top->loads || t.top->product != products[t.lane]; }
  [[gnu::noinline]] static void meet();
  void finish();                                       // once the lanes have met

 private:
  void load(std::uint32_t which);
  template <class Widen> void multiply(int which, Widen widen);
  [[noreturn, gnu::cold]] static void diverged() {
    block->fault("the warp diverged: its lanes come from different ldmatrix or mma.sync", "a branch around one that not all 32 lanes take");
  }
};

inline void Deferred::meet() {
  Thread& t = this_thread();
  const Deferred& all = *t.warp->deferred;
  t.place = t.top->product != all.products[t.lane] ? t.top->product[-1].call.place : t.top->load[-1].place;
  t.block->meet("mma.sync", [] { this_thread().warp->deferred->finish(); });
}

}  // namespace cuda_on_host
