// TMA: tensor maps, bulk loads and stores (PTX ISA 9.0, 9.7.9.25-27).
#pragma once
#include <atomic>

#include "barriers.hpp"
#include "global_memory.hpp"

namespace cuda_on_host {

// What fills the 128 opaque bytes of a tensor map here; tensor_map.py writes them.
struct TensorMap {
  static constexpr std::uint32_t kMagic = 0x544D4150;
  unsigned char* address;
  std::int64_t strides[4];                             // bytes, of dimensions 1 to 4; dimension 0 is dense
  std::uint32_t dims[5];                               // innermost first
  std::uint32_t box[5];
  std::uint32_t rank, element_bytes, swizzle_rows, magic;
  int bytes() const { return static_cast<int>(box[0] * box[1] * box[2] * box[3] * box[4] * element_bytes); }   // of a box
};
static_assert(sizeof(TensorMap) <= 128);

using Coordinates = std::array<int, 5>;

// Calls visit(shared address, global pointer, bytes inside the tensor) for each 16-byte chunk of a box.
template <class Visit>
void for_each_chunk(const TensorMap& map, std::uint32_t address, const Coordinates& at, Visit visit) {
  const int row_bytes = static_cast<int>(map.box[0] * map.element_bytes), rows = static_cast<int>(map.box[1] * map.box[2] * map.box[3] * map.box[4]);
  for (int row = 0; row < rows; ++row) {
    bool inside = true;
    unsigned char* base = map.address;
    for (int d = 1, rest = row; d < 5; rest /= static_cast<int>(map.box[d]), ++d) {
      const int index = at[d] + rest % static_cast<int>(map.box[d]);
      inside &= index >= 0 && index < static_cast<int>(map.dims[d]);
      base += index * map.strides[d - 1];
    }
    const std::int64_t width = static_cast<std::int64_t>(map.dims[0]) * map.element_bytes;
    for (int byte = 0; byte < row_bytes; byte += 16) {
      const std::int64_t column = static_cast<std::int64_t>(at[0]) * map.element_bytes + byte;
      const std::int64_t valid = inside && column >= 0 ? std::clamp<std::int64_t>(width - column, 0, 16) : 0;
      visit(swizzle(address + static_cast<std::uint32_t>(row * row_bytes + byte), map.swizzle_rows), base + column, static_cast<int>(valid));
    }
  }
}

inline const TensorMap& checked(const void* pointer, std::uint32_t address, int coordinates) {
  const auto& map = *static_cast<const TensorMap*>(pointer);
  if (map.magic != TensorMap::kMagic) block->fault("TMA through something that is no tensor map", "the argument that the host should fill with one");
  if (static_cast<int>(map.rank) != coordinates) block->fault(text("TMA with %d coordinates, the map has rank %u", coordinates, map.rank), "the instruction's rank");
  if (address % 128)
    block->fault("TMA at " + this_thread().memory->where(static_cast<std::int64_t>(address) - SharedMemory::kBase) + ": not 128-byte aligned", "the offset of the region, or of the column block in it");
  return map;
}

// A one-dimensional copy, in the form of a map.
inline TensorMap plain(const void* address, std::uint32_t in_shared, int bytes) {
  if (in_shared % 16 || bytes % 16 || reinterpret_cast<std::uintptr_t>(address) % 16) block->fault("a bulk copy that is not 16-byte aligned", "both addresses and the size");
  inside(address, static_cast<std::size_t>(bytes), 16);
  const auto size = static_cast<std::uint32_t>(bytes);
  return {static_cast<unsigned char*>(const_cast<void*>(address)), {}, {size, 1, 1, 1, 1}, {size, 1, 1, 1, 1}, 1, 1, 1, TensorMap::kMagic};
}

inline const Array* array_of(const TensorMap& map) { return array_at(reinterpret_cast<std::uintptr_t>(map.address), 1); }

// A load may land at any time from its issue on: its box turns to NaN at once, its data arrive when the scheduler says.
class BulkLoads : public Engine {
 public:
  BulkLoads(Mbarriers& mbarriers, SharedMemory& memory) : mbarriers_(mbarriers), memory_(memory) {}

