// Clusters (PTX ISA 9.0, 5.2 and 9.7.13.4): blocks that start together and reach each other's shared memory.
#pragma once
#include "barriers.hpp"

namespace cuda_on_host {

// An address in the window of the cluster: its block's rank, from 1, over the address that the block itself knows. Below that is one's own.
constexpr int kWindow = 24;                            // bits
constexpr std::uint32_t in_window(std::uint32_t address, unsigned rank) { return (rank + 1) << kWindow | (address & ((1u << kWindow) - 1)); }
constexpr std::uint32_t within(std::uint32_t address) { return address & ((1u << kWindow) - 1); }

// barrier.cluster: of all threads that have not returned.
class ClusterBarrier {
 public:
  void arrive(bool releases) {
    Thread& t = block->thread();
    if (here_.empty()) here_.resize(static_cast<std::size_t>(block->all()));
    if (std::exchange(here_[static_cast<std::size_t>(t.id)], kArrived)) block->fault("barrier.cluster.arrive a second time, with no wait since", "barrier.cluster.wait after each arrival");
    if (releases) block->release(arriving_);
    ++arrived_;
    complete_if_due();
  }
  void wait() {
    const auto id = static_cast<std::size_t>(block->thread().id);
    if (here_.empty() || !here_[id]) block->fault("barrier.cluster.wait with no arrival before it", "barrier.cluster.arrive by the same thread");
    while (here_[id] == kArrived) {
      waiting_.push_back(block->thread().id);
      block->block_on({"barrier.cluster"});
    }
    here_[id] = 0;
    block->acquire(completed_);
  }
  void returned(const Thread& t) {
    if (!here_.empty() && std::exchange(here_[static_cast<std::size_t>(t.id)], char{}) == kArrived) --arrived_;
    if (arrived_) complete_if_due();
  }
  std::string describe() const { return text("barrier.cluster (%d of %d threads arrived)", arrived_, present()); }

 private:
  static constexpr char kArrived = 1, kComplete = 2;
  static int present() {
    int threads = 0;
    for (int rank = 0; rank < block->blocks(); ++rank) threads += block->left(rank);
    return threads;
  }
  void complete_if_due() {
    if (arrived_ < present()) return;
    completed_ = std::exchange(arriving_, {});
    arrived_ = 0;
    for (char& thread : here_)
      if (thread == kArrived) thread = kComplete;
    block->wake_all(waiting_);
  }

  int arrived_ = 0;
  std::vector<char> here_;                             // by thread
  Clock arriving_, completed_;
  std::vector<int> waiting_;
};

// What other blocks do to one's shared memory must come after its start and before its end, for certain.
class Visits {
 public:
  explicit Visits(const SharedMemory& memory) : memory_(memory) {}

  // The running thread is about to, with an instruction of this name.
  void note(const char* what) {
    const int rank = memory_.rank();
    if (rank == block->thread().rank || !block->checks()) return;
    if (!block->left(rank)) block->fault(text("%s of block %d, which has returned", what, block->number() + rank), kStay);
    const Clock& known = block->clock();
    bool started = false;
    for (int warp = block->first_thread(rank) / 32, end = warp + (block->size() + 31) / 32; warp < end; ++warp) started |= known.time[agent::warp(warp)] > 0;
    if (!started) block->fault(text("%s of block %d, which may not have started yet", what, block->number() + rank), "barrier.cluster.arrive and wait by all threads of both blocks before it");
    last_[static_cast<std::size_t>(block->warp_index())] = {known.time[agent::warp(block->warp_index())], block->place()};
  }
  // The last thread of the block has returned.
  void end() const {
    for (int visitor = 0; visitor < 32 && block->checks(); ++visitor) {
      const Visit& last = last_[static_cast<std::size_t>(visitor)];
      std::uint32_t known = 0;
      for (int thread = block->first_thread(memory_.rank()), end = thread + block->size(); thread < end; thread += 32) known = std::max(known, block->thread(thread).warp->clock.time[agent::warp(visitor)]);
      if (known < last.time)
        block->fault(text("block %d returns without knowing that %s is done with its shared memory", block->number() + memory_.rank(), block->name_of_warp(visitor).c_str()), kStay, last.place);
    }
  }

