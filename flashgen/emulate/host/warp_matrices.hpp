// ldmatrix and stmatrix (PTX ISA 9.0, 9.7.14.5.15-16), done when they return but for an ldmatrix of a run; and what a run has left.
#pragma once
#include <atomic>

#include "shared_memory.hpp"
#include "warp_products.hpp"

namespace cuda_on_host {

inline std::atomic<int> bank_conflicts = 0;            // rows of ldmatrix and stmatrix that had to wait for another of their matrix

template <class Rows>
void count_conflicts(int matrices, const Rows& rows) {   // their addresses, by lane
  for (int j = 0; j < matrices; ++j) {
    unsigned banks = 0;                                // of 16 bytes
    for (int i = 0; i < 8; ++i) banks |= 1u << rows(8 * j + i) / 16 % 8;
    if (const int free = 8 - std::popcount(banks)) bank_conflicts += free;
  }
}
inline void check_row(std::uint32_t address, const char* what) {
  if (address % 16) block->fault(text("%s at shared address %#x: not 16-byte aligned", what, address), "the row's address");
}

using Matrix = std::uint32_t[32];                      // 8 x 8 elements of 16 bits, by rows: as a lane each holds a pair of them

inline Pairs pairs_down(const Matrix& matrix) {        // of rows 2 * i and the next, by column
  Pairs pairs;
  for (int i = 0; i < 4; ++i) {
    Halves upper, lower;
    std::memcpy(&upper, matrix + 8 * i, 16), std::memcpy(&lower, matrix + 8 * i + 4, 16);
    pairs.of[i] = __builtin_convertvector(upper, Words) | __builtin_convertvector(lower, Words) << 16;
  }
  return pairs;
}
inline Pairs pairs_across(const Matrix& matrix) {      // of columns 2 * i and the next, by row
  Pairs pairs;
  for (int i = 0; i < 32; ++i) pairs.of[i % 4][i / 4] = matrix[i];
  return pairs;
}
inline void transpose(Matrix& matrix) {
  const Pairs pairs = pairs_down(matrix);
  for (int i = 0; i < 32; ++i) matrix[i] = pairs.of[i % 4][i / 4];
}

// The rows of some matrices, 16 bytes each: `addresses` gives them by lane, lane 8 * j + r that of row r of matrix j.
template <class Addresses>
void read_matrices(Matrix* to, int count, const Addresses& addresses) {
  Block& block = *this_thread().block;
  SharedMemory& memory = *this_thread().memory;
  const int agent = agent::warp(block.warp_index());
  for (int i = 0; i < 8 * count; ++i) {
    check_row(addresses(i), "ldmatrix");
    std::memcpy(to[i / 8] + i % 8 * 4, memory.read(addresses(i), 16, agent, block.clock_of(i), SharedMemory::Proxy::generic), 16);
  }
  count_conflicts(count, addresses);
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
    read_matrices(matrices, N, [&](int lane) { return lanes[lane].address; });
    if (this_thread().warp->deferred->left(this_thread())) this_thread().warp->deferred->finish();
    for (int j = 0; transposed && j < N; ++j) transpose(matrices[j]);
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < N; ++j) *lanes[i].to->at[j] = matrices[j][i];
  });
}

inline void Deferred::load(std::uint32_t which) {
  const Load& one = loads[0][which];
  for (const auto& lane : loads)
    if (lane[which].place != one.place || lane[which].first != one.first) diverged();
  this_thread().place = one.place;
  Matrix rows[4];
  read_matrices(rows, one.matrices, [&](int lane) { return loads[lane][which].row; });
  matrices.resize(std::max<std::size_t>(matrices.size(), one.first + one.matrices));
  for (std::uint32_t i = 0; i < one.matrices; ++i) matrices[one.first + i] = one.transposed ? pairs_down(rows[i]) : pairs_across(rows[i]);
}

inline void Deferred::finish() {
  Thread* const threads = this_thread().warp->threads;
  if (this_thread().warp->gone) block->fault("mma.sync in a warp that is not whole", "lanes that have returned, and the number of threads");
  const StackTop one = *threads->top;
  const auto count = one.product - products[0];
  for (int lane = 1; lane < 32; ++lane)
    if (threads[lane].top->loads != one.loads || threads[lane].top->product - products[lane] != count) diverged();
  const Place now = this_thread().place;
  for (std::uint32_t i = 0; i < one.loads; ++i) load(i);
  for (int i = 0; i < count; ++i) {
    const Product::Call& call = products[0][i].call;
    this_thread().place = call.place;
    if (call.kind.loaded && std::max(call.b[0], call.b[1]) >= one.matrices) block->fault("mma.sync of registers that nothing was loaded into", "the ldmatrix before it");
    if (call.kind.float16) multiply(i, widen_f16);
    else multiply(i, widen_bf16);
  }
  this_thread().place = now;
  for (int lane = 0; lane < 32; ++lane) {
    StackTop& top = *threads[lane].top;
    top.product = products[lane], top.load = loads[lane], top.loads = 0;
  }
}

// Lane 8 * j + r says where row r of matrix j goes; the lanes hold elements as ldmatrix gives them.
template <int N>
void ptx::store_matrices(std::uint32_t row_address, Values<std::uint32_t, N> matrices, bool transposed) {
  here(__builtin_return_address(0));
  const int lane = block->lane(), row = lane / 4, column = lane % 4 * 2;
  if (lane < 8 * N) check_row(row_address, "stmatrix");
  if (transposed) {
    const auto all = block->exchange("stmatrix.trans", matrices);
    for (int j = 0; j < N; ++j) {                      // what this lane would hold, had the matrix not been transposed
      auto element = [&](int c) { return all[4 * c + row / 2].v[j] >> (row % 2 * 16) & 0xFFFF; };
      matrices.v[j] = element(column) | element(column + 1) << 16;
    }
  }
  const auto rows = block->exchange("stmatrix", row_address);
  if (lane == 0) count_conflicts(N, [&](int i) { return rows[i]; });
  for (int j = 0; j < N; ++j) {
    const std::uint32_t at = rows[8 * j + row] + static_cast<std::uint32_t>(column) * 2;
    std::memcpy(shared->write(at, 4, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), &matrices.v[j], 4);
  }
}

}  // namespace cuda_on_host