  // Into this block's memory, perhaps by a thread of another one.
  void issue(std::uint32_t destination, const TensorMap& map, const Coordinates& at, std::uint32_t mbarrier) {
    Load load{map, destination, mbarrier, at, block->clock(), block->chance(), block->place()};
    const int agent = mbarriers_.issue(mbarrier, load.clock);
    const Array* array = array_of(map);
    const GlobalUse reads(*block, Access::copy, agent, load.clock);
    SharedMemory::Writes use(memory_, agent, block->clock(), SharedMemory::Proxy::async);
    use.at(load.clock.time[static_cast<std::size_t>(agent)]);
    for_each_chunk(map, destination, at, [&](std::uint32_t address, const unsigned char* global, int valid) {
      if (array && valid > 0) reads.note(*array, reinterpret_cast<std::uintptr_t>(global), static_cast<std::size_t>(valid));
      std::memset(use.write(address), 0xFF, 16);
    });
    const auto later = [](const Load& a, const Load& b) { return a.lateness < b.lateness; };
    pending_.insert(std::upper_bound(pending_.begin(), pending_.end(), load, later), load);
    block->tick();
  }

  int ready() const override { return static_cast<int>(pending_.size()); }
  void complete(int) override {                        // the least late: others may overtake a load for long
    const Load load = pending_.front();
    pending_.erase(pending_.begin());
    block->engine_at(load.place);
    for_each_chunk(load.map, load.destination, load.at, [&](std::uint32_t address, const unsigned char* global, int valid) {
      unsigned char* chunk = memory_.poke(address);
      if (valid < 16) std::memset(chunk, 0, 16);       // outside the tensor: zeros
      if (valid > 0) std::memcpy(chunk, global, static_cast<std::size_t>(valid));
    });
    if (!block->left(memory_.rank())) block->fault("a copy lands in " + memory_.where(load.destination - SharedMemory::kBase) + ", whose block has returned", "a wait for the copy's barrier by that block");
    mbarriers_.complete(load.mbarrier, load.map.bytes(), load.clock);
  }
  Fault unfinished() const override {
    if (pending_.empty()) return {};
    return {"the block ended with TMA loads in flight", "a wait for the barrier of this load", pending_.front().place};
  }

 private:
  struct Load {
    TensorMap map;
    std::uint32_t destination, mbarrier;
    Coordinates at;
    Clock clock;
    double lateness;
    Place place;
  };
  Mbarriers& mbarriers_;
  SharedMemory& memory_;
  std::vector<Load> pending_;
};

// A store reads shared memory late, and writes global memory later still. Groups are per thread.
class BulkStores : public Engine {
 public:
  explicit BulkStores(SharedMemory& memory) : memory_(memory) {}

  void issue(const TensorMap& map, std::uint32_t source, const Coordinates& at, bool add) {
    const Thread& t = block->thread();
    if (std::any_of(at.begin(), at.end(), [](int coordinate) { return coordinate < 0; }))   // an illegal instruction on an H100, where loads may begin outside
      block->fault("a TMA store at a negative coordinate", "the first row and column of the box: a store may end outside the tensor, not begin before it");
    if (at[0] * static_cast<std::int64_t>(map.element_bytes) % 16)   // likewise
      block->fault(text("a TMA store at column %d of %u-byte elements: not a multiple of 16 bytes", at[0], map.element_bytes), "the first column of the box; ordinary stores for the rest");
    const int agent = agent::bulk_store(t.id / 32);
    memory_.must_hold(source, map.bytes(), agent, "reads");
    Store store{map, source, t.id, -1, at, block->clock(), ++issued_[agent], block->place(), {}, add, false, false};
    store.clock.time[agent] = store.time;
    stores_.push_back(store);
    block->tick();
  }
  void commit() {
    const int thread = block->thread().id, group = groups_[thread]++;
    for (Store& s : stores_)
      if (s.thread == thread && s.group < 0) s.group = group;
  }
  // Until at most `newest` groups of this thread are pending; `read`: pending means its source is not read yet.
  void wait(int newest, bool read) {
    const int thread = block->thread().id;
    for (const int last = groups_[thread] - newest; pending(thread, last, read);) {
      waiting_.push_back(thread);
      block->block_on({"cp.async.bulk.wait_group", 0, newest});
    }
    std::erase_if(stores_, [&](const Store& s) {
      if (s.thread != thread || s.group < 0 || s.group >= groups_[thread] - newest) return false;
      block->thread().stores_seen = std::max(block->thread().stores_seen, s.time);
      return s.written;
    });
  }

