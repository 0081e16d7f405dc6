// One function a PTX instruction, named after it: translate.py turns `asm("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n))`
// into `ptx::mbarrier_init_shared_cta_b64(b, n)`. Operands come in PTX order, `{%0, ...}` as one Values, References or Registers.
// A new instruction is a function here, with its body here or, when it touches the block, in machine.cpp.
#pragma once
#include <utility>

#include "cuda.hpp"

namespace cuda_on_host {

// What the threads of a warpgroup must agree on when they issue a wgmma.
struct Operation {
  enum class Element { bf16, f16 } element;
  int n;
  bool accumulate, a_in_registers, a_mn_major, b_mn_major;
  std::uint64_t a, b;                                  // descriptors
  bool operator==(const Operation&) const = default;
};

namespace ptx {

template <class T, int N> struct Values { T v[N]; };        // {%0, %1, ...}
template <class T, int N> struct References { T* at[N]; };  // the same as the outputs of a load
template <class T, int N> struct Registers {                // the same when they are neighbours in one array: wgmma keeps them
  T* first;
  operator References<T, N>() const { return all(std::make_integer_sequence<int, N>()); }
  operator Values<std::remove_const_t<T>, N>() const { Values<std::remove_const_t<T>, N> v; std::memcpy(&v, first, sizeof v); return v; }

 private:
  template <int... i> INLINED References<T, N> all(std::integer_sequence<int, i...>) const { return {{first + i...}}; }
};
template <int N, class T> INLINED Registers<T, N> neighbours(Pointer<T> first) { return {first.at}; }
template <int N, class T, int kSize> INLINED Registers<T, N> neighbours(Local<T, kSize>& all) { static_assert(N <= kSize); return {all.rows}; }
template <int N, class T, int kSize> INLINED Registers<const T, N> neighbours(const Local<T, kSize>& all) { static_assert(N <= kSize); return {all.rows}; }
template <class T, class... More> INLINED References<T, 1 + sizeof...(More)> references(T& first, More&... more) { return {{&first, &more...}}; }
template <class T, class... More> INLINED Values<T, 1 + sizeof...(More)> values(T first, More... more) { return {{first, T(more)...}}; }

INLINED void setp_ne_b32(bool& p, int a, int b) { p = a != b; }
INLINED void mov_b64(std::uint64_t& to, Values<std::uint32_t, 2> halves) { to = std::uint64_t{halves.v[1]} << 32 | halves.v[0]; }   // the low one first

// --- mbarriers and named barriers
void mbarrier_init_shared_cta_b64(std::uint32_t barrier, int count);
void mbarrier_inval_shared_cta_b64(std::uint32_t barrier);
void mbarrier_arrive_shared_cta_b64(std::uint32_t barrier);
void mbarrier_arrive_expect_tx_shared_cta_b64(std::uint32_t barrier, int bytes);
void mbarrier_try_wait_parity_shared_cta_b64(bool& done, std::uint32_t barrier, int parity);
void fence_mbarrier_init_release_cluster();
void griddepcontrol_wait();
inline void griddepcontrol_launch_dependents() {}      // kernels run one after another here
void bar_sync(int id, int threads);
void bar_arrive(int id, int threads);

// --- bulk copies
void load_box(std::uint32_t destination, const void* map, const int* at, int rank, std::uint32_t mbarrier);
void load_box_for_all(std::uint32_t destination, const void* map, const int* at, int rank, std::uint32_t mbarrier, std::uint16_t mask);   // of a cluster
void store_box(const void* map, const int* at, int rank, std::uint32_t source);
#define BULK_TENSOR(RANK)                                                                                                          \
  INLINED void cp_async_bulk_tensor_##RANK##d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(                               \
      std::uint32_t destination, const void* map, Values<int, RANK> at, std::uint32_t mbarrier) {                                  \
    load_box(destination, map, at.v, RANK, mbarrier);                                                                              \
  }                                                                                                                                \
  INLINED void cp_async_bulk_tensor_##RANK##d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(                 \
      std::uint32_t destination, const void* map, Values<int, RANK> at, std::uint32_t mbarrier, std::uint64_t) {                   \
    load_box(destination, map, at.v, RANK, mbarrier);                                                                              \
  }                                                                                                                                \
  INLINED void cp_async_bulk_tensor_##RANK##d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(              \
      std::uint32_t destination, const void* map, Values<int, RANK> at, std::uint32_t mbarrier, std::uint16_t mask) {              \
    load_box_for_all(destination, map, at.v, RANK, mbarrier, mask);                                                                \
  }                                                                                                                                \
  INLINED void cp_async_bulk_tensor_##RANK##d_global_shared_cta_tile_bulk_group(const void* map, Values<int, RANK> at, std::uint32_t source) { \
    store_box(map, at.v, RANK, source);                                                                                            \
  }                                                                                                                                \
  INLINED void cp_async_bulk_tensor_##RANK##d_global_shared_cta_tile_bulk_group_L2_cache_hint(                                     \
      const void* map, Values<int, RANK> at, std::uint32_t source, std::uint64_t) {                                                \
    store_box(map, at.v, RANK, source);                                                                                            \
  }
