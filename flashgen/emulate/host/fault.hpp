// What is wrong with a kernel, and where.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>

namespace cuda_on_host {

// A place in the kernel: the return address of a twin, from the start of the loaded file. report.py turns it into lines. 0: none.
using Place = std::uint32_t;

inline std::uintptr_t loaded_at;                       // where this library lies in memory
inline Place place_of(const void* return_address) { return static_cast<Place>(reinterpret_cast<std::uintptr_t>(return_address) - loaded_at); }
void here(const void* caller);                         // notes where the running thread calls from
void settle();                                         // does what it has left for later

struct Fault {
  std::string what, hint;                              // what happened, and what to look at; `<1f3c>` in either is a Place
  Place place = 0, other = 0;                          // where, and the other side of a race
  int block = 0, thread = -1;                          // -1: an asynchronous unit
};

inline std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace cuda_on_host
