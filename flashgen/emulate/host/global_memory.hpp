// Global memory: the arrays of a launch, their bounds, and a shadow that finds races between blocks, and between warps of one.
#pragma once
#include <mutex>
#include <optional>

#include "global_order.hpp"

namespace cuda_on_host {

// One access to a word of 4 bytes, or to all words of a granule.
struct GlobalAccess {
  std::uint32_t time;
  Place place;
  std::int32_t block;
  std::int16_t agent;
  std::uint8_t launch;                                 // number of the kernel in its call; 0: nobody yet
  std::uint8_t bytes;                                  // a bit for each of the four
};
struct GlobalGranule {                                 // 16 bytes
  GlobalAccess write, read;                            // the last ones, to all of it, unless `apart`
  std::uint16_t written;                               // a bit for each byte that holds something
  std::uint8_t atomic;                                 // a bit for each word whose last write was an atomic's
  bool apart;                                          // its words have accesses of their own, from the first on that did not concern it all
};
struct GlobalWords { GlobalAccess writes[4], reads[4]; };
static_assert(sizeof(GlobalGranule) == 36 && sizeof(GlobalWords) == 128);   // memory.py makes them, zero

struct Array {                                         // machine.py fills it; none: nothing is checked
  const char* name;
  std::uintptr_t begin;
  std::size_t bytes;
  GlobalGranule* shadow;                               // null: kernels only read it. Its GlobalWords lie behind
  int defined;                                         // does it hold something before it is written?

  bool holds(std::uintptr_t at, std::size_t size) const { return at - begin < bytes && size <= begin + bytes - at; }
  std::size_t granule(std::uintptr_t at) const { return at / 16 - begin / 16; }
  GlobalWords& words(std::uintptr_t at) const { return reinterpret_cast<GlobalWords*>(shadow + bytes / 16 + 2)[granule(at)]; }
};

inline std::vector<Array> arrays;
inline std::uint8_t launch_number;
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

// An access, judged and noted: who it is to the race checker, and what it knows then.
class GlobalUse {
 public:
  GlobalUse(Access access, int agent, const Clock& clock) : access_(access), reads_(access == Access::read || access == Access::copy), agent_(static_cast<std::int16_t>(agent)), block_(block->number()), time_(clock.time[static_cast<std::size_t>(agent)]), place_(block->place()), clock_(clock) {}

  void note(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    if ((!array.shadow && reads_) || !block->checks()) return;
    if (!array.shadow) block->fault(text("`%s` is written, which the kernels only read", array.name), kOutside);
    if (const auto found = noted(array, at, bytes)) block->fault(found->what, found->hint, found->other);
  }

 private:
  // What is wrong with it, if anything. No fiber is switched while the shadow is in use.
  std::optional<Fault> noted(const Array& array, std::uintptr_t at, std::size_t bytes) const {
    std::unique_lock alone(shadow_in_use, std::defer_lock);
    if (many_cores) alone.lock();
    for (const std::uintptr_t end = at + bytes; at < end;) {
      GlobalGranule& granule = array.shadow[array.granule(at)];
      if (at % 16 == 0 && end - at >= 16 && !granule.apart) {
        if (auto found = noted(array, at, granule, granule.write, granule.read, 15, 0xFFFF, 15)) return found;
        at += 16;
        continue;
      }
      GlobalWords& words = array.words(at);
      if (!granule.apart) std::fill_n(words.writes, 4, granule.write), std::fill_n(words.reads, 4, granule.read), granule.apart = true;
      const unsigned word = at / 4 % 4, some = bytes_of_word(at, end);
      if (auto found = noted(array, at, granule, words.writes[word], words.reads[word], static_cast<std::uint8_t>(some), some << 4 * word, 1u << word)) return found;
      at = (at | 3) + 1;
    }
    return {};
  }
  // `write`, `read`: the last accesses there. `bytes` are those of each word, `all` and `words` those of the granule.
  INLINED std::optional<Fault> noted(const Array& array, std::uintptr_t at, GlobalGranule& granule, GlobalAccess& write, GlobalAccess& read, std::uint8_t bytes, unsigned all, unsigned words) const {
    const auto foreign = [&](const GlobalAccess& past) { return past.launch == launch_number && (past.block != block_ || past.agent != agent_ || past.time > time_); };
    const bool unset = !array.defined && (all & ~granule.written), atomic = granule.atomic & words;
    if (foreign(write) || unset || (!reads_ && foreign(read))) [[unlikely]]   // somebody else in this launch, or nobody yet
      if (auto found = judge(array, at, write, read, bytes, atomic, unset)) return found;
    if (reads_) {
      read = now(bytes);
    } else {
      write = now(bytes);
      granule.written |= static_cast<std::uint16_t>(all);
      granule.atomic = static_cast<std::uint8_t>(access_ == Access::atomic ? granule.atomic | words : granule.atomic & ~words);
    }
    return {};
  }
  INLINED static unsigned bytes_of_word(std::uintptr_t at, std::uintptr_t end) {   // a bit for each
    if (at % 4 == 0 && end - at >= 4) return 15;
    return (1u << std::min<std::uintptr_t>(end - (at & ~std::uintptr_t{3}), 4)) - (1u << at % 4);
  }
  INLINED GlobalAccess now(std::uint8_t bytes) const { return {time_, place_, block_, agent_, launch_number, bytes}; }

  [[gnu::noinline]] std::optional<Fault> judge(const Array& array, std::uintptr_t at, const GlobalAccess& write, const GlobalAccess& read, std::uint8_t bytes, bool atomic, bool unset) const {
    if (!reads_ && unordered(read, bytes)) return race(array, at, read, "read by");
    if ((access_ != Access::atomic || !atomic) && unordered(write, bytes)) return race(array, at, write, atomic ? "changed by an atomic of" : "written by");
    if ((access_ == Access::atomic || access_ == Access::read) && unset)
      return Fault{name(array, at) + (reads_ ? " is read" : " is changed by an atomic") + ", and nobody has written it",
                   "the kernel that fills it: which part it writes, and whether it runs before"};
    return {};
  }

  bool unordered(const GlobalAccess& past, std::uint8_t bytes) const {
    if (past.launch != launch_number || !(past.bytes & bytes)) return false;   // a kernel begins when all of the one before it has ended
    if (past.block == block_) return past.time > clock_.time[static_cast<std::size_t>(past.agent)];
    return !order->knows(past.block, past.agent, past.time, clock_, !reads_);
  }
  [[gnu::cold, gnu::noinline]] Fault race(const Array& array, std::uintptr_t at, const GlobalAccess& past, const char* did) const {
    const bool within = past.block == block_;
    const char* verb = reads_ ? "reads" : access_ == Access::write ? "writes" : "changes";
    return {text("race: block %d %s ", block_, verb) + name(array, at) + text(", %s ", did) +
                (within ? std::string("another warp or unit of it") : text("block %d", past.block)) + ", nothing orders the two",
            within ? "a barrier of the block, or the wait for the copy, between the two"
                   : "which rows each block owns; else __threadfence and an atomic after the one, an atomic and __threadfence before the other",
            0, past.place};
  }
  static std::string name(const Array& array, std::uintptr_t at) { return text("`%s`+%#zx", array.name, static_cast<std::size_t>(at - array.begin)); }

  Access access_;
  bool reads_;
  std::int16_t agent_;
  std::int32_t block_;
  std::uint32_t time_;
  Place place_;
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