BULK_TENSOR(2)   // cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes, cp_async_bulk_tensor_2d_global_shared_cta_tile_bulk_group, each also _L2_cache_hint
BULK_TENSOR(3)   // cp_async_bulk_tensor_3d_shared_cluster_global_tile_mbarrier_complete_tx_bytes, cp_async_bulk_tensor_3d_global_shared_cta_tile_bulk_group, each also _L2_cache_hint
BULK_TENSOR(4)   // cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes, cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group, each also _L2_cache_hint
BULK_TENSOR(5)   // cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes, cp_async_bulk_tensor_5d_global_shared_cta_tile_bulk_group, each also _L2_cache_hint
#undef BULK_TENSOR
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(std::uint32_t destination, const void* source, int bytes, std::uint32_t mbarrier);
void cp_async_bulk_global_shared_cta_bulk_group(void* destination, std::uint32_t source, int bytes);
void cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(std::uint32_t destination, std::uint32_t source, int bytes, std::uint32_t mbarrier);
void cp_reduce_async_bulk_global_shared_cta_bulk_group_add_f32(void* destination, std::uint32_t source, int bytes);
INLINED void createpolicy_fractional_L2_evict_first_b64(unsigned long long& x, double) { x = 0; }   // only speed depends on it
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group_read(int newest);
void cp_async_bulk_wait_group(int newest);
void fence_proxy_async_shared_cta();
INLINED void prefetch_tensormap(const void*) {}

// --- clusters: addresses of the cluster's window come from mapa
std::uint32_t cluster_ctarank();
std::uint32_t cluster_nctarank();
void mapa_shared_cluster_u32(std::uint32_t& there, std::uint32_t address, std::uint32_t rank);
void barrier_cluster_arrive_release_aligned();
void barrier_cluster_arrive_relaxed_aligned();
void barrier_cluster_wait_acquire_aligned();
void mbarrier_arrive_release_cluster_shared_cluster_b64(std::uint32_t barrier);
INLINED void mbarrier_arrive_shared_cluster_b64(std::uint32_t barrier) { mbarrier_arrive_release_cluster_shared_cluster_b64(barrier); }
void mbarrier_arrive_expect_tx_release_cluster_shared_cluster_b64(std::uint32_t barrier, int bytes);
void store_cluster(std::uint32_t address, const void* value, std::uint32_t bytes);
void load_cluster(std::uint32_t address, void* value, std::uint32_t bytes);
void store_async(std::uint32_t address, const void* value, std::uint32_t bytes, std::uint32_t mbarrier);
INLINED void st_shared_cluster_u32(std::uint32_t at, std::uint32_t x) { store_cluster(at, &x, sizeof x); }
INLINED void ld_shared_cluster_u32(std::uint32_t& x, std::uint32_t at) { load_cluster(at, &x, sizeof x); }
INLINED void ld_shared_cluster_f32(float& x, std::uint32_t at) { load_cluster(at, &x, sizeof x); }
INLINED void st_async_shared_cluster_mbarrier_complete_tx_bytes_u32(std::uint32_t at, std::uint32_t x, std::uint32_t mbarrier) { store_async(at, &x, sizeof x, mbarrier); }
INLINED void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_u32(std::uint32_t at, Values<std::uint32_t, 4> x, std::uint32_t mbarrier) { store_async(at, &x, sizeof x, mbarrier); }

