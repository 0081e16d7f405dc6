// What the lanes of a warp leave for each other when they meet.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>

#include "fault.hpp"

namespace cuda_on_host {

struct Exchange {                                      // one warp-wide rendezvous: every lane leaves a value
  const char* what = nullptr;
  Place place = 0;                                     // of the first lane
  std::uint32_t arrived = 0;
  alignas(16) std::array<std::array<unsigned char, 32>, 32> values;
};

// What the lanes left. It stays until each of them has left the next rendezvous.
template <class Value> class Left {
 public:
  explicit Left(const Exchange& e) : e_(e) {}
  Value operator[](int lane) const { Value v; std::memcpy(&v, e_.values[static_cast<std::size_t>(lane)].data(), sizeof v); return v; }

 private:
  const Exchange& e_;
};

}  // namespace cuda_on_host
