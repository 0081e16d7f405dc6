// Global memory: the arrays of a launch, their bounds, and a shadow that finds races between blocks, and between warps of one.
#pragma once
#include <atomic>
#include <mutex>
#include <optional>

#include "global_order.hpp"
#include "global_shadow.hpp"

namespace cuda_on_host {

inline std::vector<Array> arrays;
inline std::uint8_t launch_number;
inline bool starts_early;                              // programmatic dependent launch
inline std::atomic<bool> kernel_ahead_awaited;
inline bool many_cores;                                // do blocks run side by side?
inline std::mutex shadow_in_use;                       // then

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
    if (a.holds(at, bytes)) return &a;
  return nullptr;
}

// "`turns`+0x14 to change from 2".
inline std::string described(const Visit& visit) {
  const auto at = reinterpret_cast<std::uintptr_t>(visit.word);
  const Array* const array = array_at(at, sizeof visit.value);
  return array ? text("`%s`+%#zx to change from %u", array->name, static_cast<std::size_t>(at - array->begin), visit.value) : kTurn;
}

// The bytes of a granule, a bit each, that lie in so many from there on.
INLINED std::uint16_t bytes_from(std::uintptr_t at, std::size_t bytes) { return static_cast<std::uint16_t>((1u << std::min<std::size_t>(bytes, 16)) - 1 << at % 16); }

// Until the kernel ahead has ended for certain, what it writes is not there, and what it reads may not change.
INLINED void after_the_kernel_ahead(Block& block, bool seen, const Array& array, std::uintptr_t at) {
  if (starts_early && !seen && !array.constant && block.checks()) [[unlikely]]
    block.fault(text("`%s`+%#zx is accessed before griddepcontrol.wait: the kernel ahead may not have ended", array.name, static_cast<std::size_t>(at - array.begin)),
                "griddepcontrol.wait in this thread, or a barrier since with a thread that has waited");
}

// An access, judged and noted: who it is to the race checker, and what it knows then.
class GlobalUse {
 public:
  GlobalUse(Block& block, Access access, int agent, const Clock& clock)
      : block_(block), access_(access), reads_(access == Access::read || access == Access::copy),
        who_{{block.number(), static_cast<std::uint8_t>(agent), launch_number, 0}, clock.time[static_cast<std::size_t>(agent)], PlaceNumbers::of(block.place())}, clock_(clock) {}

  void note(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    after_the_kernel_ahead(block_, clock_.time[agent::kernel_ahead] != 0, array, at);
    if ((!array.shadow && reads_) || !block_.checks()) return;
    if (!array.shadow) block_.fault(text("`%s` is written, which the kernels only read", array.name), kOutside);
    if (const auto found = noted(array, at, bytes)) [[unlikely]] block_.fault(found->what, found->hint, found->other);
  }

 private:
  using Found = std::unique_ptr<Fault>;                // what is wrong with it, if anything

  // No fiber is switched while the shadow is in use.
  INLINED Found noted(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    std::unique_lock alone(shadow_in_use, std::defer_lock);
    if (many_cores) [[unlikely]] alone.lock();
    for (const std::uintptr_t end = at + bytes; at < end; at = (at | 15) + 1) {
      GlobalAccess now = who_;
      now.bytes = bytes_from(at, end - at);
      const std::size_t granule = array.granule(at);
      if (!noted_at_once(array.shadow[granule], array.defined, access_, now)) [[unlikely]]
        if (auto found = noted(array, granule, now)) return found;
    }
    return {};
  }
  [[gnu::noinline]] Found noted(const Array& array, std::size_t granule, const GlobalAccess& now) const {
    GlobalGranule& last = array.shadow[granule];
    if (!last.apart()) {
      if (auto found = judge(array, granule, last, now.bytes)) return found;
      if (of(last).goes_into(now)) of(last).note(now);
      else part(last, array.words(granule));
    }
    for (unsigned i = 0; last.apart() && i < 4; ++i)
      if (GlobalAccess here = now; (here.bytes &= static_cast<std::uint16_t>(15 << 4 * i))) {
        GlobalGranule& word = array.words(granule)[i];
        if (auto found = judge(array, granule, word, here.bytes)) return found;
        of(word).note(here);
      }
    if (!reads_) {
      last.written() |= now.bytes;
      last.set_atomic(access_ == Access::atomic ? last.atomic() | words_of(now.bytes) : last.atomic() & ~words_of(now.bytes));
    }
    return {};
  }
  LastAccess& of(GlobalGranule& last) const { return reads_ ? last.read : last.write; }
  static void part(GlobalGranule& last, Words4& words) {
    for (unsigned i = 0; i < 4; ++i) {
      words[i] = last;
      for (LastAccess* word : {&words[i].write, &words[i].read}) word->bytes &= static_cast<std::uint16_t>(15 << 4 * i);
    }
    last.set_apart();
  }
  static unsigned words_of(unsigned bytes) {           // a bit for each that some of the bytes lie in
    unsigned words = 0;
    for (unsigned i = 0; i < 4; ++i) words |= ((bytes >> 4 * i & 15) != 0) << i;
    return words;
  }

