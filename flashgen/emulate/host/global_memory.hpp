// Global memory: the arrays of a launch. What goes through an instruction of ptx.hpp must lie inside one of them.
#pragma once
#include "block.hpp"

namespace cuda_on_host {

struct Array { const char* name; std::uintptr_t begin; std::size_t bytes; };   // machine.py fills it; none: nothing is checked

inline std::vector<Array> arrays;

void check_global(const void* address, std::size_t bytes, std::size_t alignment) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at % alignment) block->fault(text("%zu bytes at global address %p: not %zu-byte aligned", bytes, address, alignment), "the strides and the start of the array, and the width of the access");
  if (arrays.empty() || bytes == 0) return;            // cp.async that reads nothing may name any place
  const Array* nearest = nullptr;                      // the last that begins at or before it
  for (const Array& a : arrays) {
    if (at >= a.begin && at + bytes <= a.begin + a.bytes) return;
    if (at >= a.begin && (!nearest || a.begin > nearest->begin)) nearest = &a;
  }
  const std::string where = nearest ? text("`%s`+%#zx, outside its %zu bytes", nearest->name, static_cast<std::size_t>(at - nearest->begin), nearest->bytes) : text("%p, outside all arrays", address);
  block->fault(text("%zu bytes of global memory at ", bytes) + where, "the index and the strides that this address is made of, and the test against the length");
}

}  // namespace cuda_on_host
