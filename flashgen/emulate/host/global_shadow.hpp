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
struct LastAccess : Accessor {                         // the last one of each word: all by one agent of one block
  std::uint32_t times[4];
  std::uint16_t places[4];

  INLINED void note(const GlobalAccess& now) { note(now, std::countr_zero(now.bytes) / 4, (35 - std::countl_zero(std::uint32_t{now.bytes})) / 4); }
  INLINED void note(const GlobalAccess& now, int first, int end) {   // its words
    if (same(now)) {
      bytes |= now.bytes;
      for (int i = first; i < end; ++i) times[i] = now.time, places[i] = now.place;
    } else {
      note_whole(now);
    }
  }
  INLINED void note_whole(const GlobalAccess& now) {
    static_cast<Accessor&>(*this) = now;
    for (int i = 0; i < 4; ++i) times[i] = now.time, places[i] = now.place;
  }
  // Can another one take its place?
  INLINED bool covered_by(const GlobalAccess& now) const { return !(bytes & ~now.bytes) || launch != now.launch || same(now); }
  // Another agent's, in this launch. A kernel begins when all of the one before it has ended.
  INLINED bool stands_against(const GlobalAccess& now) const { return launch == now.launch && !same(now); }
  // Is that certainly after it?
  INLINED bool before(const GlobalAccess& now) const {
    return launch != now.launch || (same(now) && times[0] <= now.time && times[1] <= now.time && times[2] <= now.time && times[3] <= now.time);
  }
};
struct LastAccesses { LastAccess write, read; };
struct GranuleState {
  std::uint16_t written;                               // a bit for each byte that holds something
  std::uint8_t atomic;                                 // a bit for each word whose last write was an atomic's
  bool apart;                                          // its words have LastAccesses of their own: more than one agent's count
};
using WordAccesses = LastAccesses[4];
static_assert(sizeof(LastAccesses) == 64 && sizeof(GranuleState) == 4);   // memory.py makes them, zero

struct Array {                                         // machine.py fills it; none: nothing is checked
  const char* name;
  std::uintptr_t begin;
  std::size_t bytes;
  LastAccesses* shadow;                                // by granule; null: kernels only read it. WordAccesses and states lie behind
  int defined;                                         // does it hold something before it is written?

  bool holds(std::uintptr_t at, std::size_t size) const { return at - begin < bytes && size <= begin + bytes - at; }
  std::size_t granule(std::uintptr_t at) const { return at / 16 - begin / 16; }
  std::size_t granules() const { return bytes / 16 + 2; }
  WordAccesses& words(std::size_t granule) const { return reinterpret_cast<WordAccesses*>(shadow + granules())[granule]; }
  GranuleState& state(std::size_t granule) const { return reinterpret_cast<GranuleState*>(shadow + 5 * granules())[granule]; }
};

// An access that nobody else's in this launch stands against: most are. Else false.
INLINED bool noted_at_once(const Array& array, std::size_t granule, Access access, const GlobalAccess& now) {
  LastAccesses& last = array.shadow[granule];
  GranuleState& state = array.state(granule);
  const bool reads = access == Access::read || access == Access::copy;
  if (state.apart || !last.write.before(now) || (!reads && !last.read.before(now))) return false;
  if (reads ? !array.defined && (now.bytes & ~state.written) : access == Access::atomic || state.atomic) return false;
  LastAccess& mine = reads ? last.read : last.write;
  if (!mine.covered_by(now)) return false;
  mine.note(now);
  if (!reads) state.written |= now.bytes;
  return true;
}

// The same for a warp's ordinary access, aligned, of so many bytes, to that granule: what it did itself is before it.
template <Access kAccess, unsigned kBytes> INLINED bool noted_at_once(LastAccesses& last, GranuleState& state, bool defined, const GlobalAccess& now) {
  constexpr bool kReads = kAccess == Access::read;
  if (state.apart || last.write.stands_against(now)) return false;
  if (kReads ? !defined && (now.bytes & ~state.written) : state.atomic || last.read.stands_against(now)) return false;
  LastAccess& mine = kReads ? last.read : last.write;
  if constexpr (kBytes == 16) {
    mine.note_whole(now);
  } else {
    constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
    if (kReads && !mine.covered_by(now)) return false;
    const int first = std::countr_zero(now.bytes) / 4;
    mine.note(now, first, first + kWords);
  }
  if (!kReads) state.written |= now.bytes;
  return true;
}

}  // namespace cuda_on_host