  // Is it after `last`, as far as that concerns these bytes?
  Found judge(const Array& array, std::size_t granule, const GlobalGranule& last, std::uint16_t bytes) const {
    const bool atomic = array.shadow[granule].atomic() & words_of(bytes);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned here = bytes & 15 << 4 * i;
      if (!reads_ && last.read.bytes & here && unordered(last.read)) return race(array, granule, last.read, last.read.bytes & here, "read by");
      if ((access_ != Access::atomic || !atomic) && last.write.bytes & here && unordered(last.write))
        return race(array, granule, last.write, last.write.bytes & here, atomic ? "changed by an atomic of" : "written by");
    }
    if (const unsigned unset = bytes & ~array.shadow[granule].written(); (access_ == Access::atomic || access_ == Access::read) && !array.defined && unset)
      return std::make_unique<Fault>(Fault{name(array, granule, unset) + (reads_ ? " is read" : " is changed by an atomic") + ", and nobody has written it",
                                     "the kernel that fills it: which part it writes, and whether it runs before"});
    return {};
  }

  bool unordered(const LastAccess& past) const {
    if (past.launch != launch_number) return false;
    if (past.block == who_.block) return past.time > clock_.time[past.agent];
    return !order->knows(past.block, past.agent, past.time, clock_, !reads_);
  }
  [[gnu::cold, gnu::noinline]] Found race(const Array& array, std::size_t granule, const LastAccess& past, unsigned bytes, const char* did) const {
    const bool within = past.block == who_.block;
    const char* verb = reads_ ? "reads" : access_ == Access::write ? "writes" : "changes";
    return std::make_unique<Fault>(Fault{text("race: block %d %s ", who_.block, verb) + name(array, granule, bytes) + text(", %s ", did) +
                                       (within ? std::string("another warp or unit of it") : text("block %d", past.block)) + ", nothing orders the two",
                                   within ? "a barrier of the block, or the wait for the copy, between the two"
                                          : "which rows each block owns; else __threadfence and an atomic after the one, an atomic and __threadfence before the other",
                                   Place{0}, PlaceNumbers::place(past.place)});
  }
  static std::string name(const Array& array, std::size_t granule, unsigned bytes) {   // of the first of these bytes
    return text("`%s`+%#zx", array.name, granule * 16 + static_cast<unsigned>(std::countr_zero(bytes)) - array.begin % 16);
  }

  Block& block_;
  Access access_;
  bool reads_;
  GlobalAccess who_;                                   // without bytes
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
    GlobalUse(*block, access, agent::warp(block->warp_index()), block->clock()).note(*array, reinterpret_cast<std::uintptr_t>(address), bytes);
}

// What is known of a place. The same place means the same array, as a rule.
INLINED PlainPlace& known_place(Block& block, const void* caller, std::uintptr_t at, std::size_t bytes) {
  PlainPlace& known = block.plain_place(caller);
  const Place place = place_of(caller);
  if (known.place != place || !known.array || !known.array->holds(at, bytes)) [[unlikely]] {
    const Array* const array = array_at(at, bytes);
    known = {place, PlaceNumbers::of(place), array, array && array->shadow ? array->shadow - array->begin / 16 : nullptr};
  }
  return known;
}
// An aligned access to what is an array, where nobody else's stands against it.
template <Access kAccess, unsigned kBytes> INLINED bool noted_at_once(const Thread& thread, const PlainPlace& known, std::uintptr_t at) {
  if (many_cores || !known.shadow || at % kBytes) [[unlikely]] return false;
  const auto warp = static_cast<unsigned>(thread.id) / 32;
  const auto bytes = kBytes == 16 ? std::uint16_t{0xFFFF} : static_cast<std::uint16_t>((1u << kBytes) - 1 << at % 16);
  const GlobalAccess now{{thread.block->number(), static_cast<std::uint8_t>(agent::warp(static_cast<int>(warp))), launch_number, bytes}, thread.warp->clock.time[warp], known.number};
  GlobalGranule& granule = known.shadow[at / 16];
  if (!granule.apart()) [[likely]] return noted_at_once<kAccess, kBytes>(granule, granule, known.array->defined, now);
  return kBytes <= 4 && noted_at_once<kAccess, kBytes>(granule, known.array->words(known.array->granule(at))[at / 4 % 4], known.array->defined, now);
}
// A load or store of C++.
template <Access kAccess, unsigned kBytes> INLINED void note_plain(const void* address, const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  Thread& thread = this_thread();
  Block& block = *thread.block;
  if (!block.checks()) return;
  const PlainPlace& known = known_place(block, caller, at, kBytes);
  if (starts_early && known.array && !thread.kernel_ahead_seen) [[unlikely]] here(caller), after_the_kernel_ahead(block, false, *known.array, at);
  if (!known.array || (!known.array->shadow && kAccess == Access::read)) return;
  if (thread.top->loads | thread.top->copies) here(caller);
  thread.place = known.place;
  if (noted_at_once<kAccess, kBytes>(thread, known, at)) [[likely]] return;
  GlobalUse(block, kAccess, agent::warp(block.warp_index()), block.clock()).note(*known.array, at, kBytes);
}
// Those that are instructions: to arrays alone.
template <Access kAccess, unsigned kBytes> INLINED void note_instruction(const Thread& thread, const void* address, const void* caller) {
  if (thread.block->checks() && !arrays.empty()) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const PlainPlace& known = known_place(*thread.block, caller, at, kBytes);
    if (known.array) after_the_kernel_ahead(*thread.block, thread.kernel_ahead_seen != 0, *known.array, at);
    if (known.array && noted_at_once<kAccess, kBytes>(thread, known, at)) [[likely]] return;
  }
  check_global(address, kBytes, kBytes, kAccess);
}

}  // namespace cuda_on_host
