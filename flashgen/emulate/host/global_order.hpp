// Who knows what about the other blocks of a launch: what an atomic hands on, between a __threadfence before it and one after it.
#pragma once
#include <unordered_map>

#include "block.hpp"

namespace cuda_on_host {

// What has happened for certain in other blocks, as the clocks with which they handed it on.
class Knowledge {
 public:
  bool empty() const { return clocks_.empty(); }
  bool reaches(int block, int agent, std::uint32_t time) const {
    const auto it = clocks_.find(block);
    return it != clocks_.end() && it->second->time[static_cast<std::size_t>(agent)] >= time;
  }
  const Clock* of(int block) const {
    const auto it = clocks_.find(block);
    return it == clocks_.end() ? nullptr : it->second.get();
  }
  void join(int block, const std::shared_ptr<const Clock>& clock) {
    auto& mine = clocks_[block];
    if (!mine) mine = clock;
    if (mine == clock) return;
    auto both = std::make_shared<Clock>(*mine);
    both->join(*clock);
    mine = std::move(both);
  }
  void join(const Knowledge& other) { for (const auto& [block, clock] : other.clocks_) join(block, clock); }

 private:
  std::map<int, std::shared_ptr<const Clock>> clocks_;
};

inline std::unordered_map<const void*, Knowledge> handed_on;   // by the address of the atomic; of a launch. Atomics of blocks never run side by side

// A block's side of it. Its warps' clocks count, under agent::others, how much of `learned_` they may rely on.
class GlobalOrder {
 public:
  void fence() { acquire(), release(); }
  void acquire() {                                     // what the running warp's atomics have observed, it may rely on
    if (Knowledge& observed = observed_[static_cast<std::size_t>(block->warp_index())]; !observed.empty()) {
      learned_.push_back(learned_.back());
      if (const Clock* own = observed.of(block->number())) block->acquire(*own);   // of warps of this block, too
      learned_.back().join(std::exchange(observed, {}));
      block->clock().time[agent::others] = static_cast<std::uint32_t>(learned_.size() - 1);
    }
  }
  void release() {                                     // what the running warp knows, its atomics may hand on
    block->release(fenced_);
    ++fences_;
  }
  void atomic(const void* address) { observe(address), hand_on(address); }
  void observe(const void* address) {
    if (const auto it = handed_on.find(address); it != handed_on.end()) observed_[static_cast<std::size_t>(block->warp_index())].join(it->second);
  }
  // Hands on what the warp knows now and somebody has fenced: of the writing threads, before the barrier, or of this one after it.
  void hand_on(const void* address) {
    if (!fences_) return;
    const auto known = std::make_shared<Clock>(block->clock());
    for (std::size_t i = 0; i < kAgents; ++i) known->time[i] = std::min(known->time[i], fenced_.time[i]);
    Knowledge& all = handed_on[address];
    all.join(learned_[block->clock().time[agent::others]]);
    all.join(block->number(), known);
  }
  // Did this happen in another block before what is done with this clock? What the running warp's atomics observed counts before a
  // fence for what it writes, which nobody does speculatively, not for what it reads.
  bool knows(int other, int agent, std::uint32_t time, const Clock& clock, bool writes) const {
    if (learned_[clock.time[agent::others]].reaches(other, agent, time)) return true;
    return writes && block->running() && observed_[static_cast<std::size_t>(block->warp_index())].reaches(other, agent, time);
  }

 private:
  std::vector<Knowledge> learned_{1};
  std::array<Knowledge, 32> observed_;                 // by warp: through its atomics since its last fence
  Clock fenced_;                                       // what has reached the other blocks, if they have a way to know
  int fences_ = 0;
};

inline thread_local constinit GlobalOrder* order = nullptr;                   // of the block whose turn it is

}  // namespace cuda_on_host
