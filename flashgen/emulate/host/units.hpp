// What a block has besides threads and memory.
#pragma once
#include "async_copies.hpp"
#include "bulk_copies.hpp"
#include "tensor_core.hpp"
#include "warp_matrices.hpp"

namespace cuda_on_host {

constexpr const char* kRegisters = "setmaxnreg.inc";

inline LaunchBounds launch_bounds;                     // of the kernel that runs

class RegisterFile {                                   // setmaxnreg: warps trade what the block was launched with, and nothing else
 public:
  void decrease(int count) {
    check(count, count <= current());
    free_ += current() - count;
    block->thread().registers = count;
    block->wake_all(waiting_);
  }
  void increase(int count) {
    check(count, count >= current());
    while (free_ < count - current()) {
      waiting_.push_back(block->thread().id);
      block->block_on({kRegisters, 0, entry()});
    }
    free_ -= count - current();
    block->thread().registers = count;
  }

 private:
  // What __launch_bounds__ lets ptxas take: a warp for each quarter of a multiprocessor is as many as four.
  static int entry() {
    const int threads = launch_bounds.threads ? static_cast<int>(launch_bounds.threads) : block->size();
    return std::min(255, 65536 / ((threads + 127) / 128 * 128 * static_cast<int>(std::max(1u, launch_bounds.blocks))) / 8 * 8);
  }
  static int current() {
    int& registers = block->thread().registers;
    return registers ? registers : registers = entry();
  }
  static void check(int count, bool direction) {
    if (count < 24 || count > 256 || count % 8 || !direction)
      block->fault(text("setmaxnreg to %d from %d registers", count, current()), "24 to 256 in steps of 8, .dec downwards and .inc upwards");
  }
  int free_ = 0;
  std::vector<int> waiting_;
};

struct Units {
  Mbarriers mbarriers;
  NamedBarriers named;
  BulkLoads loads{mbarriers};
  BulkStores stores;
  AsyncCopies copies;
  std::unique_ptr<Deferred[]> deferred;                // by warp
  RegisterFile registers;
  std::vector<std::unique_ptr<TensorCore>> tensor_cores;

  Units(Block& owner, SharedMemory& memory) : copies(owner, memory), deferred(std::make_unique_for_overwrite<Deferred[]>(static_cast<std::size_t>(owner.size() + 31) / 32)) {
    for (int i = 0; i < owner.size(); ++i) {
      Thread& t = owner.thread(i);
      t.warp->deferred = &deferred[static_cast<std::size_t>(i / 32)];
      t.warp->deferred->add(t);
      t.memory = &memory;
      t.top->units = this;
    }
    owner.add(&loads);
    owner.add(&stores);
    owner.add(&copies);
    for (int g = 0; g * 128 < owner.size(); ++g) owner.add(tensor_cores.emplace_back(std::make_unique<TensorCore>(g, owner, memory)).get());
    owner.describe_with([this](const Wait& wait) {
      if (!std::strcmp(wait.what, "mbarrier")) return text("parity %d of ", wait.detail) + mbarriers.describe(wait.object);
      if (!std::strcmp(wait.what, "named barrier")) return named.describe(static_cast<int>(wait.object));
      if (wait.what == kRegisters) return text("setmaxnreg.inc: too few free registers, the launch gave %d a thread", wait.detail);
      return std::string(wait.what);
    });
  }
  TensorCore& tensor_core() { return *tensor_cores[static_cast<std::size_t>(block->thread().id / 128)]; }
};

inline thread_local constinit Units* units = nullptr;

}  // namespace cuda_on_host
