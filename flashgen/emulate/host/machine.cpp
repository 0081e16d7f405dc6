// What cuda.hpp and ptx.hpp declare, and the launch. Compiled once, linked to every kernel.
#include <dlfcn.h>

#include "grid.hpp"

namespace cuda_on_host {

Dim3 builtins::blockDim, builtins::gridDim;

void settle() {
  const StackTop& top = THIS_STACK;
  if (top.copies) top.units->copies.settle(*top.thread);
  if (top.loads) Deferred::meet();
}
INLINED Thread& note_place(const void* caller) {
  StackTop& top = THIS_STACK;
  if (top.loads | top.copies) [[unlikely]] settle();   // it comes before whatever is done next
  top.thread->place = place_of(caller);
  return *top.thread;
}
void here(const void* caller) { note_place(caller); }
#define HERE note_place(__builtin_return_address(0))

void not_modelled(const char* what) { block->fault(std::string(what) + ": not modelled", "flashgen/emulate/host"); }

INLINED void whole_warp(std::uint32_t mask, const char* what) {
  if (mask != ~0u) [[unlikely]] not_modelled(text("%s of some lanes", what).c_str());
}
std::uint64_t exchange(const char* what, std::uint32_t mask, std::uint64_t bits, int source) {
  const Thread& self = HERE;
  whole_warp(mask, what);
  return self.block->exchange(what, bits)[source];
}
std::uint32_t vote(std::uint32_t mask, bool predicate) {
  HERE;
  whole_warp(mask, "a vote");
  const auto all = this_thread().block->exchange("a vote", std::uint64_t{predicate});
  std::uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<std::uint32_t>(all[i]) << i;
  return bits;
}
// Numbers leave a thread's registers, one in each word.
INLINED void leave(const void* words, std::size_t bytes) {
  for (std::size_t at = 0; at + 4 <= bytes; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, static_cast<const char*>(words) + at, sizeof word);
    if (TensorCore::in_flight(word) && block->checks()) block->fault("an accumulator was read before the wait for its wgmma", "wgmma.wait_group before the accumulators are touched");
  }
}
void met_nan(float x) { HERE, leave(&x, sizeof x); }
void begin_turn() { HERE, block->pause(); }
void end_turn() { block->pause(); }
void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void hand_on(const void* address) {
  Visit now{address};
  std::memcpy(&now.value, address, sizeof now.value);
  block->visit(now);
  order->atomic(address);
}
void builtins::__threadfence() { HERE, order->fence(); }

std::size_t builtins::__cvta_generic_to_shared(const SharedArray&) { return SharedMemory::kBase; }
// Orders the lanes' memory accesses, so what one has waited for all have. Shuffles and votes do not.
void builtins::__syncwarp(unsigned mask) {
  HERE;
  whole_warp(mask, "__syncwarp");
  Thread& t = block->thread();
  struct Seen { std::uint32_t products, stores, copies, kernel_ahead; };
  const Seen mine{t.products_seen, t.stores_seen, t.copies_seen, t.kernel_ahead_seen};
  const Left<Seen> all(t.warp->exchanges[t.exchanges & 1]);
  block->exchange("__syncwarp", mine, [](const Left<Seen>&) {
    block->tick();
    block->warp().met = block->warp().clock.time[agent::warp(block->warp_index())];
  });
  t.met = std::max(t.met, t.warp->met);
  for (int i = 0; i < 32; ++i) {
    const auto [products, stores, copies, kernel_ahead] = all[i];
    t.products_seen = std::max(t.products_seen, products);
    t.stores_seen = std::max(t.stores_seen, stores);
    t.copies_seen = std::max(t.copies_seen, copies);
    t.kernel_ahead_seen = std::max(t.kernel_ahead_seen, kernel_ahead);
  }
}
void builtins::__syncthreads() { HERE, THIS_STACK.units->named.sync(0, (block->size() + 31) / 32 * 32); }

