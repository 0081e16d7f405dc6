// ldmatrix and stmatrix (PTX ISA 9.0, 9.7.14.5.15-16): a warp's, done when they return.
#pragma once
#include <atomic>

#include "shared_memory.hpp"
#include "warp_products.hpp"

namespace cuda_on_host {

inline std::atomic<int> bank_conflicts = 0;            // rows of ldmatrix and stmatrix that had to wait for another of their matrix

template <int N, class Rows>
void count_conflicts(const Rows& rows) {             // their addresses, by lane
  for (int j = 0; j < N; ++j) {
    unsigned banks = 0;                                // of 16 bytes
    for (int i = 0; i < 8; ++i) banks |= 1u << rows(8 * j + i) / 16 % 8;
    if (const int free = 8 - std::popcount(banks)) bank_conflicts += free;
  }
}
inline void check_row(std::uint32_t address, const char* what) {
  if (address % 16) block->fault(text("%s at shared address %#x: not 16-byte aligned", what, address), "the row's address");
}

using Matrix = std::uint32_t[32];                      // 8 x 8 elements of 16 bits, by rows: as a lane each holds a pair of them

inline void transpose(Matrix& matrix) {
  Words pairs[4];                                      // of rows 2 * i and the next, by column
  for (int i = 0; i < 4; ++i) {
    Halves upper, lower;
    std::memcpy(&upper, matrix + 8 * i, 16), std::memcpy(&lower, matrix + 8 * i + 4, 16);
    pairs[i] = __builtin_convertvector(upper, Words) | __builtin_convertvector(lower, Words) << 16;
  }
  for (int i = 0; i < 32; ++i) matrix[i] = pairs[i % 4][i / 4];
}

// Lane 8 * j + r says where row r of matrix j lies, 16 bytes. Lane l receives elements 2 * (l % 4) and the next of row l / 4; transposed, of
// column l / 4. The last lane to come reads for all.
template <int N>
void ptx::load_matrices(References<std::uint32_t, N> to, std::uint32_t row_address, bool transposed) {
  here(__builtin_return_address(0));
  Thread& t = this_thread();
  t.memory->prefetch(row_address);
  struct Row { std::uint32_t address; const References<std::uint32_t, N>* to; };
  t.block->exchange(transposed ? "ldmatrix.trans" : "ldmatrix", Row{row_address, &to}, [=](const Left<Row>& lanes) {
    Block& block = *this_thread().block;
    SharedMemory& memory = *this_thread().memory;
    const int agent = agent::warp(block.warp_index());
    Matrix matrices[N];
    for (int i = 0; i < 8 * N; ++i) {
      const std::uint32_t address = lanes[i].address;
      check_row(address, "ldmatrix");
      std::memcpy(matrices[i / 8] + i % 8 * 4, memory.read(address, 16, agent, block.clock_of(i), SharedMemory::Proxy::generic), 16);
    }
    count_conflicts<N>([&](int i) { return lanes[i].address; });
    if (this_thread().left->count) multiply_what_is_left();
    for (int j = 0; transposed && j < N; ++j) transpose(matrices[j]);
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < N; ++j) *lanes[i].to->at[j] = matrices[j][i];
  });
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
  if (lane == 0) count_conflicts<N>([&](int i) { return rows[i]; });
  for (int j = 0; j < N; ++j) {
    const std::uint32_t at = rows[8 * j + row] + static_cast<std::uint32_t>(column) * 2;
    std::memcpy(shared->write(at, 4, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), &matrices.v[j], 4);
  }
}

}  // namespace cuda_on_host