// --- wgmma
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int newest);
void wgmma(const Operation& operation, float* d, const std::uint32_t* a);

template <Operation::Element element, int N>
INLINED Operation operation(std::uint64_t b, bool accumulate, int scale_a, int scale_b, int b_mn_major) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "wgmma: n is a multiple of 8 up to 256");
  if (scale_a != 1 || scale_b != 1) not_modelled("wgmma with a negated operand");
  return {.element = element, .n = N, .accumulate = accumulate, .a_in_registers = true, .a_mn_major = false, .b_mn_major = b_mn_major != 0, .a = 0, .b = b};
}
// The number of accumulators must be N / 2: a wrong list of registers does not compile. First a in shared memory, then in registers.
#define WGMMA(NAME, ELEMENT)                                                                                                              \
  template <int N>                                                                                                                        \
  INLINED void NAME(Registers<float, N / 2> d, std::uint64_t a, std::uint64_t b, bool p, int scale_a, int scale_b, int a_mn, int b_mn) {  \
    Operation o = operation<ELEMENT, N>(b, p, scale_a, scale_b, b_mn);                                                                    \
    o.a = a, o.a_in_registers = false, o.a_mn_major = a_mn != 0;                                                                          \
    wgmma(o, d.first, nullptr);                                                                                                           \
  }                                                                                                                                       \
  template <int N>                                                                                                                        \
  INLINED void NAME(Registers<float, N / 2> d, Registers<const std::uint32_t, 4> a, std::uint64_t b, bool p, int scale_a, int scale_b, int b_mn) { \
    wgmma(operation<ELEMENT, N>(b, p, scale_a, scale_b, b_mn), d.first, a.first);                                                         \
  }
WGMMA(wgmma_mma_async_sync_aligned_m64k16_f32_bf16_bf16, Operation::Element::bf16)
WGMMA(wgmma_mma_async_sync_aligned_m64k16_f32_f16_f16, Operation::Element::f16)
#undef WGMMA
void setmaxnreg_dec_sync_aligned_u32(int count);
void setmaxnreg_inc_sync_aligned_u32(int count);

// --- cp.async: without its last operand all bytes are read, else the rest is zero
void copy_async(std::uint32_t destination, const void* source, int bytes, int source_bytes, bool past_l1);
#define CP_ASYNC(NAME, PAST_L1)                                                                                                                            \
  INLINED void NAME(std::uint32_t to, const void* from, int bytes, int source_bytes) { copy_async(to, from, bytes, source_bytes, PAST_L1); } \
  INLINED void NAME(std::uint32_t to, const void* from, int bytes) { copy_async(to, from, bytes, bytes, PAST_L1); }
CP_ASYNC(cp_async_ca_shared_global, false)
CP_ASYNC(cp_async_ca_shared_global_L2_128B, false)
CP_ASYNC(cp_async_cg_shared_global, true)
CP_ASYNC(cp_async_cg_shared_global_L2_128B, true)
#undef CP_ASYNC
INLINED void cp_async_cg_shared_global_L2_cache_hint_L2_128B(std::uint32_t to, const void* from, int bytes, int source_bytes, std::uint64_t) {
  copy_async(to, from, bytes, source_bytes, true);
}
void cp_async_commit_group();
void cp_async_wait_group(int newest);
void cp_async_wait_all();

// --- matrices of a warp
// A register that ldmatrix has yet to load, for products alone (series.py): which matrix it is of, among those of the series.
class Later {
 public:
  INLINED explicit Later(std::uint32_t matrix = ~0u) : matrix_(matrix) {}
  INLINED explicit operator std::uint32_t() const { return matrix_; }   // not to compute with

