// setmaxnreg (PTX ISA 9.0, 9.7.19.5): warpgroups trade what their block was launched with, and nothing else.
#pragma once
#include "block.hpp"

namespace cuda_on_host {

constexpr const char* kRegisters = "setmaxnreg.inc";

inline LaunchBounds launch_bounds;                     // of the kernel that runs

class RegisterFile {
 public:
  void decrease(int count) {
    check(count, count <= current());
    agree(count);
    free_ += current() - count;
    block->thread().registers = count;
    block->wake_all(waiting_);
  }
  void increase(int count) {
    check(count, count >= current());
    agree(count);
    while (free_ < count - current()) {
      waiting_.push_back(block->thread().id);
      block->block_on({kRegisters, 0, count});
    }
    free_ -= count - current();
    block->thread().registers = count;
  }
  std::string describe(int count) const { return text("setmaxnreg.inc to %d: too few free registers, the launch gave %d a thread", count, entry()); }
  Fault unfinished() const {
    for (const auto& [warpgroup, turns] : turns_)
      for (const Turn& turn : turns)
        if (turn.warps != kAll) return {"setmaxnreg by a part of a warpgroup", "all four warps of it: the instruction is the warpgroup's", turn.place};
    return {};
  }

 private:
  static constexpr unsigned kAll = 15;
  struct Turn { int count; unsigned warps; std::array<std::uint32_t, 4> times; Place place; };   // one setmaxnreg of a warpgroup

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
  // The warps of a warpgroup say the same, and meet before they say the next.
  void agree(int count) {
    Thread& t = block->thread();
    auto& turns = turns_[t.id / 128];
    const auto index = static_cast<std::size_t>(t.register_changes++);
    const auto warp = static_cast<std::size_t>(t.id / 32 % 4);
    if (index == turns.size()) turns.push_back({count, 0, {}, block->place()});
    Turn& turn = turns[index];
    if (turn.count != count) block->fault(text("setmaxnreg to %d, to %d by another warp of the warpgroup", count, turn.count), "the same number in all four warps", turn.place);
    if (!(turn.warps >> warp & 1)) {
      if (index > 0 && block->checks()) must_have_met(turns[index - 1], t.id / 128);
      turn.warps |= 1u << warp;
      turn.times[warp] = block->clock().time[agent::warp(block->warp_index())];
      block->tick();
    }
  }
  static void must_have_met(const Turn& before, int warpgroup) {
    for (int warp = 0; warp < 4; ++warp)
      if (!(before.warps >> warp & 1) || block->clock().time[agent::warp(4 * warpgroup + warp)] < before.times[static_cast<std::size_t>(warp)])
        block->fault("setmaxnreg a second time, not known to follow the first in all four warps", "a barrier of the warpgroup between the two", before.place);
  }

  int free_ = 0;
  std::vector<int> waiting_;
  std::map<int, std::vector<Turn>> turns_;             // by warpgroup
};

}  // namespace cuda_on_host
