// mbarriers (PTX ISA 9.0, 9.7.13.15) and named barriers (9.7.13.1).
#pragma once
#include "shared_memory.hpp"

namespace cuda_on_host {

class Mbarriers {
 public:
  void init(std::uint32_t address, int count) {
    if (address % 8) block->fault("mbarrier.init at " + name(address) + ": not 8-byte aligned", "the offset of the barriers in the memory map");
    if (count < 1) block->fault(text("mbarrier.init with count %d", count), "how many threads arrive at it in a phase");
    const int index = static_cast<int>(barriers_.size());
    if (agent::mbarrier(index) >= agent::copies(0)) block->fault("more mbarriers than the emulator has agents for", "kAgents in block.hpp");
    Barrier& b = barriers_[address];
    if (b.count) block->fault("mbarrier " + name(address) + " initialised twice", "the offsets of the barriers: do two share an address?", b.place);
    b.count = b.pending = count;
    b.agent = agent::mbarrier(index);
    b.maker = block->warp_index();
    b.made = block->clock().time[agent::warp(b.maker)];
    b.place = block->place();
    shared->name_mbarrier(address);
    std::memcpy(shared->write(address, 8, agent::warp(b.maker), block->clock(), SharedMemory::Proxy::generic), &kMark, 8);
    block->tick();
  }
  void fence_init() { for (auto& [address, b] : barriers_) b.fenced = true; }

  void arrive(std::uint32_t address) {
    Barrier& b = find(address);
    if (block->checks()) must_know_the_phase_before(address, b);
    block->release(b.arriving);
    if (--b.pending < 0) block->fault(describe(address) + ": one arrival more than its count", "the count in mbarrier.init, and which threads arrive", b.place);
    complete_if_due(address, b);
  }
  void expect(std::uint32_t address, int bytes) { find(address).bytes += bytes; }

  void wait(std::uint32_t address, int parity) {
    if (parity != 0 && parity != 1) block->fault(text("a wait for parity %d of ", parity) + name(address), "parities are 0 and 1");
    for (;;) {
      Barrier& b = find(address);
      if ((b.phase & 1u) != static_cast<unsigned>(parity)) {
        const int warp = block->warp_index();
        auto& seen = b.seen[static_cast<std::size_t>(warp)];
        if (seen.passed) block->acquire_own(b.completed);
        else block->acquire(b.completed);
        seen = {++block->warp().clock.time[agent::passed(warp)], block->place()};
        return;
      }
      b.waiting.push_back(block->thread().id);
      block->block_on({"mbarrier", address, parity});
    }
  }

  // For a bulk load: who it is to the race checker, its time set in its clock.
  int issue(std::uint32_t address, Clock& clock) {
    Barrier& b = find(address);
    if (!b.fenced && block->checks())
      block->fault(describe(address) + ": used by TMA with no fence.mbarrier_init after mbarrier.init", "fence.mbarrier_init after the last mbarrier.init", b.place);
    clock.time[b.agent] = ++b.loads;
    return b.agent;
  }
  void complete(std::uint32_t address, int bytes, const Clock& clock) {
    Barrier& b = find(address);
    b.arriving.join(clock);
    b.bytes -= bytes;
    complete_if_due(address, b);
  }

  std::string describe(std::uint32_t address) const {
    const Barrier& b = barriers_.at(address);
    return name(address) + text(" (phase %u, %d of %d arrivals and %d bytes missing)", b.phase, b.pending, b.count, b.bytes);
  }

 private:
  struct Barrier {
    int count = 0, pending = 0, bytes = 0;             // bytes: expected less arrived, may be negative for a while
    unsigned phase = 0;
    int agent = 0;
    std::uint32_t loads = 0;
    bool fenced = false;
    int maker = 0;                                     // the warp that initialised it, its time then, and where
    std::uint32_t made = 0;
    Place place = 0;
    Clock arriving, completed;
    struct Seen { std::uint32_t passed = 0; Place place = 0; };
    std::array<Seen, 32> seen{};                       // by warp: its last wait that found the phase before ended
    std::vector<int> waiting;
  };
  static constexpr std::uint64_t kMark = 0x0BADBA11'0BADBA11;   // lies in the barrier's 8 bytes: whoever writes over it is found
  static std::string name(std::uint32_t address) { return name_of(static_cast<std::int64_t>(address) - SharedMemory::kBase); }

