// What the race checker remembers of shared memory: the last accesses to each 16 bytes, a granule.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "clocks.hpp"
#include "fault.hpp"

namespace cuda_on_host {

constexpr std::uint8_t kWhole = 15;
constexpr std::uint32_t kNever = ~0u;                  // later than anybody knows of
struct Touch {
  std::uint32_t time;
  std::int16_t agent;
  std::uint8_t words;                                  // a bit for each 4 bytes of the granule; of a read 0: none
  std::uint8_t lane;                                   // of a warp's
  Place place;
  bool is_of(std::int16_t who, std::uint8_t which) const { return agent == who && words == which; }
};
constexpr std::uint8_t kNoLane = 255;                  // none, or several
constexpr int kReaders = 8;                            // agents whose numbers differ in the last bits alone
constexpr std::uint8_t kNobody = agent::others / kReaders;
struct alignas(64) Granule {                           // a cache line
  std::uint32_t reads[kReaders] = {};                  // when each of eight agents last read all of it; 0: not since the last write to all of it
  std::uint16_t read_at[kReaders];                     // and where, as PlaceNumbers has it
  Touch write{kNever, 0, 0, 0, 0};                     // the last one to the first word; to all if uniform
  bool uniform = true;                                 // one write covered all words
  std::uint8_t unfenced = 0;                           // words stored by generic code with no proxy fence since
  std::uint8_t readers = kNobody;                      // which eight those are: their numbers over eight
  std::uint8_t more = 0;                               // a bit for each read elsewhere
};
static_assert(sizeof(Granule) == 64);
inline bool all_known(const std::uint32_t* reads, const std::uint32_t* now) {
  using Times = std::uint32_t __attribute__((vector_size(4 * kReaders)));
  Times past, known;
  std::memcpy(&past, reads, sizeof past), std::memcpy(&known, now, sizeof known);
  const auto later = reinterpret_cast<std::uint64_t __attribute__((vector_size(4 * kReaders)))>(past > known);
  return !(later[0] | later[1] | later[2] | later[3]);
}
using OtherWrites = std::array<Touch, 3>;              // the last ones to the other words, unless uniform
struct alignas(64) MoreReads : std::array<Touch, 8> {};   // of parts, and by other agents

// Places as 16 bits: where each lies in a table.
class PlaceNumbers {
 public:
  static std::uint16_t of(Place place) {
    for (unsigned i = (place * 0x9E3779B1u >> 17) + 1;; ++i) {
      const std::atomic_ref<Place> held(places_[i % std::size(places_)]);
      Place there = held.load(std::memory_order_relaxed);
      if (there == place || (there == 0 && held.compare_exchange_strong(there, place)) || there == place) return static_cast<std::uint16_t>(i);
    }
  }
  static Place place(std::uint16_t number) { return places_[number]; }

 private:
  static inline Place places_[1 << 16];
};

}  // namespace cuda_on_host
