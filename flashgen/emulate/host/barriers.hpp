// mbarriers (PTX ISA 9.0, 9.7.13.15) and named barriers (9.7.13.1).
#pragma once
#include <mutex>

#include "shared_memory.hpp"

namespace cuda_on_host {

class Mbarriers {
 public:
  explicit Mbarriers(SharedMemory& memory) : memory_(memory) {}

  void init(std::uint32_t address, int count) {
    if (address % 8) block->fault("mbarrier.init at " + name(address) + ": not 8-byte aligned", "the offset of the barriers in the memory map");
    if (count < 1) block->fault(text("mbarrier.init with count %d", count), "how many threads arrive at it in a phase");
    const int index = static_cast<int>(block->mbarriers.size());
    if (agent::mbarrier(index) >= agent::copies(0)) block->fault("more mbarriers than the emulator has agents for", "kAgents in block.hpp");
    Barrier& b = barriers_[address];
    if (b.count) block->fault("mbarrier " + name(address) + " initialised twice", "mbarrier.inval before the second, or the offsets of the barriers: do two share an address?", b.place);
    b.count = b.pending = count;
    b.agent = agent::mbarrier(index);
    b.maker = block->warp_index();
    b.made = block->clock().time[agent::warp(b.maker)];
    b.place = block->place();
    block->mbarriers.push_back(name(address));
    std::memcpy(memory_.write(address, 8, agent::warp(b.maker), block->clock(), SharedMemory::Proxy::generic), &kMark, 8);
    memory_.set_live(address, true);
    block->tick();
  }
  // Its bytes may hold something else from now on.
  void invalidate(std::uint32_t address) {
    const Barrier& b = find(address);
    if (!b.waiting.empty() || b.pending != b.count || b.bytes) block->fault(describe(address) + ": invalidated in the middle of a phase", "a barrier of the block after the last wait for it", b.place);
    memory_.set_live(address, false);
    barriers_.erase(address);
    memory_.write(address, 8, agent::warp(block->warp_index()), block->clock(), SharedMemory::Proxy::generic);
  }
  void fence_init() { for (auto& [address, b] : barriers_) b.fenced = true; }

  void arrive(std::uint32_t address) {
    Barrier& b = find(address);
    if (block->checks()) must_know_the_phase_before(address, b);
    const int warp = block->warp_index(), lane = block->lane();
    Arrival& mine = b.arrivals[static_cast<std::size_t>(warp)];
    mine = {block->clock().time[agent::warp(warp)], mine.lane < 0 || mine.lane == lane ? lane : kSeveral};
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
        b.awaited[static_cast<std::size_t>(warp)] = b.phase;
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
    ++b.flying;
    return b.agent;
  }
  void complete(std::uint32_t address, int bytes, const Clock& clock) {
    Barrier& b = find(address);
    b.arriving.join(clock);
    b.bytes -= bytes;
    --b.flying;
    complete_if_due(address, b);
  }

  // A warp waits for one, for ever: perhaps the phase has ended long ago.
  std::string describe_wait(std::uint32_t address, int warp) const {
    const Barrier& b = barriers_.at(address);
    const unsigned missed = b.phase - b.awaited[static_cast<std::size_t>(warp)];
    return describe(address) + (missed > 1 && block->checks() ? text(", of which %u phases ended with no wait of this warp", missed) : "");
  }
  std::string why(std::uint32_t address, int warp) const {
    const Barrier& b = barriers_.at(address);
    if (b.phase - b.awaited[static_cast<std::size_t>(warp)] > 1) return "who ends phases of " + name(address) + " that this warp has not waited for: a way back from the waiting warps to it, or the parity here";
    if (b.pending == 0 && b.bytes > 0) return text("the bytes that mbarrier.arrive.expect_tx announces for %s, %d more than its copies bring, or a copy that was not issued", name(address).c_str(), b.bytes);
    return "";
  }
  std::string describe(std::uint32_t address) const {
    const Barrier& b = barriers_.at(address);
    return name(address) + text(" (phase %u, %d of %d arrivals and %d bytes missing)", b.phase, b.pending, b.count, b.bytes);
  }