  Barrier& find(std::uint32_t address) {
    const auto it = barriers_.find(address);
    if (it == barriers_.end()) block->fault("no mbarrier was initialised at " + name(address), "the barrier's offset and index, or its mbarrier.init");
    if (std::memcmp(shared->poke(address), &kMark, 8) != 0) block->fault("mbarrier " + describe(address) + ": overwritten by data", "the offsets of the regions around it, and who stores there");
    Barrier& b = it->second;
    if (block->running() && block->checks() && block->clock().time[agent::warp(b.maker)] < b.made)
      block->fault("mbarrier " + describe(address) + ": used before its initialisation is known to this warp", "__syncthreads between mbarrier.init and the first use", b.place);
    return b;
  }
  // Else it could as well come before that end, and count in that phase.
  void must_know_the_phase_before(std::uint32_t address, const Barrier& b) const {
    const Clock& known = block->clock();
    bool all = known.time[b.agent] >= b.completed.time[b.agent];
    for (int warp = 0; warp < 32; ++warp) all &= known.time[agent::warp(warp)] >= b.completed.time[agent::warp(warp)];
    if (!all)
      block->fault(describe(address) + ": arrives without knowing that the phase before has ended", "a wait for that phase, by this thread or by one that it has met since", b.place);
  }
  // Who waits for the end of a phase must see it before the next one ends: the parity is the same again then.
  void must_have_been_seen(std::uint32_t address, const Barrier& b) const {
    for (int warp = 0; warp < 32; ++warp)
      if (const auto& seen = b.seen[static_cast<std::size_t>(warp)]; seen.passed > b.arriving.time[agent::passed(warp)])
        block->fault(describe(address) + text(": its phase ends without knowing that warp %d has seen the end of the one before", warp),
                     "a meeting of those that wait, before one of them arrives for all", seen.place);
  }
  void complete_if_due(std::uint32_t address, Barrier& b) {
    if (b.pending != 0 || b.bytes != 0) return;
    if (block->checks()) must_have_been_seen(address, b);
    b.seen = {};
    ++b.phase;
    b.pending = b.count;
    b.completed = b.arriving;
    block->wake_all(b.waiting);
  }

  std::map<std::uint32_t, Barrier> barriers_;
};

class NamedBarriers {
 public:
  void arrive(int id, int threads) { join(id, threads); }
  void sync(int id, int threads) {
    Barrier& b = find(id);
    const unsigned generation = b.generation;
    join(id, threads);
    while (b.generation == generation) {
      b.waiting.push_back(block->thread().id);
      block->block_on({"named barrier", static_cast<std::uint32_t>(id), threads});
    }
    unsigned& known = b.known[static_cast<std::size_t>(block->warp_index())];
    if (std::exchange(known, b.generation) == b.generation) block->acquire_own(b.completed);
    else block->acquire(b.completed);
  }
  std::string describe(int id) const {
    const Barrier& b = barriers_[static_cast<std::size_t>(id)];
    return text("named barrier %d (%d of %d threads arrived)", id, b.arrived, b.threads);
  }

 private:
  struct Barrier {
    int threads = 0, arrived = 0;
    unsigned generation = 0;
    Place place = 0;                                   // of the first arrival
    std::array<std::uint32_t, 32> who{};               // a bit a thread: nobody arrives twice in one generation
    Clock arriving, completed;
    std::array<unsigned, 32> known{};                  // by warp: the last generation whose clock it has acquired
    std::vector<int> waiting;
  };

  Barrier& find(int id) {
    if (id < 0 || id > 15) block->fault(text("named barrier %d", id), "ids are 0 to 15");
    return barriers_[static_cast<std::size_t>(id)];
  }
  void join(int id, int threads) {
    Barrier& b = find(id);
    if (threads % 32 || threads <= 0 || threads > block->size())
      block->fault(text("named barrier %d with %d threads", id, threads), text("a multiple of 32 up to the block's %d", block->size()));
    if (b.arrived && b.threads != threads) block->fault(describe(id) + text(": this thread says %d", threads), "the counts of its bar.sync and bar.arrive", b.place);
    const Thread& t = block->thread();
    if (b.who[t.id / 32] >> (t.id % 32) & 1)
      block->fault(describe(id) + ": this thread arrives a second time", "who else should arrive first: two warpgroups out of step, or one id for two uses", b.place);
    if (b.arrived == 0) b.place = block->place();
    b.threads = threads;
    b.who[t.id / 32] |= 1u << (t.id % 32);
    block->release(b.arriving);
    if (++b.arrived < threads) return;
    b.completed = b.arriving;
    b.arriving = {};
    b.arrived = 0;
    b.who = {};
    ++b.generation;
    block->wake_all(b.waiting);
  }

  std::array<Barrier, 16> barriers_;
};

}  // namespace cuda_on_host
