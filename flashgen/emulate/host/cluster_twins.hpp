// Twins of the instructions by which blocks reach each other; machine.cpp includes it once, in namespace ptx.

static Coordinates coordinates(const int* at, int rank) {
  Coordinates all{};
  std::copy_n(at, rank, all.begin());
  return all;
}
// The block that a copy goes to, and whose barrier it completes on.
static Units& owner_of(std::uint32_t destination, std::uint32_t mbarrier) {
  Units& owner = THIS_STACK.units->at(destination);
  if (&THIS_STACK.units->at(mbarrier) != &owner) block->fault("a copy into one block's shared memory that completes on an mbarrier of another", "mapa of both to the same rank");
  owner.visits.note("a copy into shared memory");
  return owner;
}
void load_box_for_all(std::uint32_t destination, const void* map, const int* at, int rank, std::uint32_t mbarrier, std::uint16_t mask) {
  HERE;
  const TensorMap& box = checked(map, destination, rank);
  if (!mask || mask >> block->blocks()) block->fault(text("a multicast with mask %#x in a cluster of %d", mask, block->blocks()), "a bit for each rank that receives");
  for (unsigned to = 0; to < THIS_STACK.units->all.size(); ++to)
    if (mask >> to & 1) owner_of(in_window(destination, to), in_window(mbarrier, to)).loads.issue(within(destination), box, coordinates(at, rank), within(mbarrier));
}
void cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(std::uint32_t destination, std::uint32_t source, int bytes, std::uint32_t mbarrier) {
  HERE, owner_of(destination, mbarrier).arriving.issue(within(destination), *this_thread().memory, source, static_cast<std::uint32_t>(bytes), within(mbarrier));
}
std::uint32_t cluster_ctarank() { return static_cast<std::uint32_t>(this_thread().rank); }
std::uint32_t cluster_nctarank() { return static_cast<std::uint32_t>(block->blocks()); }
void mapa_shared_cluster_u32(std::uint32_t& there, std::uint32_t address, std::uint32_t rank) { there = in_window(address, rank); }
void barrier_cluster_arrive_release_aligned() { HERE, THIS_STACK.units->cluster.arrive(true); }
void barrier_cluster_arrive_relaxed_aligned() { HERE, THIS_STACK.units->cluster.arrive(false); }
void barrier_cluster_wait_acquire_aligned() { HERE, THIS_STACK.units->cluster.wait(); }
static Units& visited(std::uint32_t address, const char* what) {
  Units& owner = THIS_STACK.units->at(address);
  owner.visits.note(what);
  return owner;
}
void mbarrier_arrive_release_cluster_shared_cluster_b64(std::uint32_t barrier) { HERE, visited(barrier, "an arrival at a barrier").mbarriers.arrive(within(barrier)); }
void mbarrier_arrive_expect_tx_release_cluster_shared_cluster_b64(std::uint32_t barrier, int bytes) {
  HERE;
  Mbarriers& mbarriers = visited(barrier, "an arrival at a barrier").mbarriers;
  mbarriers.expect(within(barrier), bytes);
  mbarriers.arrive(within(barrier));
}
void store_cluster(std::uint32_t address, const void* value, std::uint32_t bytes) {
  HERE;
  std::memcpy(visited(address, "a store to shared memory").memory.write(within(address), bytes, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), value, bytes);
}
void load_cluster(std::uint32_t address, void* value, std::uint32_t bytes) {
  HERE;
  std::memcpy(value, visited(address, "a load from shared memory").memory.read(within(address), bytes, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic), bytes);
}
void store_async(std::uint32_t address, const void* value, std::uint32_t bytes, std::uint32_t mbarrier) {
  HERE, owner_of(address, mbarrier).arriving.issue(within(address), value, bytes, within(mbarrier));
}
// Words of global memory. Atomic, like those of other blocks; `orders`: release or acquire at the scope of the device, which relaxed and volatile ones are not.
void store_word(std::uint32_t* address, std::uint32_t value, bool orders) {
  HERE;
  if (orders) order->release();
  const Turn turn;
  check_global(address, sizeof value, sizeof value, Access::atomic);
  order->hand_on(address);
  block->visit({address, value});
  copy(address, &value, sizeof value);
}
std::uint32_t load_word(const std::uint32_t* address, bool orders) {
  HERE;
  std::uint32_t value;
  {
    const Turn turn;
    check_global(address, sizeof value, sizeof value, Access::atomic);
    order->observe(address);
    copy(&value, address, sizeof value);
    block->visit({address, value});
  }
  if (orders) order->acquire();
  return value;
}
