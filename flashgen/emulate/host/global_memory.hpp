// Global memory: the arrays of a launch, their bounds, and a shadow that finds races between blocks, and between warps of one.
#pragma once
#include <mutex>

#include "global_order.hpp"

namespace cuda_on_host {

// One access to 4 bytes.
struct GlobalAccess {
  std::uint32_t time;
  Place place;
  std::int32_t block;
  std::int16_t agent;
  std::uint8_t launch;                                 // number of the kernel in its call; 0: nobody yet
  std::uint8_t bytes;                                  // a bit for each of the four
};
struct GlobalGranule {
  GlobalAccess write, read;                            // the last ones
  std::uint32_t written : 4, atomic : 1;               // bytes that hold something; the last write was an atomic's
};
static_assert(sizeof(GlobalGranule) == 36);            // memory.py makes them, zero

struct Array {                                         // machine.py fills it; none: nothing is checked
  const char* name;
  std::uintptr_t begin;
  std::size_t bytes;
  GlobalGranule* shadow;                               // null: kernels only read it
  int defined;                                         // does it hold something before it is written?
};

inline std::vector<Array> arrays;
inline std::uint8_t launch_number;
inline std::mutex shadow_in_use;

constexpr const char* kOutside = "the index and the strides that this address is made of, and the test against the length";

// "`k`+0x200, outside its 512 bytes", by the array that lies nearest.
inline std::string outside_of(std::uintptr_t at) {
  const auto distance = [at](const Array& a) { return at < a.begin ? a.begin - at : at < a.begin + a.bytes ? 0 : at - a.begin - a.bytes; };
  const auto nearest = std::min_element(arrays.begin(), arrays.end(), [&](const Array& a, const Array& b) { return distance(a) < distance(b); });
  if (nearest == arrays.end() || distance(*nearest) > 1u << 20) return text("address %#zx, outside all arrays", static_cast<std::size_t>(at));
  const std::string offset = at < nearest->begin ? text("-%#zx", static_cast<std::size_t>(nearest->begin - at)) : text("+%#zx", static_cast<std::size_t>(at - nearest->begin));
  return text("`%s`", nearest->name) + offset + text(", outside its %zu bytes", nearest->bytes);
}

inline const Array* array_at(std::uintptr_t at, std::size_t bytes) {
  for (const Array& a : arrays)
    if (at >= a.begin && at + bytes <= a.begin + a.bytes) return &a;
  return nullptr;
}

// An access, judged and noted: who it is to the race checker, and what it knows then.
class GlobalUse {
 public:
  GlobalUse(Access access, int agent, const Clock& clock) : access_(access), reads_(access == Access::read || access == Access::copy), agent_(agent), clock_(clock) {}

  void note(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    if ((!array.shadow && reads_) || !block->checks()) return;
    if (!array.shadow) block->fault(text("`%s` is written, which the kernels only read", array.name), kOutside);
    if (const Fault found = noted(array, at, bytes); !found.what.empty()) block->fault(found.what, found.hint, found.other);
  }

 private:
  // What is wrong with it, empty if nothing. No fiber is switched while the shadow is in use.
  Fault noted(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    const std::lock_guard alone(shadow_in_use);
    Fault found;
    for (const std::uintptr_t end = at + bytes; at < end && found.what.empty(); at = (at | 3) + 1) {
      const unsigned first = at % 4, last = static_cast<unsigned>(std::min<std::uintptr_t>(end - (at & ~std::uintptr_t{3}), 4));
      note(array, at, array.shadow[at / 4 - array.begin / 4], static_cast<std::uint8_t>((1u << last) - (1u << first)), found);
    }
    return found;
  }

  void note(const Array& array, std::uintptr_t at, GlobalGranule& granule, std::uint8_t bytes, Fault& found) const {
    if ((access_ == Access::atomic || access_ == Access::read) && !array.defined && (bytes & ~granule.written))
      found = {name(array, at) + (reads_ ? " is read" : " is changed by an atomic") + ", and nobody has written it",
               "the kernel that fills it: which part it writes, and whether it runs before"};
    if ((access_ != Access::atomic || !granule.atomic) && unordered(granule.write, bytes))
      found = race(array, at, granule.write, granule.atomic ? "changed by an atomic of" : "written by");
    if (!reads_ && unordered(granule.read, bytes)) found = race(array, at, granule.read, "read by");
    const GlobalAccess now{clock_.time[static_cast<std::size_t>(agent_)], block->place(), block->number(), static_cast<std::int16_t>(agent_), launch_number, bytes};
    if (reads_) {
      granule.read = now;
      return;
    }
    granule.write = now;
    granule.written |= bytes;
    granule.atomic = access_ == Access::atomic;
  }

  bool unordered(const GlobalAccess& past, std::uint8_t bytes) const {
    if (past.launch != launch_number || !(past.bytes & bytes)) return false;   // a kernel begins when all of the one before it has ended
    if (past.block == block->number()) return past.time > clock_.time[static_cast<std::size_t>(past.agent)];
    return !order->knows(past.block, past.agent, past.time, clock_, !reads_);
  }
  [[gnu::cold, gnu::noinline]] Fault race(const Array& array, std::uintptr_t at, const GlobalAccess& past, const char* did) const {
    const bool within = past.block == block->number();
    const char* verb = reads_ ? "reads" : access_ == Access::write ? "writes" : "changes";
    return {text("race: block %d %s ", block->number(), verb) + name(array, at) + text(", %s ", did) +
                (within ? std::string("another warp or unit of it") : text("block %d", past.block)) + ", nothing orders the two",
            within ? "a barrier of the block, or the wait for the copy, between the two"
                   : "which rows each block owns; else __threadfence and an atomic after the one, an atomic and __threadfence before the other",
            0, past.place};
  }
  static std::string name(const Array& array, std::uintptr_t at) { return text("`%s`+%#zx", array.name, static_cast<std::size_t>(at - array.begin)); }

  Access access_;
  bool reads_;
  int agent_;
  const Clock& clock_;
};

// The array that an instruction's access lies in, which must exist; null where nothing is checked.
inline const Array* inside(const void* address, std::size_t bytes, std::size_t alignment) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at & (alignment - 1)) [[unlikely]] block->fault(text("%zu bytes at global address %p: not %zu-byte aligned", bytes, address, alignment), "the strides and the start of the array, and the width of the access");
  if (arrays.empty() || bytes == 0) return nullptr;    // cp.async that reads nothing may name any place
  const Array* array = array_at(at, bytes);
  if (!array) block->fault(text("%zu bytes of global memory at ", bytes) + outside_of(at), kOutside);
  return array;
}

void check_global(const void* address, std::size_t bytes, std::size_t alignment, Access access) {
  if (const Array* array = inside(address, bytes, alignment))
    GlobalUse(access, agent::warp(block->warp_index()), block->clock()).note(*array, reinterpret_cast<std::uintptr_t>(address), bytes);
}

// Most plain loads and stores of C++ concern the thread's own stack, above where it stands.
INLINED bool on_this_stack(const void* address) {
  const char here = 0;
  return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(&here) < StackTop::kBytes;
}
// The others.
[[gnu::noinline]] inline void note_plain(const void* address, std::size_t bytes, Access access, const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const Array* array = block->checks() ? array_at(at, bytes) : nullptr;
  if (!array) return;
  here(caller);
  GlobalUse(access, agent::warp(block->warp_index()), block->clock()).note(*array, at, bytes);
}

}  // namespace cuda_on_host
