// Who did what when, to the race checker.
#pragma once
#include <array>
#include <cstdint>

namespace cuda_on_host {

// Logical time for the race checker (vector clocks). Agents are warps and asynchronous units; an access is (agent, its time
// then), and it happened before whoever's clock has reached that time.
constexpr int kAgents = 200;
struct Clock {
  std::array<std::uint32_t, kAgents> time{};
  void join(const Clock& other) {
    for (int i = 0; i < kAgents; ++i) time[i] = time[i] < other.time[i] ? other.time[i] : time[i];
  }
};
namespace agent {
constexpr int warp(int index) { return index; }
constexpr int tensor_core(int warpgroup) { return 32 + warpgroup; }
constexpr int bulk_store(int warp) { return 40 + warp; }
constexpr int mbarrier(int index) { return 72 + index; }   // the bulk loads that report to it
constexpr int copies(int warp) { return 128 + warp; }      // cp.async
constexpr int others = 160;                               // how much of the other blocks is known: global_order.hpp
constexpr int kernel_ahead = 161;                          // 1 once griddepcontrol.wait has returned
constexpr int passed(int warp) { return 168 + warp; }      // how many waits for mbarriers a warp has left behind: order, but not of memory
constexpr bool is_warp(int id) { return id < 32; }
constexpr bool is_tensor_core(int id) { return id >= 32 && id < 40; }
constexpr bool is_bulk_store(int id) { return id >= 40 && id < 72; }
constexpr bool is_bulk_load(int id) { return id >= 72 && id < 128; }
}  // namespace agent

}  // namespace cuda_on_host
