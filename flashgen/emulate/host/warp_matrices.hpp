// ldmatrix, stmatrix and mma.sync (PTX ISA 9.0, 9.7.14): a warp's, done when they return.
#pragma once
#include <atomic>

#include "tensor_core.hpp"

namespace cuda_on_host {

inline std::atomic<int> bank_conflicts = 0;            // rows of ldmatrix and stmatrix that had to wait for another of their matrix

template <int N, class Rows>
void count_conflicts(const Rows& rows) {             // their addresses, by lane
  for (int j = 0; j < N; ++j) {
    unsigned banks = 0;                                // of 16 bytes
    for (int i = 0; i < 8; ++i) {
      const unsigned bank = 1u << rows(8 * j + i) / 16 % 8;
      if (banks & bank) ++bank_conflicts;
      banks |= bank;
    }
  }
}
inline void check_row(std::uint32_t address, const char* what) {
  if (address % 16) block->fault(text("%s at shared address %#x: not 16-byte aligned", what, address), "the row's address");
}

// Lane 8 * j + r says where row r of matrix j lies, 16 bytes. Lane l receives elements 2 * (l % 4) and the next of row l / 4; transposed, of column l / 4.
template <int N>
void ptx::load_matrices(References<std::uint32_t, N> to, std::uint32_t row_address, bool transposed) {
  here(__builtin_return_address(0));
  struct Row { std::array<std::uint16_t, 8> v; std::uint32_t address; } row{{}, row_address};
  const int lane = block->lane();
  if (lane < 8 * N) {
    check_row(row_address, "ldmatrix");
    std::memcpy(&row.v, shared->read(row_address, 16, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), 16);
  }
  const auto rows = block->exchange(transposed ? "ldmatrix.trans" : "ldmatrix", row);
  if (lane == 0) count_conflicts<N>([&](int i) { return rows[i].address; });
  for (int j = 0; j < N; ++j) {
    auto element = [&](int i) -> std::uint32_t { return transposed ? rows[8 * j + i].v[lane / 4] : rows[8 * j + lane / 4].v[i]; };
    *to.at[j] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
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
  if (lane == 0) count_conflicts<N>([&](int i) { return rows[i]; });
  for (int j = 0; j < N; ++j) {
    const std::uint32_t at = rows[8 * j + row] + static_cast<std::uint32_t>(column) * 2;
    std::memcpy(shared->write(at, 4, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), &matrices.v[j], 4);
  }
}

// d[16][8] = a[16][16] * b[16][8] + c. The last lane to come multiplies for all.
class WarpProducts {
 public:
  template <class Widen>
  void multiply(float* d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float (&c)[4], Widen widen) {
    const Thread& t = block->thread();
    const auto id = static_cast<unsigned>(t.id), major = id % 32 / 4, minor = id % 4;
    Product& product = products_[id / 32][t.exchanges & 1];
    for (int r = 0; r < 4; ++r) product.a[r >> 1][minor][r & 1][major] = a[r];
    for (int r = 0; r < 2; ++r) product.b[r][minor][major] = b[r];
    block->meet("mma.sync", [&] { multiply(product, widen); });
    for (int i = 0; i < 4; ++i) d[i] = product.d[minor * 2 + i % 2][i / 2][major] + c[i];
  }

 private:
  struct Product {                                     // two a warp, as a lane may be one ahead of the slowest
    alignas(32) std::uint32_t a[2][4][2][8], b[2][4][8];   // pairs along k: [k / 8][k / 2 % 4][row / 8][row % 8], [k / 8][k / 2 % 4][column]
    alignas(32) float d[8][2][8];                      // [column][row / 8][row % 8]
  };

  template <class Widen>
  static void multiply(Product& product, Widen widen) {
    alignas(32) float left[16][16], right[16][8];      // by k
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 16; ++row) left[k][row] = widen(static_cast<std::uint16_t>(product.a[k / 8][k / 2 % 4][row / 8][row % 8] >> k % 2 * 16));
      for (int column = 0; column < 8; ++column) right[k][column] = widen(static_cast<std::uint16_t>(product.b[k / 8][k / 2 % 4][column] >> k % 2 * 16));
    }
    for (int first = 0; first < 8; first += 4) {       // eight sums in registers
      Vector sum[4][2] = {};
      for (int k = 0; k < 16; ++k)
        for (int half = 0; half < 2; ++half) {
          Vector rows;
          std::memcpy(&rows, left[k] + 8 * half, sizeof rows);
          for (int column = 0; column < 4; ++column) sum[column][half] += right[k][first + column] * rows;
        }
      std::memcpy(product.d[first], sum, sizeof sum);
    }
  }
  std::array<std::array<Product, 2>, 32> products_;
};

}  // namespace cuda_on_host
