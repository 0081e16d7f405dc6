// Global memory: the arrays of a launch. What goes through an instruction of ptx.hpp must lie inside one of them.
#pragma once
#include "block.hpp"

namespace cuda_on_host {

struct Array { const char* name; std::uintptr_t begin; std::size_t bytes; };   // machine.py fills it; none: nothing is checked

inline std::vector<Array> arrays;

constexpr const char* kOutside = "the index and the strides that this address is made of, and the test against the length";

// "`k`+0x200, outside its 512 bytes", by the array that lies nearest.
inline std::string outside_of(std::uintptr_t at) {
  const auto distance = [at](const Array& a) { return at < a.begin ? a.begin - at : at < a.begin + a.bytes ? 0 : at - a.begin - a.bytes; };
  const auto nearest = std::min_element(arrays.begin(), arrays.end(), [&](const Array& a, const Array& b) { return distance(a) < distance(b); });
  if (nearest == arrays.end() || distance(*nearest) > 1u << 20) return text("address %#zx, outside all arrays", static_cast<std::size_t>(at));
  const std::string offset = at < nearest->begin ? text("-%#zx", static_cast<std::size_t>(nearest->begin - at)) : text("+%#zx", static_cast<std::size_t>(at - nearest->begin));
  return text("`%s`", nearest->name) + offset + text(", outside its %zu bytes", nearest->bytes);
}

void check_global(const void* address, std::size_t bytes, std::size_t alignment) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at % alignment) block->fault(text("%zu bytes at global address %p: not %zu-byte aligned", bytes, address, alignment), "the strides and the start of the array, and the width of the access");
  if (arrays.empty() || bytes == 0) return;            // cp.async that reads nothing may name any place
  for (const Array& a : arrays)
    if (at >= a.begin && at + bytes <= a.begin + a.bytes) return;
  block->fault(text("%zu bytes of global memory at ", bytes) + outside_of(at), kOutside);
}

}  // namespace cuda_on_host