 private:
  std::uint32_t matrix_;
};
struct Kind {                                          // of what is left for later: an ldmatrix of so many matrices, or (none) a product
  std::uint8_t matrices;
  bool transposed, float16, a_loaded, b_loaded;        // which of its operands are Later
  bool operator==(const Kind&) const = default;
};
std::uint32_t load_later(StackTop& top, std::uint32_t row_address, Kind kind);   // the number of the first
template <int N> INLINED void load_matrices(Registers<Later, N> to, std::uint32_t row_address, bool transposed) {
  const std::uint32_t first = load_later(THIS_STACK, row_address, {.matrices = N, .transposed = transposed});
  to.first[0] = Later(first);                          // no loop, so that compilers keep them in registers
  if constexpr (N > 1) to.first[1] = Later(first + 1);
  if constexpr (N > 2) to.first[2] = Later(first + 2), to.first[3] = Later(first + 3);
}
template <int N> void load_matrices(References<std::uint32_t, N> to, std::uint32_t row_address, bool transposed);
template <int N> void store_matrices(std::uint32_t row_address, Values<std::uint32_t, N> matrices, bool transposed);
#define MATRICES(N)                                                                                                                                     \
  INLINED void ldmatrix_sync_aligned_m8n8_x##N##_shared_b16(References<std::uint32_t, N> to, std::uint32_t at) { load_matrices(to, at, false); }         \
  INLINED void ldmatrix_sync_aligned_m8n8_x##N##_trans_shared_b16(References<std::uint32_t, N> to, std::uint32_t at) { load_matrices(to, at, true); }    \
  INLINED void ldmatrix_sync_aligned_m8n8_x##N##_shared_b16(Registers<Later, N> to, std::uint32_t at) { load_matrices(to, at, false); }                   \
  INLINED void ldmatrix_sync_aligned_m8n8_x##N##_trans_shared_b16(Registers<Later, N> to, std::uint32_t at) { load_matrices(to, at, true); }              \
  INLINED void stmatrix_sync_aligned_m8n8_x##N##_shared_b16(std::uint32_t at, Values<std::uint32_t, N> from) { store_matrices(at, from, false); }        \
  INLINED void stmatrix_sync_aligned_m8n8_x##N##_trans_shared_b16(std::uint32_t at, Values<std::uint32_t, N> from) { store_matrices(at, from, true); }
MATRICES(1)   // ldmatrix_sync_aligned_m8n8_x1_shared_b16, ..._trans_..., stmatrix_...
MATRICES(2)
MATRICES(4)
#undef MATRICES
template <bool kFloat16, class A, class B> void multiply_later(StackTop& top, float* d, const A* a, Values<B, 2> b);
template <bool kFloat16, class A, class B> INLINED void mma_sync(Registers<float, 4> d, Registers<A, 4> a, Values<B, 2> b, Registers<float, 4> c) {
  if (c.first != d.first) not_modelled("mma.sync with its result apart from what it adds to");
  multiply_later<kFloat16, std::remove_const_t<A>>(THIS_STACK, d.first, a.first, b);
}
#define MMA(NAME, FLOAT16) \
  template <class A> INLINED void NAME(Registers<float, 4> d, Registers<A, 4> a, Values<std::uint32_t, 2> b, Registers<float, 4> c) { mma_sync<FLOAT16>(d, a, b, c); } \
  template <class A> INLINED void NAME(Registers<float, 4> d, Registers<A, 4> a, Values<Later, 2> b, Registers<float, 4> c) { mma_sync<FLOAT16>(d, a, b, c); }
MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, false)
MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, true)
#undef MMA
void begin_series();
void end_series();
struct Series { INLINED Series() { begin_series(); } INLINED ~Series() { end_series(); } };   // where products may be done later: series.py