 private:
  static constexpr int kSeveral = 32;
  struct Arrival { std::uint32_t time = 0; int lane = -1; };   // of a warp, the last one
  struct Barrier {
    int count = 0, pending = 0, bytes = 0;             // bytes: expected less arrived, may be negative for a while
    unsigned phase = 0;
    int agent = 0;
    std::uint32_t loads = 0;
    int flying = 0;                                    // copies that will complete on it
    bool fenced = false;
    int maker = 0;                                     // the warp that initialised it, its time then, and where
    std::uint32_t made = 0;
    Place place = 0;
    Clock arriving, completed;
    struct Seen { std::uint32_t passed = 0; Place place = 0; };
    std::array<Seen, 32> seen{};                       // by warp: its last wait that found the phase before ended
    std::array<unsigned, 32> awaited{};                // by warp: how many phases had ended then
    std::array<Arrival, 32> arrivals{}, arrived{};     // by warp, in this phase and in the one before
    std::vector<int> waiting;
  };
  static constexpr std::uint64_t kMark = 0x0BADBA11'0BADBA11;   // lies in the barrier's 8 bytes: whoever writes over it is found
  std::string name(std::uint32_t address) const { return memory_.where(static_cast<std::int64_t>(address) - SharedMemory::kBase); }

  Barrier& find(std::uint32_t address) {
    const auto it = barriers_.find(address);
    if (it == barriers_.end()) block->fault("no mbarrier was initialised at " + name(address), "the barrier's offset and index, or its mbarrier.init");
    if (std::memcmp(memory_.poke(address), &kMark, 8) != 0) block->fault("mbarrier " + describe(address) + ": overwritten by data", "the offsets of the regions around it, and who stores there");
    Barrier& b = it->second;
    if (!block->running() || !block->checks()) return b;
    const bool remote = block->thread().rank != memory_.rank();
    if (block->clock().time[agent::warp(b.maker)] < b.made)
      block->fault("mbarrier " + describe(address) + ": used before its initialisation is known to this warp",
                   remote ? "fence.mbarrier_init, then barrier.cluster.arrive and wait by all threads, before the first use" : "__syncthreads between mbarrier.init and the first use", b.place);
    if (remote && !b.fenced) block->fault(describe(address) + ": used by another block with no fence.mbarrier_init after mbarrier.init", "fence.mbarrier_init after the last mbarrier.init", b.place);
    return b;
  }
  // Else it could as well come before that end, and count in that phase.
  void must_know_the_phase_before(std::uint32_t address, const Barrier& b) const {
    const Clock& known = block->clock();
    bool all = known.time[b.agent] >= b.completed.time[b.agent];
    for (int warp = 0; warp < 32; ++warp) all &= known.time[agent::warp(warp)] >= b.completed.time[agent::warp(warp)];
    const Arrival& ours = b.arrived[static_cast<std::size_t>(block->warp_index())];
    const bool by_each_lane = ours.lane >= 0 && ours.lane != block->lane() && ours.time >= block->thread().met;
    if (!all || by_each_lane)
      block->fault(describe(address) + ": arrives without knowing that the phase before has ended" + (by_each_lane ? ", by another lane of its warp" : ""),
                   by_each_lane ? "who arrives: one lane, after __syncwarp, or all of them and a count of as many" : "a wait for that phase, by this thread or by one that it has met since", b.place);
  }
  // Who waits for the end of a phase must see it before the next one ends: the parity is the same again then.
  void must_have_been_seen(std::uint32_t address, const Barrier& b) const {
    for (int warp = 0; warp < 32; ++warp)
      if (const auto& seen = b.seen[static_cast<std::size_t>(warp)]; seen.passed > b.arriving.time[agent::passed(warp)])
        block->fault(describe(address) + text(": its phase ends without knowing that warp %d has seen the end of the one before", warp),
                     "a meeting of those that wait, before one of them arrives for all", seen.place);
  }
  void complete_if_due(std::uint32_t address, Barrier& b) {
    if (b.pending == 0 && block->checks() && (b.bytes < 0 || (b.bytes == 0 && b.flying)))
      block->fault(describe(address) + ": more bytes than announced" + (b.flying ? text(", %d copies still on their way", b.flying) : ""), "the bytes of mbarrier.arrive.expect_tx: the sum of all copies of the phase, whole boxes", b.place);
    if (b.pending != 0 || b.bytes != 0) return;
    if (block->checks()) must_have_been_seen(address, b);
    b.seen = {};
    b.arrived = std::exchange(b.arrivals, {});
    ++b.phase;
    b.pending = b.count;
    b.completed = b.arriving;
    block->wake_all(b.waiting);
  }

