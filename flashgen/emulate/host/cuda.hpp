// CUDA's keywords and built-ins on the host. Every kernel compiles this file and ptx.hpp, so few includes; what the functions
// do stands in machine.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pointers.hpp"

#define __device__
#define __global__ __attribute__((noinline))              // a frame of its own in reports
#define __host__
#define __forceinline__ INLINED
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)                            // translate.py reads them
#define __cluster_dims__(...)                             // a launch says them

namespace cuda_on_host {

#if defined(__clang__) || defined(__aarch64__)
using Half = __fp16;                                   // 16 bits in memory, float in arithmetic: what clang 14 and g++ 12 for aarch64 know
#else
using Half = _Float16;
#endif

// A rendezvous of the running warp: leaves this lane's bits and returns those of `source`, once all lanes have come.
std::uint64_t exchange(const char* what, std::uint32_t mask, std::uint64_t bits, int source);
std::uint32_t vote(std::uint32_t mask, bool predicate);
INLINED int lane() { return THIS_STACK.lane; }
// Around an access to global memory that other blocks see at once: blocks take turns, in an order under the seed.
void begin_turn();
void end_turn();
struct Turn { INLINED Turn() { begin_turn(); } INLINED ~Turn() { end_turn(); } };
enum class Access { copy, read, write, atomic };       // of global memory; a bulk copy reads what nobody need look at
void check_global(const void* address, std::size_t bytes, std::size_t alignment, Access access);
void hand_on(const void* address);                     // an atomic there: what other blocks may learn by it
void copy(void* to, const void* from, std::size_t bytes);   // which the checker does not take for a plain access
[[noreturn]] void not_modelled(const char* what);
struct SharedArray {};                                 // `extern __shared__`: it has an address in the window and nothing else

namespace builtins {

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
INLINED int2 make_int2(int x, int y) { return {x, y}; }
INLINED int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
#define threadIdx (THIS_STACK.index)
#define blockIdx (*THIS_STACK.block_index)
extern Dim3 blockDim, gridDim;

std::size_t __cvta_generic_to_shared(const SharedArray&);
void __syncthreads();
void __syncwarp(unsigned mask = ~0u);
void __threadfence();

template <class T> INLINED T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange("a shuffle", mask, bits, source & 31);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T> INLINED T __shfl_xor_sync(unsigned mask, T value, int lanes) { return __shfl_sync(mask, value, lane() ^ lanes); }
template <class T> INLINED T __shfl_down_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, lane() + lanes < 32 ? lane() + lanes : lane());
}
template <class T> INLINED T __shfl_up_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, lane() < lanes ? lane() : lane() - lanes);
}
INLINED unsigned __ballot_sync(unsigned mask, int predicate) { return vote(mask, predicate) & mask; }
INLINED int __any_sync(unsigned mask, int predicate) { return (vote(mask, predicate) & mask) != 0; }
INLINED int __all_sync(unsigned mask, int predicate) { return (vote(mask, !predicate) & mask) == 0; }

template <class T, class Change> INLINED T atomic(T* address, Change change) {
  const Turn turn;
  check_global(address, sizeof(T), alignof(T), Access::atomic);
  hand_on(address);
  T old;
  copy(&old, address, sizeof old);
  const T changed = change(old);
  copy(address, &changed, sizeof old);
  return old;
}
template <class T> INLINED T atomicAdd(Pointer<T> address, std::type_identity_t<T> value) {
  if constexpr (std::same_as<T, float>) leaves(value);
  return atomic(address.at, [=](T old) { return old + value; });
}
template <class T> INLINED T atomicOr(Pointer<T> address, std::type_identity_t<T> bits) { return atomic(address.at, [=](T old) { return old | bits; }); }
template <class T> INLINED T atomicExch(Pointer<T> address, std::type_identity_t<T> value) { return atomic(address.at, [=](T) { return value; }); }
template <class T> INLINED T atomicMax(Pointer<T> address, std::type_identity_t<T> value) { return atomic(address.at, [=](T old) { return old < value ? value : old; }); }
template <class T> INLINED T atomicCAS(Pointer<T> address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return atomic(address.at, [=](T old) { return old == expected ? value : old; });
}