// --- memory
void store_shared(std::uint32_t address, const void* value, std::uint32_t bytes);
void load_shared(std::uint32_t address, void* value, std::uint32_t bytes);
template <unsigned kBytes> void store_global(void* address, const void* value);
template <unsigned kBytes> void load_global(const void* address, void* value);
template <class T, int N> INLINED void take(References<T, N> to, const Values<T, N>& from) {
  [&]<int... i>(std::integer_sequence<int, i...>) { ((*to.at[i] = from.v[i]), ...); }(std::make_integer_sequence<int, N>());   // -O2 keeps a loop one
}
#define MEMORY(TYPE, C)                                                                                                                                    \
  INLINED void st_shared_##TYPE(std::uint32_t at, C x) { store_shared(at, &x, sizeof x); }                                                                 \
  INLINED void ld_shared_##TYPE(C& x, std::uint32_t at) { load_shared(at, &x, sizeof x); }                                                                 \
  INLINED void st_shared_v2_##TYPE(std::uint32_t at, Values<C, 2> x) { store_shared(at, &x, sizeof x); }                                                   \
  INLINED void ld_shared_v2_##TYPE(References<C, 2> to, std::uint32_t at) { Values<C, 2> x; load_shared(at, &x, sizeof x); take(to, x); }                  \
  INLINED void st_shared_v4_##TYPE(std::uint32_t at, Values<C, 4> x) { store_shared(at, &x, sizeof x); }                                                   \
  INLINED void ld_shared_v4_##TYPE(References<C, 4> to, std::uint32_t at) { Values<C, 4> x; load_shared(at, &x, sizeof x); take(to, x); }                  \
  INLINED void st_global_##TYPE(void* at, C x) { store_global<sizeof x>(at, &x); }                                                                         \
  INLINED void st_global_v2_##TYPE(void* at, Values<C, 2> x) { store_global<sizeof x>(at, &x); }                                                           \
  INLINED void st_global_v4_##TYPE(void* at, Values<C, 4> x) { store_global<sizeof x>(at, &x); }                                                           \
  INLINED void ld_global_v4_##TYPE(References<C, 4> to, const void* at) { Values<C, 4> x; load_global<sizeof x>(at, &x); take(to, x); }                    \
  INLINED void ld_global_nc_##TYPE(C& x, const void* at) { load_global<sizeof x>(at, &x); }                                                                \
  INLINED void ld_global_nc_v2_##TYPE(References<C, 2> to, const void* at) { Values<C, 2> x; load_global<sizeof x>(at, &x); take(to, x); }                 \
  INLINED void ld_global_nc_v4_##TYPE(References<C, 4> to, const void* at) { Values<C, 4> x; load_global<sizeof x>(at, &x); take(to, x); }
MEMORY(u16, std::uint16_t)   // st_shared_u16, ld_shared_v4_u16, ld_global_nc_v2_u16 and so on, as for each of these
MEMORY(b16, std::uint16_t)
MEMORY(u32, std::uint32_t)
MEMORY(b32, std::uint32_t)
MEMORY(s32, std::int32_t)
MEMORY(f32, float)
#undef MEMORY
// Words that blocks signal each other with. Order needs release and acquire, at the scope of the device.
void store_word(std::uint32_t* address, std::uint32_t value, bool orders);
std::uint32_t load_word(const std::uint32_t* address, bool orders);
#define WORD(TYPE, C)                                                                                                                        \
  INLINED void st_release_gpu_global_##TYPE(void* at, C x) { store_word(static_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(x), true); }                  \
  INLINED void st_release_cta_global_##TYPE(void* at, C x) { store_word(static_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(x), false); }                 \
  INLINED void st_relaxed_gpu_global_##TYPE(void* at, C x) { store_word(static_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(x), false); }                 \
  INLINED void st_volatile_global_##TYPE(void* at, C x) { store_word(static_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(x), false); }                    \
  INLINED void ld_acquire_gpu_global_##TYPE(C& x, const void* at) { x = static_cast<C>(load_word(static_cast<const std::uint32_t*>(at), true)); }      \
  INLINED void ld_acquire_cta_global_##TYPE(C& x, const void* at) { x = static_cast<C>(load_word(static_cast<const std::uint32_t*>(at), false)); }     \
  INLINED void ld_relaxed_gpu_global_##TYPE(C& x, const void* at) { x = static_cast<C>(load_word(static_cast<const std::uint32_t*>(at), false)); }     \
  INLINED void ld_volatile_global_##TYPE(C& x, const void* at) { x = static_cast<C>(load_word(static_cast<const std::uint32_t*>(at), false)); }
WORD(u32, std::uint32_t)   // st_release_gpu_global_u32, ld_acquire_gpu_global_u32 and so on
WORD(s32, std::int32_t)
WORD(b32, std::uint32_t)
#undef WORD
INLINED void red_relaxed_gpu_global_add_f32(float* address, float value) { builtins::atomicAdd(Pointer(address), value); }
INLINED void red_relaxed_gpu_global_add_v4_f32(float* address, Values<float, 4> values) { for (int i = 0; i < 4; ++i) red_relaxed_gpu_global_add_f32(address + i, values.v[i]); }