namespace ptx {

void mbarrier_init_shared_cta_b64(std::uint32_t barrier, int count) { HERE, THIS_STACK.units->mbarriers.init(barrier, count); }
void mbarrier_inval_shared_cta_b64(std::uint32_t barrier) { HERE, THIS_STACK.units->mbarriers.invalidate(barrier); }
void mbarrier_arrive_shared_cta_b64(std::uint32_t barrier) { HERE, THIS_STACK.units->mbarriers.arrive(barrier); }
void mbarrier_arrive_expect_tx_shared_cta_b64(std::uint32_t barrier, int bytes) {
  HERE;
  THIS_STACK.units->mbarriers.expect(barrier, bytes);
  THIS_STACK.units->mbarriers.arrive(barrier);
}
// The hardware may suspend the thread in here; on the host it always does, so the loop around it turns once.
void mbarrier_try_wait_parity_shared_cta_b64(bool& done, std::uint32_t barrier, int parity) {
  HERE;
  THIS_STACK.units->mbarriers.wait(barrier, parity);
  done = true;
}
void fence_mbarrier_init_release_cluster() { HERE, THIS_STACK.units->mbarriers.fence_init(); }
void griddepcontrol_wait() {
  HERE.kernel_ahead_seen = 1;
  kernel_ahead_awaited = true;
}
void bar_sync(int id, int threads) { HERE, THIS_STACK.units->named.sync(id, threads); }
void bar_arrive(int id, int threads) { HERE, THIS_STACK.units->named.arrive(id, threads); }

#include "cluster_twins.hpp"
void load_box(std::uint32_t destination, const void* map, const int* at, int rank, std::uint32_t mbarrier) {
  HERE;
  const TensorMap& box = checked(map, destination, rank);
  owner_of(destination, mbarrier).loads.issue(within(destination), box, coordinates(at, rank), within(mbarrier));
}
void store_box(const void* map, const int* at, int rank, std::uint32_t source) {
  HERE, THIS_STACK.units->stores.issue(checked(map, source, rank), source, coordinates(at, rank), false);
}
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(std::uint32_t destination, const void* source, int bytes, std::uint32_t mbarrier) {
  HERE, owner_of(destination, mbarrier).loads.issue(within(destination), plain(source, destination, bytes), {}, within(mbarrier));
}
void cp_reduce_async_bulk_global_shared_cta_bulk_group_add_f32(void* destination, std::uint32_t source, int bytes) {
  HERE, THIS_STACK.units->stores.issue(plain(destination, source, bytes), source, {}, true);
}
void cp_async_bulk_global_shared_cta_bulk_group(void* destination, std::uint32_t source, int bytes) {
  HERE, THIS_STACK.units->stores.issue(plain(destination, source, bytes), source, {}, false);
}
void cp_async_bulk_commit_group() { HERE, THIS_STACK.units->stores.commit(); }
void cp_async_bulk_wait_group_read(int newest) { HERE, THIS_STACK.units->stores.wait(newest, true); }
void cp_async_bulk_wait_group(int newest) { HERE, THIS_STACK.units->stores.wait(newest, false); }
void fence_proxy_async_shared_cta() { HERE, this_thread().memory->fence_async_proxy(); }

void wgmma_fence_sync_aligned() { HERE, THIS_STACK.units->tensor_core().fence(); }
void wgmma_commit_group_sync_aligned() { HERE, THIS_STACK.units->tensor_core().commit(); }
void wgmma_wait_group_sync_aligned(int newest) { HERE, THIS_STACK.units->tensor_core().wait(newest); }
void wgmma(const Operation& operation, float* d, const std::uint32_t* a) { HERE, THIS_STACK.units->tensor_core().issue(operation, d, a); }
void setmaxnreg_dec_sync_aligned_u32(int count) { HERE, THIS_STACK.units->registers.decrease(count); }
void setmaxnreg_inc_sync_aligned_u32(int count) { HERE, THIS_STACK.units->registers.increase(count); }

void copy_async(std::uint32_t destination, const void* source, int bytes, int source_bytes, bool past_l1) {
  StackTop& top = THIS_STACK;
  if (top.loads) [[unlikely]] Deferred::meet();
  top.units->copies.leave(top, place_of(__builtin_return_address(0)), destination, source, bytes, source_bytes, past_l1);
  if (top.runs) [[unlikely]] settle();                 // what comes next may be an ldmatrix of the series
}
void cp_async_commit_group() { HERE, THIS_STACK.units->copies.commit(); }
void cp_async_wait_group(int newest) { HERE, THIS_STACK.units->copies.wait(newest); }
void cp_async_wait_all() { HERE, THIS_STACK.units->copies.wait_all(); }

void store_shared(std::uint32_t address, const void* value, std::uint32_t bytes) {
  HERE;
  leave(value, bytes);
  std::memcpy(this_thread().memory->write(address, bytes, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), value, bytes);
}
void load_shared(std::uint32_t address, void* value, std::uint32_t bytes) {
  HERE;
  std::memcpy(value, this_thread().memory->read(address, bytes, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), bytes);
}
template <unsigned kBytes> void store_global(void* address, const void* value) {
  note_instruction<Access::write, kBytes>(HERE, address, __builtin_return_address(0));
  leave(value, kBytes);
  std::memcpy(address, value, kBytes);
}
template <unsigned kBytes> void load_global(const void* address, void* value) {
  note_instruction<Access::read, kBytes>(HERE, address, __builtin_return_address(0));
  std::memcpy(value, address, kBytes);
}
#define GLOBAL(BYTES) \
  template void store_global<BYTES>(void*, const void*); \
  template void load_global<BYTES>(const void*, void*);
GLOBAL(2)
GLOBAL(4)
GLOBAL(8)
GLOBAL(16)
#undef GLOBAL

template void load_matrices<1>(References<std::uint32_t, 1>, std::uint32_t, bool);
template void load_matrices<2>(References<std::uint32_t, 2>, std::uint32_t, bool);
template void load_matrices<4>(References<std::uint32_t, 4>, std::uint32_t, bool);
template void store_matrices<1>(std::uint32_t, Values<std::uint32_t, 1>, bool);
template void store_matrices<2>(std::uint32_t, Values<std::uint32_t, 2>, bool);
template void store_matrices<4>(std::uint32_t, Values<std::uint32_t, 4>, bool);
static std::uint32_t leave_load(StackTop& top, Step& step, std::uint32_t row_address) {
  top.step = &step + 1;
  ++top.loads;
  step.rows[top.lane] = row_address;
  return step.a;
}
[[gnu::noinline]] static std::uint32_t load_first(StackTop& top, const void* place, std::uint32_t row_address, Kind kind) {
  return leave_load(top, top.deferred->first(top, {.place = place, .kind = kind}), row_address);
}
std::uint32_t load_later(StackTop& top, std::uint32_t row_address, Kind kind) {
  const void* const place = __builtin_return_address(0);
  if (top.step->place != place) [[unlikely]] return load_first(top, place, row_address, kind);
  return leave_load(top, *top.step, row_address);
}

static std::int32_t from_top(const StackTop& top, const void* in_stack) {
  return static_cast<std::int32_t>(static_cast<const char*>(in_stack) - reinterpret_cast<const char*>(&top));
}
template <class A, class B> INLINED void leave_product(StackTop& top, Step& step, const A* a, const Values<B, 2>& b) {
  top.step = &step + 1;
  if constexpr (std::is_same_v<B, std::uint32_t>) std::memcpy(top.deferred->pairs[&step - top.deferred->steps][top.lane], &b, sizeof b);
  if constexpr (std::is_same_v<A, std::uint32_t>) {
    Fragment mine;
    std::memcpy(&mine, a, sizeof mine);
    if (Fragment& before = step.fragments[top.lane]; !step.shared) before = mine;
    else if (differ(before, mine)) [[unlikely]] top.deferred->no_longer_shared(step, top.lane, mine);
  }
}
template <bool kFloat16, class A, class B> [[gnu::noinline]] static void multiply_first(StackTop& top, float* d, const A* a, Values<B, 2> b, const void* place) {
  constexpr bool kA = std::is_same_v<A, Later>, kB = std::is_same_v<B, Later>;
  leave_product(top, top.deferred->first(top, {.place = place, .d = from_top(top, d), .a_at = from_top(top, a), .a = kA ? static_cast<std::uint32_t>(*a) : 0,
                                               .b = {static_cast<std::uint32_t>(b.v[0]), static_cast<std::uint32_t>(b.v[1])},
                                               .kind = {.float16 = kFloat16, .a_loaded = kA, .b_loaded = kB}}), a, b);
  if (!top.runs) {
    Deferred::meet();
    top.step = top.deferred->steps + Deferred::kSteps;
  }
}
template <bool kFloat16, class A, class B> void multiply_later(StackTop& top, float* d, const A* a, Values<B, 2> b) {
  const void* const place = __builtin_return_address(0);
  if (top.step->place != place || top.step->d != from_top(top, d)) [[unlikely]] return multiply_first<kFloat16>(top, d, a, b, place);
  leave_product(top, *top.step, a, b);
}
#define PRODUCTS(A, B) \
  template void multiply_later<false>(StackTop&, float*, const A*, Values<B, 2>); \
  template void multiply_later<true>(StackTop&, float*, const A*, Values<B, 2>);
PRODUCTS(std::uint32_t, std::uint32_t)
PRODUCTS(std::uint32_t, Later)
PRODUCTS(Later, std::uint32_t)
PRODUCTS(Later, Later)
#undef PRODUCTS
void begin_series() {
  StackTop& top = THIS_STACK;
  if (top.copies) settle();
  top.deferred->begin_series(top);
}
void end_series() { THIS_STACK.deferred->end_series(THIS_STACK); }

}  // namespace ptx

