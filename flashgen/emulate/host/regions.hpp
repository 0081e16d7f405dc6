// Names of places in shared memory.
#pragma once
#include <vector>

#include "fault.hpp"

namespace cuda_on_host {

struct Region { const char* name; std::uint32_t offset, bytes, count; };   // machine.py fills it from the plan's memory map

inline std::vector<Region> regions;

// `K[1]+0x40` as the memory map names it, else `smem+0x8040`.
inline std::string name_of(std::int64_t offset) {
  for (const Region& r : regions)
    if (offset >= r.offset && offset < static_cast<std::int64_t>(r.offset) + static_cast<std::int64_t>(r.bytes) * r.count) {
      const auto within = static_cast<std::uint32_t>(offset) - r.offset;
      return std::string("`") + r.name + (r.count > 1 ? text("[%u]", within / r.bytes) : "") + (within % r.bytes ? text("+%#x`", within % r.bytes) : "`");
    }
  return offset < 0 ? text("smem-%#x", static_cast<unsigned>(-offset)) : text("smem+%#x", static_cast<unsigned>(offset));
}

// XOR of a 16-byte chunk's index with its row's, on the absolute shared address. `rows` is 8, 4 or 2 for 128, 64 or 32-byte
// swizzle, 1 for none.
constexpr std::uint32_t swizzle(std::uint32_t address, std::uint32_t rows) {
  return address ^ (((address >> 7) & (rows - 1)) << 4);
}

}  // namespace cuda_on_host