// --- numbers
INLINED std::uint32_t smid() { return blockIdx.x; }   // as if each block had a multiprocessor of its own
INLINED void mov_u32(std::uint32_t& d, std::uint32_t a) { d = a; }
INLINED void bmsk_clamp_b32(std::uint32_t& d, std::uint32_t from, std::uint32_t count) {
  d = from > 31 || !count ? 0 : (count > 31 ? ~0u : (1u << count) - 1) << from;
}
INLINED void mul_wide_s32(long long& d, int a, int b) { d = static_cast<long long>(a) * b; }
INLINED void mul_wide_u32(unsigned long long& d, unsigned a, unsigned b) { d = static_cast<unsigned long long>(a) * b; }
INLINED void tanh_approx_f32(float& y, float x) { y = __builtin_tanhf(x); }
INLINED void lg2_approx_f32(float& y, float x) { y = __builtin_log2f(x); }
INLINED void lg2_approx_ftz_f32(float& y, float x) { y = __builtin_log2f(__builtin_fabsf(x) < 0x1p-126f ? 0.0f : x); }
INLINED void rcp_approx_f32(float& y, float x) { y = 1.0f / x; }
INLINED void rcp_approx_ftz_f32(float& y, float x) { y = 1.0f / x; y = __builtin_fabsf(y) < 0x1p-126f ? 0.0f : y; }
INLINED void sqrt_approx_f32(float& y, float x) { y = __builtin_sqrtf(x); }
INLINED void sqrt_approx_ftz_f32(float& y, float x) { y = __builtin_sqrtf(x); }
INLINED void rsqrt_approx_f32(float& y, float x) { y = 1.0f / __builtin_sqrtf(x); }
INLINED void min_NaN_f32(float& z, float x, float y) { z = x != x || y != y ? __builtin_nanf("") : __builtin_fminf(x, y); }
INLINED void max_NaN_f32(float& z, float x, float y) { z = x != x || y != y ? __builtin_nanf("") : __builtin_fmaxf(x, y); }
INLINED void ex2_approx_f32(float& y, float x) { y = __builtin_exp2f(x); }
// 2^x to about one unit in the last place, subnormal results flushed; branch-free so that the compiler may vectorise around it.
INLINED void ex2_approx_ftz_f32(float& y, float x) {
  const float clamped = x < -127.0f ? -127.0f : x > 128.0f ? 128.0f : x;
  const float rounded = clamped + 12582912.0f, f = clamped - (rounded - 12582912.0f);
  float p = 1.5403530e-4f;                             // no loop over an array: -O2 would keep it one
  p = __builtin_fmaf(p, f, 1.3333558e-3f);
  p = __builtin_fmaf(p, f, 9.6181291e-3f);
  p = __builtin_fmaf(p, f, 5.5504109e-2f);
  p = __builtin_fmaf(p, f, 2.4022651e-1f);
  p = __builtin_fmaf(p, f, 6.9314718e-1f);
  p = __builtin_fmaf(p, f, 1.0f);
  const float scaled = __builtin_bit_cast(float, __builtin_bit_cast(int, p) + (__builtin_bit_cast(int, rounded) << 23));
  y = x != x ? x : x < -126.0f ? 0.0f : x >= 128.0f ? __builtin_inff() : scaled;
}
INLINED std::uint32_t bf16(float value) {              // round to nearest even
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  return value != value ? 0x7FFFu : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
INLINED std::uint32_t f16(float value) { return value != value ? 0x7FFF : __builtin_bit_cast(std::uint16_t, static_cast<Half>(value)); }
INLINED void cvt_f32_f16(float& y, std::uint16_t x) { y = static_cast<float>(__builtin_bit_cast(Half, x)); }
INLINED void cvt_rn_f16x2_f32(std::uint32_t& d, float high, float low) { leaves(high + low), d = f16(high) << 16 | f16(low); }   // the first source: the high half
INLINED void cvt_rn_bf16x2_f32(std::uint32_t& d, float high, float low) { leaves(high + low), d = bf16(high) << 16 | bf16(low); }

}  // namespace ptx
}  // namespace cuda_on_host
