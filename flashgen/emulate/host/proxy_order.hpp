// Ordinary reads that no proxy fence has followed, where the written rule counts: before a copy into the same bytes there must be one.
// Many kernels that are taken for right do not comply.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace cuda_on_host {

class UnfencedReads {
 public:
  explicit UnfencedReads(std::size_t granules) : threads_(granules) {}

  void note(std::uint32_t granule, int thread) {
    auto& all = threads_[granule];
    if (std::find(all.begin(), all.end(), thread) == all.end()) all.push_back(thread);
  }
  void fence(int thread) {
    for (auto& all : threads_) std::erase(all, thread);
  }
  // A thread that has read it, -1 if none.
  int of(std::uint32_t granule) const { return threads_[granule].empty() ? -1 : threads_[granule].front(); }

 private:
  std::vector<std::vector<int>> threads_;              // by granule
};

}  // namespace cuda_on_host
