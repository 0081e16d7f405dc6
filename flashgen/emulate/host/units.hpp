// What a block has besides threads and memory.
#pragma once
#include "async_copies.hpp"
#include "bulk_copies.hpp"
#include "cluster.hpp"
#include "registers.hpp"
#include "tensor_core.hpp"
#include "warp_matrices.hpp"

namespace cuda_on_host {

struct Units {
  Mbarriers mbarriers;
  NamedBarriers named;
  BulkLoads loads;
  BulkStores stores;
  RemoteCopies arriving;
  Visits visits;
  AsyncCopies copies;
  std::unique_ptr<Deferred[]> deferred;                // by warp
  RegisterFile registers;
  std::vector<std::unique_ptr<TensorCore>> tensor_cores;
  SharedMemory& memory;
  ClusterBarrier& cluster;
  std::vector<std::unique_ptr<Units>>& all;            // of the cluster's blocks, by rank

  Units(Block& owner, SharedMemory& memory, ClusterBarrier& cluster, std::vector<std::unique_ptr<Units>>& all)
      : mbarriers(memory), loads(mbarriers, memory), stores(memory), arriving(mbarriers, memory), visits(memory), copies(owner, memory),
        deferred(std::make_unique_for_overwrite<Deferred[]>(static_cast<std::size_t>(owner.size() + 31) / 32)), memory(memory), cluster(cluster), all(all) {
    const int first = owner.first_thread(memory.rank());
    for (int i = 0; i < owner.size(); ++i) {
      Thread& t = owner.thread(first + i);
      t.warp->deferred = &deferred[static_cast<std::size_t>(i / 32)];
      t.warp->deferred->add(t);
      t.memory = &memory;
      t.top->units = this;
    }
    owner.add(&loads);
    owner.add(&stores);
    owner.add(&copies);
    for (int g = 0; g * 128 < owner.size(); ++g) owner.add(tensor_cores.emplace_back(std::make_unique<TensorCore>(first / 128 + g, owner, memory)).get());
    if (owner.blocks() > 1) owner.add(&arriving);
  }
  TensorCore& tensor_core() { return *tensor_cores[static_cast<std::size_t>(block->local(block->thread()) / 128)]; }
  // The block that an address of the cluster's window lies in.
  Units& at(std::uint32_t address) {
    const unsigned rank = address >> kWindow;
    if (rank > all.size()) block->fault(text("%#x is no address of the cluster's %zu blocks", address, all.size()), "the rank in mapa: 0 up to the size of the cluster");
    return rank ? *all[rank - 1] : *this;
  }
  // Its last thread has returned.
  void end() const {
    visits.end();
    if (const Fault left = registers.unfinished(); block->checks() && !left.what.empty()) block->fault(left.what, left.hint, left.place);
  }
  // What to look at where this wait shows by itself why it never ends; else empty.
  std::string why(const Thread& t) const {
    if (t.wait.what == kRegisters) return "the registers of all warpgroups after setmaxnreg: in sum no more than the launch gave them, which __launch_bounds__ decides";
    return std::strcmp(t.wait.what, "mbarrier") ? "" : mbarriers.why(t.wait.object, t.id / 32);
  }
  std::string describe(const Thread& t) const {
    const Wait& wait = t.wait;
    if (!std::strcmp(wait.what, "mbarrier")) return text("parity %d of ", wait.detail) + mbarriers.describe_wait(wait.object, t.id / 32);
    if (!std::strcmp(wait.what, "named barrier")) return named.describe(static_cast<int>(wait.object));
    if (!std::strcmp(wait.what, "barrier.cluster")) return cluster.describe();
    if (wait.what == kTurn) return described(t.visit);
    if (wait.what == kRegisters) return registers.describe(wait.detail);
    return wait.what;
  }
};

}  // namespace cuda_on_host
