// What lies at the top of each fiber's stack, found from any address in it: no thread-local variable has to follow the fiber that runs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cuda_on_host {

struct Dim3 { unsigned x = 1, y = 1, z = 1; };

struct Thread;
struct Deferred;
struct Step;
struct Units;
struct StackTop {
  static constexpr std::size_t kBytes = STACK_BYTES;    // of a stack, where it is aligned, too: build.py
  Thread* thread;
  Dim3 index;
  std::int32_t lane = 0;
  const Dim3* block_index = nullptr;
  Deferred* deferred = nullptr;                        // its warp's
  Step* step = nullptr;                                // of `deferred`: what it does next
  Units* units = nullptr;                              // its block's
  std::int16_t runs = 0, loads = 0;                    // that it is in; that it has left there
  std::int16_t copies = 0;                             // by cp.async, that it has left
};
static_assert(sizeof(StackTop) <= 64);

// Frames of a warp's lanes, at the same depth, fall into different sets of the first cache, and of the page tables' cache.
inline __attribute__((always_inline)) StackTop& top_of(const void* in_stack) {
  const auto at = reinterpret_cast<std::uintptr_t>(in_stack);
  const auto top = (at | (StackTop::kBytes - 1)) - 63 - at / StackTop::kBytes % 32 * (4096 + 128);
  return *static_cast<StackTop*>(__builtin_assume_aligned(reinterpret_cast<void*>(top), 64));
}
// Of the fiber that runs; on the scheduler's stack there is none.
#define THIS_STACK ::cuda_on_host::top_of(__builtin_frame_address(0))

}  // namespace cuda_on_host
