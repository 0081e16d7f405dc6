// What the race checker remembers of shared memory: the last accesses to each 16 bytes, a granule.
#pragma once
#include <array>
#include <cstdint>

#include "fault.hpp"

namespace cuda_on_host {

constexpr std::uint8_t kWhole = 15;
constexpr std::uint32_t kNever = ~0u;                  // later than anybody knows of
struct Touch {
  std::uint32_t time;
  std::int16_t agent;
  std::uint8_t words;                                  // a bit for each 4 bytes of the granule; of a read 0: none, and time 0
  std::uint8_t lane;                                   // of a warp's, that wrote
  Place place;
  bool is_of(std::int16_t who, std::uint8_t which) const { return agent == who && words == which; }
};
struct alignas(64) Granule {                           // a cache line
  bool uniform = true;                                 // one write covered all words
  std::uint8_t unfenced = 0;                           // words stored by generic code with no proxy fence since
  std::uint8_t more = 0;                               // a bit for each read elsewhere
  Touch write{kNever, 0, 0, 0, 0};                     // the last one to the first word; to all if uniform
  std::array<Touch, 4> reads{};                        // since then, each where its agent's number says, here or in more
};
static_assert(sizeof(Granule) == 64);
using OtherWrites = std::array<Touch, 3>;              // the last ones to the other words, unless uniform
struct alignas(64) MoreReads : std::array<Touch, 8> {};

}  // namespace cuda_on_host