  int ready() const override {
    return static_cast<int>(std::count_if(stores_.begin(), stores_.end(), [](const Store& s) { return !s.written; }));
  }
  void complete(int which) override {
    for (Store& s : stores_)
      if (!s.written && which-- == 0) {
        block->engine_at(s.place);
        s.read ? write(s) : read(s);
        block->wake_all(waiting_);
        return;
      }
  }
  Fault unfinished() const override {
    for (const Store& s : stores_)
      if (s.group < 0 || s.group >= waited(s.thread))
        return {"the block ended with TMA stores nobody waited for: their shared memory may be gone", "cp.async.bulk.commit_group and wait_group in the storing thread", s.place};
    return {};
  }

 private:
  struct Store {
    TensorMap map;
    std::uint32_t source;
    int thread, group;
    Coordinates at;
    Clock clock;
    std::uint32_t time;
    Place place;
    std::vector<unsigned char> data;
    bool add, read, written;                           // add: float32, cp.reduce
  };

  bool pending(int thread, int last, bool read) {
    waited_[thread] = std::max(waited_[thread], last);
    return std::any_of(stores_.begin(), stores_.end(), [&](const Store& s) {
      return s.thread == thread && s.group >= 0 && s.group < last && !(read ? s.read : s.written);
    });
  }
  int waited(int thread) const { const auto it = waited_.find(thread); return it == waited_.end() ? 0 : it->second; }

  void read(Store& s) const {
    const int agent = agent::bulk_store(s.thread / 32);
    for_each_chunk(s.map, s.source, s.at, [&](std::uint32_t address, unsigned char*, int valid) {
      if (valid <= 0) return;                          // outside the tensor: dropped, so whatever lies there may
      const unsigned char* chunk = memory_.read(address, 16, agent, s.clock, SharedMemory::Proxy::async);
      s.data.insert(s.data.end(), chunk, chunk + 16);
    });
    s.read = true;
  }
  static void write(Store& s) {
    const unsigned char* chunk = s.data.data();
    const Array* array = array_of(s.map);
    const GlobalUse use(*block, s.add ? Access::atomic : Access::write, agent::bulk_store(s.thread / 32), s.clock);
    for_each_chunk(s.map, s.source, s.at, [&](std::uint32_t, unsigned char* global, int valid) {
      if (valid <= 0) return;
      if (array) use.note(*array, reinterpret_cast<std::uintptr_t>(global), static_cast<std::size_t>(valid));
      if (s.add)
        for (int i = 0; i < valid / 4; ++i) std::atomic_ref(reinterpret_cast<float*>(global)[i]) += reinterpret_cast<const float*>(chunk)[i];
      else std::memcpy(global, chunk, static_cast<std::size_t>(valid));
      chunk += 16;
    });
    s.data.clear();
    s.written = true;
  }

  SharedMemory& memory_;
  std::vector<Store> stores_;
  std::map<int, int> groups_, waited_;
  std::map<int, std::uint32_t> issued_;
  std::vector<int> waiting_;
};

}  // namespace cuda_on_host
