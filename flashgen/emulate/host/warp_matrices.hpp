// ldmatrix and stmatrix (PTX ISA 9.0, 9.7.14.5.15-16), done when they return but for an ldmatrix of a series; and what a series has left.
#pragma once
#include <atomic>

#include "shared_memory.hpp"
#include "warp_products.hpp"

namespace cuda_on_host {

inline std::atomic<int> bank_conflicts = 0;            // rows of ldmatrix and stmatrix that had to wait for another of their matrix

// Eight rows, 16 bytes each: of those in the same banks only one goes at a time.
inline void count_conflicts(const std::uint32_t* addresses) {
  Words banks;
  std::memcpy(&banks, addresses, sizeof banks);
  banks = 1u << (banks / 16 & 7);
  std::uint32_t any = 0;
  for (int i = 0; i < 8; ++i) any |= banks[i];
  if (const int free = 8 - std::popcount(any)) bank_conflicts += free;
}
INLINED void check_rows(const std::uint32_t* addresses, int count, const char* what) {
  std::uint32_t any = 0;
  for (int r = 0; r < count; ++r) any |= addresses[r];
  for (int r = 0; any % 16 && r < count; ++r)
    if (addresses[r] % 16) block->fault(text("%s at shared address %#x: not 16-byte aligned", what, addresses[r]), "the row's address");
}

// Have the lanes waited for the same, so that one clock goes for all?
inline bool know_alike(const Warp& warp) {
  const Thread& first = *warp.threads;
  bool alike = true;
  for (const Thread* t = warp.threads; t < warp.threads + 32; ++t)
    alike &= t->products_seen == first.products_seen && t->stores_seen == first.stores_seen && t->copies_seen == first.copies_seen && t->met == first.met;
  return alike;
}

// Of an ldmatrix whose lanes have not waited for the same: eight rows, of lane `lane` and the next.
[[gnu::noinline]] inline void read_each(void* to, const std::uint32_t* addresses, int lane) {
  Block& block = *this_thread().block;
  for (int r = 0; r < 8; ++r) {
    SharedMemory::Reads reads(*this_thread().memory, agent::warp(block.warp_index()), block.clock_of(lane + r), SharedMemory::Proxy::generic);
    reads.by(block.warp().threads[lane + r]);
    std::memcpy(static_cast<char*>(to) + 16 * r, reads.read(addresses[r]), 16);
  }
}
// The rows of some matrices, 16 bytes each; their addresses by lane, lane 8 * j + r that of row r of matrix j.
[[gnu::noinline]] inline void read_matrices(Matrix* to, int count, const std::uint32_t* addresses, bool alike) {
  Block& block = *this_thread().block;
  SharedMemory::Reads first(*this_thread().memory, agent::warp(block.warp_index()), block.clock_of(0), SharedMemory::Proxy::generic);
  for (int j = 0; j < count; ++j) {
    const std::uint32_t* const rows = addresses + 8 * j;
    check_rows(rows, 8, "ldmatrix");
    for (int r = 0; alike && r < 8; ++r) {
      first.by(block.warp().threads[8 * j + r]);
      std::memcpy(&to[j].rows[r], first.read(rows[r]), 16);
    }
    if (!alike) read_each(to[j].rows, rows, 8 * j);
    count_conflicts(rows);
  }
}

// Lane l receives of each matrix elements 2 * (l % 4) and the next of row l / 4; transposed, of column l / 4. The last lane to come reads for all.
template <int N>
void ptx::load_matrices(References<std::uint32_t, N> to, std::uint32_t row_address, bool transposed) {
  here(__builtin_return_address(0));
  Thread& t = this_thread();
  t.memory->prefetch(row_address);
  struct Row { std::uint32_t address; const References<std::uint32_t, N>* to; };
  t.block->exchange(transposed ? "ldmatrix.trans" : "ldmatrix", Row{row_address, &to}, [=](const Left<Row>& lanes) {
    Matrix matrices[N];
    const Warp& warp = *this_thread().warp;
    std::uint32_t addresses[32];
    for (int i = 0; i < 32; ++i) addresses[i] = lanes[i].address;
    read_matrices(matrices, N, addresses, know_alike(warp));
    if (warp.deferred->left(*this_thread().top)) warp.deferred->finish();
    for (int j = 0; transposed && j < N; ++j) matrices[j] = cuda_on_host::transposed(matrices[j]);
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < N; ++j) std::memcpy(lanes[i].to->at[j], reinterpret_cast<const char*>(matrices + j) + 4 * i, 4);
  });
}

inline void Deferred::load(const Step& step, bool alike) {
  Matrix read[4];
  read_matrices(read, step.kind.matrices, step.rows, alike);
  for (int i = 0; i < step.kind.matrices; ++i) matrices.push_back(step.kind.transposed ? read[i] : transposed(read[i]));
}

inline void Deferred::finish() {
  Thread& self = this_thread();
  Thread* const threads = self.warp->threads;
  if (self.warp->gone) block->fault("mma.sync in a warp that is not whole", "lanes that have returned, and the number of threads");
  for (const Thread* t = threads; t < threads + 32; ++t)
    if (t->top->step != self.top->step) block->fault("the warp diverged: not all of its lanes come to an ldmatrix or mma.sync", "a branch around one that not all 32 lanes take");
  const Place now = self.place;
  const bool alike = know_alike(*self.warp);
  for (Left& operand : converted) operand.key.number = ~0u;
  for (Step* step = steps; step < self.top->step; ++step) {
    self.place = place_of(step->place);
    const std::size_t needed = std::max(step->kind.a_loaded ? step->a + 4ul : 0, step->kind.b_loaded ? std::max(step->b[0], step->b[1]) + 1ul : 0);
    if (needed > matrices.size()) block->fault("mma.sync of registers that nothing was loaded into", "the ldmatrix before it");
    if (step->kind.matrices) load(*step, alike);
    else if (step->kind.float16) multiply(*step, widen_f16);
    else multiply(*step, widen_bf16);
    step->place = nullptr;
  }
  rows_left = fragments_left = 0;
  self.place = now;
  for (Thread* t = threads; t < threads + 32; ++t) t->top->step = steps, t->top->loads = 0;
}

// Lane 8 * j + r says where row r of matrix j goes; the lanes hold elements as ldmatrix gives them.
template <int N>
void ptx::store_matrices(std::uint32_t row_address, Values<std::uint32_t, N> matrices, bool transposed) {
  here(__builtin_return_address(0));
  const int lane = block->lane(), row = lane / 4, column = lane % 4 * 2;
  check_rows(&row_address, lane < 8 * N, "stmatrix");
  if (transposed) {
    const auto all = block->exchange("stmatrix.trans", matrices);
    for (int j = 0; j < N; ++j) {                      // what this lane would hold, had the matrix not been transposed
      auto element = [&](int c) { return all[4 * c + row / 2].v[j] >> (row % 2 * 16) & 0xFFFF; };
      matrices.v[j] = element(column) | element(column + 1) << 16;
    }
  }
  const auto rows = block->exchange("stmatrix", row_address);
  for (int j = 0; lane == 0 && j < N; ++j) {
    std::uint32_t addresses[8];
    for (int r = 0; r < 8; ++r) addresses[r] = rows[8 * j + r];
    count_conflicts(addresses);
  }
  for (int j = 0; j < N; ++j) {
    const std::uint32_t at = rows[8 * j + row] + static_cast<std::uint32_t>(column) * 2;
    std::memcpy(this_thread().memory->write(at, 4, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), &matrices.v[j], 4);
  }
}

}  // namespace cuda_on_host