INLINED int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
INLINED int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }
INLINED int __popc(unsigned bits) { return __builtin_popcount(bits); }
INLINED unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
INLINED float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
INLINED float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
INLINED int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
INLINED unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
INLINED float __int2float_rn(int value) { return static_cast<float>(value); }
INLINED int __float2int_rz(float x) { return x != x ? 0 : x >= 0x1p31f ? 0x7FFFFFFF : x < -0x1p31f ? -0x7FFFFFFF - 1 : int(x); }
INLINED float __ll2float_rn(long long value) { return static_cast<float>(value); }
// Rounded to the nearest: the product is out of sight of whatever would fuse it into a sum.
INLINED float __fmul_rn(float a, float b) {
  unsigned bits = __builtin_bit_cast(unsigned, a * b);
  asm("" : "+r"(bits));
  return __builtin_bit_cast(float, bits);
}
INLINED float __fadd_rn(float a, float b) { return a + b; }
INLINED float __fsub_rn(float a, float b) { return a - b; }
INLINED float __fdiv_rn(float a, float b) { return a / b; }
INLINED float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }

template <class T, class U> INLINED std::common_type_t<T, U> min(T a, U b) { using C = std::common_type_t<T, U>; return C(b) < C(a) ? C(b) : C(a); }
template <class T, class U> INLINED std::common_type_t<T, U> max(T a, U b) { using C = std::common_type_t<T, U>; return C(a) < C(b) ? C(b) : C(a); }
template <class T> INLINED T abs(T a) { return a < T(0) ? -a : a; }
// As IEEE 754 and CUDA have it, a number wins over NaN. libm's are calls; these are an instruction or two.
INLINED float fmaxf(float a, float b) { const float greater = a > b ? a : b; return b != b ? a : greater; }
INLINED float fminf(float a, float b) { const float less = a < b ? a : b; return b != b ? a : less; }
INLINED int __ffs(int x) { return __builtin_ffs(x); }
INLINED float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINED float fabsf(float x) { return __builtin_fabsf(x); }
INLINED float copysignf(float size, float sign) { return __builtin_copysignf(size, sign); }
INLINED float ceilf(float x) { return __builtin_ceilf(x); }
INLINED float floorf(float x) { return __builtin_floorf(x); }
INLINED float sqrtf(float x) { return __builtin_sqrtf(x); }
INLINED float tanhf(float x) { return __builtin_tanhf(x); }
INLINED float expf(float x) { return __builtin_expf(x); }
INLINED float exp2f(float x) { return __builtin_exp2f(x); }
INLINED float logf(float x) { return __builtin_logf(x); }
INLINED float log2f(float x) { return __builtin_log2f(x); }
INLINED float rintf(float x) { return __builtin_rintf(x); }
INLINED float erff(float x) { return __builtin_erff(x); }
INLINED float sinf(float x) { return __builtin_sinf(x); }
INLINED float cosf(float x) { return __builtin_cosf(x); }
INLINED float powf(float x, float y) { return __builtin_powf(x, y); }
INLINED float asinhf(float x) { return __builtin_asinhf(x); }

}  // namespace builtins

struct LaunchBounds { unsigned threads = 0, blocks = 1; };   // at most, and at least on a multiprocessor; 0: not said
struct Entry { const char* name; void (*thread)(const void* params); std::size_t bytes_of_params; LaunchBounds bounds; };
extern const Entry entries[];                          // of the kernel's text; the last has no name

template <class Kernel> struct ParamsOf;
template <class Params> struct ParamsOf<void (*)(Params)> { using Type = std::remove_cvref_t<Params>; };
// A kernel takes one struct, a copy that is aligned.
template <auto kKernel> constexpr Entry entry(const char* name, LaunchBounds bounds) {
  using Params = typename ParamsOf<decltype(kKernel)>::Type;
  return {name, [](const void* params) {
            alignas(64) unsigned char storage[sizeof(Params)];
            std::memcpy(storage, params, sizeof(Params));
            kKernel(*reinterpret_cast<const Params*>(storage));
          }, sizeof(Params), bounds};
}

}  // namespace cuda_on_host