// Plain accesses.
template <unsigned kBytes> void note_load(const void* address) { note_plain<Access::read, kBytes>(address, __builtin_return_address(0)); }
template <unsigned kBytes> void note_store(const void* address) { note_plain<Access::write, kBytes>(address, __builtin_return_address(0)); }
#define PLAIN(BYTES) \
  template void note_load<BYTES>(const void*); \
  template void note_store<BYTES>(const void*);
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
#undef PLAIN
static void undefined(const char* what, const char* hint, const void* caller) { here(caller), block->fault(what, hint); }
void misaligned_pointer() {
  undefined("an access through a misaligned pointer", "the width of the access against the start and the strides of the array", __builtin_return_address(0));
}
void past_the_end() { undefined("an access past the end of a local array", "the index against the array's size", __builtin_return_address(0)); }

struct Report {                                        // machine.py reads it
  const char *what, *hint;
  Place place, other;
  int block, thread;
};
static Report report_of(const Fault& fault) { return {fault.what.c_str(), fault.hint.c_str(), fault.place, fault.other, fault.block, fault.thread}; }

}  // namespace cuda_on_host

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The number of an entry by its name, -1 if there is none.
EXPORTED int cuda_on_host_entry(const char* name) {
  using cuda_on_host::entries;
  for (int i = 0; entries[i].name; ++i)
    if (!std::strcmp(entries[i].name, name)) return i;
  return -1;
}
EXPORTED const unsigned* cuda_on_host_bounds(int entry) { return &cuda_on_host::entries[entry].bounds.threads; }   // then of blocks
EXPORTED std::size_t cuda_on_host_params(int entry) { return cuda_on_host::entries[entry].bytes_of_params; }
EXPORTED int cuda_on_host_awaited() { return cuda_on_host::kernel_ahead_awaited; }   // the kernel ahead, by any thread of the last launch
EXPORTED int cuda_on_host_bank_conflicts() { return cuda_on_host::bank_conflicts.exchange(0); }