 private:
  static constexpr const char* kStay = "barrier.cluster.arrive and wait by all threads of both blocks at the end: shared memory goes with its block";
  struct Visit { std::uint32_t time = 0; Place place = 0; };
  const SharedMemory& memory_;
  std::array<Visit, 32> last_{};                       // by the visiting warp
};

// Copies from registers (st.async) or a block's shared memory into that of another one, which complete on an mbarrier there. Each may
// land at any time from its issue on: its bytes turn to NaN at once.
class RemoteCopies : public Engine {
 public:
  RemoteCopies(Mbarriers& mbarriers, SharedMemory& memory) : mbarriers_(mbarriers), memory_(memory) {}

  void issue(std::uint32_t destination, const void* value, std::uint32_t bytes, std::uint32_t mbarrier) {
    Copy copy = begin(destination, bytes, mbarrier);
    copy.value.assign(static_cast<const unsigned char*>(value), static_cast<const unsigned char*>(value) + bytes);
    pending_.push_back(copy);
    block->tick();
  }
  void issue(std::uint32_t destination, SharedMemory& from, std::uint32_t source, std::uint32_t bytes, std::uint32_t mbarrier) {
    if (destination % 16 || source % 16 || bytes % 16) block->fault("a bulk copy that is not 16-byte aligned", "both addresses and the size");
    Copy copy = begin(destination, bytes, mbarrier);
    copy.from = &from, copy.source = source;
    pending_.push_back(copy);
    block->tick();
  }

  int ready() const override { return static_cast<int>(pending_.size()); }
  void complete(int which) override {
    const Copy copy = pending_[static_cast<std::size_t>(which)];
    pending_.erase(pending_.begin() + which);
    block->engine_at(copy.place);
    if (!block->left(memory_.rank())) block->fault("a copy lands in " + memory_.where(copy.destination - SharedMemory::kBase) + ", whose block has returned", "a wait for the copy's barrier by that block");
    if (!copy.from) std::memcpy(memory_.poke(copy.destination), copy.value.data(), copy.bytes);
    for (std::uint32_t at = 0; copy.from && at < copy.bytes; at += SharedMemory::kGranule)
      std::memcpy(memory_.poke(copy.destination + at), copy.from->read(copy.source + at, SharedMemory::kGranule, copy.agent, copy.clock, SharedMemory::Proxy::async), SharedMemory::kGranule);
    mbarriers_.complete(copy.mbarrier, static_cast<int>(copy.bytes), copy.clock);
  }
  Fault unfinished() const override {
    if (pending_.empty()) return {};
    return {"the block ended with copies from another one in flight", "a wait for the barrier of this copy", pending_.front().place};
  }

 private:
  struct Copy {
    std::uint32_t destination, bytes, mbarrier;
    int agent;
    Clock clock;
    Place place;
    std::vector<unsigned char> value;
    SharedMemory* from = nullptr;
    std::uint32_t source = 0;
  };

  Copy begin(std::uint32_t destination, std::uint32_t bytes, std::uint32_t mbarrier) {
    Copy copy{.destination = destination, .bytes = bytes, .mbarrier = mbarrier, .agent = 0, .clock = block->clock(), .place = block->place(), .value = {}};
    copy.agent = mbarriers_.issue(mbarrier, copy.clock);
    const std::uint32_t step = std::min(bytes, SharedMemory::kGranule);
    SharedMemory::Writes use(memory_, copy.agent, block->clock(), SharedMemory::Proxy::async);
    use.at(copy.clock.time[static_cast<std::size_t>(copy.agent)]);
    for (std::uint32_t at = 0; at < bytes; at += step) std::memset(use.write(destination + at, step), 0xFF, step);
    return copy;
  }

  Mbarriers& mbarriers_;
  SharedMemory& memory_;
  std::vector<Copy> pending_;
};

}  // namespace cuda_on_host