  SharedMemory& memory_;
  std::map<std::uint32_t, Barrier> barriers_;
};

// Warps that come to one barrier in parts. Compilers may have several copies of one line, so report.py tells which are faults.
class Suspects {
 public:
  void add(Fault fault) {
    const std::lock_guard alone(in_use_);
    if (all_.size() < 64) all_.push_back(std::move(fault));
  }
  void clear() { all_.clear(); }
  const Fault* at(std::size_t i) const { return i < all_.size() ? &all_[i] : nullptr; }

 private:
  std::mutex in_use_;
  std::vector<Fault> all_;
};
inline Suspects suspects;                              // of the last launch

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
    Place place = 0, place_before = 0;                 // of the first arrival, here and in the generation before
    std::array<Place, 32> places{};                    // by warp: of its first lane
    std::array<std::uint32_t, 32> who{};               // a bit a thread: nobody arrives twice in one generation
    Clock arriving, completed;
    std::array<unsigned, 32> known{};                  // by warp: the last generation whose clock it has acquired
    std::vector<int> waiting;
  };

  Barrier& find(int id) {
    if (id < 0 || id > 15) block->fault(text("named barrier %d", id), "ids are 0 to 15");
    return barriers_[static_cast<std::size_t>(id)];
  }
  // Else it could as well come before that one is complete, and count there.
  void must_know_the_one_before(int id, const Barrier& b) const {
    if (b.known[static_cast<std::size_t>(block->warp_index())] == b.generation) return;
    const Clock& known = block->clock();
    for (int warp = 0; warp < 32; ++warp)
      if (known.time[agent::warp(warp)] < b.completed.time[agent::warp(warp)])
        block->fault(describe(id) + text(": arrives without knowing that the one before is complete, where %s was", block->name_of_warp(warp).c_str()),
                     "two groups of warps with one number? Else a wait between two uses of it", b.place_before);
  }
  void join(int id, int threads) {
    Barrier& b = find(id);
    if (threads % 32 || threads <= 0 || threads > block->size())
      block->fault(text("named barrier %d with %d threads", id, threads), text("a multiple of 32 up to the block's %d", block->size()));
    if (b.arrived && b.threads != threads) block->fault(describe(id) + text(": this thread says %d", threads), "the counts of its bar.sync and bar.arrive", b.place);
    const Thread& t = block->thread();
    if (block->checks()) must_know_the_one_before(id, b);
    if (Place& first = b.places[static_cast<std::size_t>(t.id / 32)]; !b.who[t.id / 32]) first = t.place;
    else if (first != t.place) suspects.add({text("a part of %s comes to named barrier %d here, another part from another place", block->name_of_warp(t.id / 32).c_str(), id),
                                                   "bar.sync and bar.arrive are for whole warps: one after the arms of the branch meet", t.place, first, block->block_of(t), block->local(t)});
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
    b.place_before = b.place;
    b.who = {};
    ++b.generation;
    block->wake_all(b.waiting);
  }

  std::array<Barrier, 16> barriers_;
};

}  // namespace cuda_on_host