EXPORTED cuda_on_host::Place cuda_on_host_place(int number) { return cuda_on_host::PlaceNumbers::place(static_cast<std::uint16_t>(number)); }
// Runs a grid of an entry. Returns what went wrong, or null.
EXPORTED const cuda_on_host::Report* cuda_on_host_launch(int entry, const cuda_on_host::Launch* launch) {
  using namespace cuda_on_host;
  static Fault fault;
  static Report report;
  Dl_info file;
  dladdr(reinterpret_cast<const void*>(&cuda_on_host_launch), &file);
  loaded_at = reinterpret_cast<std::uintptr_t>(file.dli_fbase);
  builtins::gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
  builtins::blockDim = {launch->block[0], launch->block[1], launch->block[2]};
  regions.assign(launch->regions, launch->regions + launch->region_count);
  arrays.assign(launch->arrays, launch->arrays + launch->array_count);
  launch_bounds = entries[entry].bounds;
  starts_early = launch->early != 0, kernel_ahead_awaited = false;
  launch_number = static_cast<std::uint8_t>(launch->number);
  handed_on.clear();
  suspects.clear();
  fault = Grid(*launch, entries[entry].thread).run();
  if (fault.what.empty()) return nullptr;
  report = report_of(fault);
  return &report;
}
// What the last launch did from two places that must be one line: the number `i` of it, null past the last one.
EXPORTED const cuda_on_host::Report* cuda_on_host_suspect(std::size_t i) {
  using namespace cuda_on_host;
  static Report report;
  const Fault* const suspect = suspects.at(i);
  if (suspect) report = report_of(*suspect);
  return suspect ? &report : nullptr;
}
