// What the race checker remembers of global memory: the last accesses to each 16 bytes, a granule, by whom and to which of its words when.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda.hpp"
#include "shadow.hpp"

namespace cuda_on_host {

struct Accessor {
  std::int32_t block;
  std::uint8_t agent, launch;                          // launch: number of the kernel in its call; 0: nobody yet
  std::uint16_t bytes;                                 // of the granule, a bit for each
  bool same(const Accessor& other) const {             // whatever the bytes
    return (std::bit_cast<std::uint64_t>(*this) ^ std::bit_cast<std::uint64_t>(other)) << 16 == 0;
  }
};
struct GlobalAccess : Accessor {
  std::uint32_t time;
  std::uint16_t place;                                 // its number
};
struct LastAccess : Accessor {
  std::uint32_t time;
  std::uint16_t place, more;                           // more: GlobalGranule's own

  INLINED void note(const GlobalAccess& now) {
    const auto before = same(now) ? bytes : std::uint16_t{0};
    static_cast<Accessor&>(*this) = now;
    bytes |= before, time = now.time, place = now.place;
  }
  // Is nothing of it lost where another one takes its place? Of two at the same time the later place counts for both.
  INLINED bool goes_into(const GlobalAccess& now) const { return !(bytes & ~now.bytes) || launch != now.launch || (same(now) && time == now.time); }
  // Another agent's, in this launch. A kernel begins when all of the one before it has ended.
  INLINED bool stands_against(const GlobalAccess& now) const { return launch == now.launch && !same(now); }
  // Is that certainly after it?
  INLINED bool before(const GlobalAccess& now) const { return launch != now.launch || (same(now) && time <= now.time); }
};
struct alignas(32) GlobalGranule {
  LastAccess write, read;                              // each by one agent at one time, or else `apart`

  std::uint16_t& written() { return write.more; }      // a bit for each byte that holds something
  unsigned atomic() const { return read.more & 15u; }  // a bit for each word whose last write was an atomic's
  bool apart() const { return read.more & 16; }        // its words have accesses of their own
  void set_atomic(unsigned words) { read.more = static_cast<std::uint16_t>((read.more & 16) | words); }
  void set_apart() { read.more |= 16; }
};
using Words4 = GlobalGranule[4];                       // by word
static_assert(sizeof(GlobalGranule) == 32);            // memory.py makes them, zero

struct Array {                                         // machine.py fills it; none: nothing is checked
  const char* name;
  std::uintptr_t begin;
  std::size_t bytes;
  GlobalGranule* shadow;                               // null: kernels only read it. Behind them the words of each
  int defined;                                         // does it hold something before it is written?
  int constant = 0;                                    // and from before any kernel?

  bool holds(std::uintptr_t at, std::size_t size) const { return at - begin < bytes && size <= begin + bytes - at; }
  std::size_t granule(std::uintptr_t at) const { return at / 16 - begin / 16; }
  std::size_t granules() const { return bytes / 16 + 2; }
  Words4& words(std::size_t granule) const { return reinterpret_cast<Words4*>(shadow + granules())[granule]; }
};

// An access that nobody else's in this launch stands against: most are. Else false.
INLINED bool noted_at_once(GlobalGranule& granule, bool defined, Access access, const GlobalAccess& now) {
  const bool reads = access == Access::read || access == Access::copy;
  if (granule.apart() || !granule.write.before(now) || (!reads && !granule.read.before(now))) return false;
  if (reads ? !defined && (now.bytes & ~granule.written()) : access == Access::atomic || granule.atomic()) return false;
  LastAccess& mine = reads ? granule.read : granule.write;
  if (!mine.goes_into(now)) return false;
  mine.note(now);
  if (!reads) granule.written() |= now.bytes;
  return true;
}

// The same for a warp's ordinary access, aligned, of so many bytes: what it did itself is before it. `last`: the granule, or its word.
template <Access kAccess, unsigned kBytes> INLINED bool noted_at_once(GlobalGranule& granule, GlobalGranule& last, bool defined, const GlobalAccess& now) {
  constexpr bool kReads = kAccess == Access::read;
  if (last.write.stands_against(now)) return false;
  if (kReads ? !defined && (now.bytes & ~granule.written()) : granule.atomic() || last.read.stands_against(now)) return false;
  LastAccess& mine = kReads ? last.read : last.write;
  if (kBytes < 16 && &last == &granule && !mine.goes_into(now)) return false;
  mine.note(now);
  if (!kReads) granule.written() |= now.bytes;
  return true;
}

}  // namespace cuda_on_host
