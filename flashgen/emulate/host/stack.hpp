// What lies at the top of each fiber's stack, found from any address in it: no thread-local variable has to follow the fiber that runs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cuda_on_host {

struct Dim3 { unsigned x = 1, y = 1, z = 1; };

struct Thread;
struct Product;
struct Load;
struct StackTop {
  static constexpr std::size_t kBytes = 128 << 10;     // of a stack, where it is aligned, too
  Thread* thread;
  Dim3 index;
  int runs = 0;                                        // that it is in: deferred.hpp
  Product *product = nullptr, *full = nullptr;         // where the next one goes; there the lanes meet
  Load* load = nullptr;                                // likewise
  std::uint32_t loads = 0, matrices = 0;               // left by now; since the first run began, all that were loaded
};
static_assert(sizeof(StackTop) <= 64);

// Frames of a warp's lanes, at the same depth, fall into different sets of the first cache.
inline __attribute__((always_inline)) StackTop& top_of(const void* in_stack) {
  const auto at = reinterpret_cast<std::uintptr_t>(in_stack);
  return *reinterpret_cast<StackTop*>((at | (StackTop::kBytes - 1)) - 63 - at / StackTop::kBytes % 32 * 128);
}
// Of the fiber that runs; on the scheduler's stack there is none.
#define THIS_STACK ::cuda_on_host::top_of(__builtin_frame_address(0))

}  // namespace cuda_on_host
