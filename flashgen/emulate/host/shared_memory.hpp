// The block's shared memory: bounds, swizzle, and a shadow that finds races whatever order the scheduler chose.
#pragma once
#include "block.hpp"

namespace cuda_on_host {

struct Region { const char* name; std::uint32_t offset, bytes, count; };   // machine.py fills it from the plan's memory map

inline std::vector<Region> regions;

// `K[1]+0x40` as the memory map names it, else `smem+0x8040`.
inline std::string name_of(std::int64_t offset) {
  for (const Region& r : regions)
    if (offset >= r.offset && offset < static_cast<std::int64_t>(r.offset) + static_cast<std::int64_t>(r.bytes) * r.count) {
      const auto within = static_cast<std::uint32_t>(offset) - r.offset;
      return std::string("`") + r.name + (r.count > 1 ? text("[%u]", within / r.bytes) : "") + (within % r.bytes ? text("+%#x`", within % r.bytes) : "`");
    }
  return offset < 0 ? text("smem-%#x", static_cast<unsigned>(-offset)) : text("smem+%#x", static_cast<unsigned>(offset));
}

// XOR of a 16-byte chunk's index with its row's, on the absolute shared address. `rows` is 8, 4 or 2 for 128, 64 or 32-byte
// swizzle, 1 for none.
constexpr std::uint32_t swizzle(std::uint32_t address, std::uint32_t rows) {
  return address ^ (((address >> 7) & (rows - 1)) << 4);
}

class SharedMemory {
 public:
  static constexpr std::uint32_t kBase = 1024;         // sm_90 keeps the first KiB of the window for itself
  static constexpr std::uint32_t kGranule = 16;        // bytes, the unit of the shadow

  SharedMemory(Block& block, std::uint32_t bytes) : block_(block), memory_(bytes + 64, 0xFF), bytes_(bytes), shadow_(bytes / kGranule + 1), rest_(std::make_unique_for_overwrite<Rest[]>(shadow_.size())), unfenced_(static_cast<std::size_t>(block.size())) {}   // NaN, whatever the type

  // Past the shadow, for what it has already judged.
  unsigned char* poke(std::uint32_t address) { return memory_.data() + (address - kBase); }

  // Into the cache, for a read that comes soon.
  void prefetch(std::uint32_t address) const {
    if (address - kBase < bytes_) __builtin_prefetch(&shadow_[(address - kBase) / kGranule]), __builtin_prefetch(memory_.data() + (address - kBase));
  }

  // The generic proxy is ordinary loads and stores; the asynchronous one is TMA and wgmma.
  enum class Proxy { generic, async };

  const unsigned char* read(std::uint32_t address, std::uint32_t bytes, int agent, const Clock& clock, Proxy proxy) {
    unsigned char* data = at(address, bytes, agent, "reads");
    if (!block_.checks()) return data;
    const auto [g, words] = place(address, bytes);
    Granule& granule = shadow_[g];
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Access& w = write_of(g, i); granule.uniform || (words >> i & 1)) {
        if (w.agent < 0) never_written(agent, g);
        if (w.time > clock.time[w.agent]) race(agent, "reads", g, "written by " + name(w.agent) + " with no wait in between", w);
        if (proxy == Proxy::async && (granule.unfenced & words)) unfenced(agent, g, w);
      }
    note_read(g, clock.time[agent], static_cast<std::int16_t>(agent), words);
    return data;
  }

  unsigned char* write(std::uint32_t address, std::uint32_t bytes, int agent, const Clock& clock, Proxy proxy) {
    unsigned char* data = at(address, bytes, agent, "writes");
    if (!block_.checks()) return data;
    const auto [g, words] = place(address, bytes);
    Granule& granule = shadow_[g];
    const Access now{clock.time[agent], static_cast<std::int16_t>(agent), words, static_cast<std::uint8_t>(proxy == Proxy::generic ? block_.lane() : 0), block_.place()};
    const bool again = granule.uniform && words == kWhole && granule.write.agent == agent && granule.write.lane == now.lane;
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Access& w = write_of(g, i); granule.uniform || (words >> i & 1))
        if (w.agent >= 0 && w.time > clock.time[w.agent]) race(agent, "writes", g, "written by " + name(w.agent) + " with no wait in between", w);
    if (words != kWhole && granule.uniform) rest_[g].writes.fill(granule.write);
    granule.uniform = words == kWhole;
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (words >> i & 1) write_of(g, i) = now;
    std::int8_t kept = 0;
    for (int i = 0; i < granule.readers; ++i) {
      Access r = read_of(g, i);
      if ((r.words & words) && r.agent != agent && r.time > clock.time[r.agent])
        race(agent, "writes", g, "still read by " + name(r.agent) + ", nothing orders the two", r);
      if (r.words &= static_cast<std::uint8_t>(~words)) read_of(g, kept++) = r;
    }
    granule.readers = kept;
    if (proxy == Proxy::async) {
      granule.unfenced &= static_cast<std::uint8_t>(~words);
    } else if (!again || granule.unfenced != kWhole) {   // else the thread remembers it already
      granule.unfenced |= words;
      unfenced_[static_cast<std::size_t>(block_.thread().id)].emplace_back(g, words);
    }
    return data;
  }

  void fence_async_proxy() {                           // by the running thread, for its own stores
    auto& mine = unfenced_[static_cast<std::size_t>(block_.thread().id)];
    for (const auto& [g, words] : mine) shadow_[g].unfenced &= static_cast<std::uint8_t>(~words);
    mine.clear();
  }

  std::string name(int agent) const {
    if (agent::is_warp(agent)) return text("warp %d", agent);
    if (agent::is_tensor_core(agent)) return text("wgmma of warpgroup %d", agent - agent::tensor_core(0));
    if (agent::is_bulk_store(agent)) return text("the TMA store of warp %d", agent - agent::bulk_store(0));
    if (agent::is_bulk_load(agent)) return "the TMA load of " + mbarriers_[static_cast<std::size_t>(agent - agent::mbarrier(0))];
    return text("cp.async of warp %d", agent - agent::copies(0));
  }
  void name_mbarrier(std::uint32_t address) { mbarriers_.push_back(name_of(static_cast<std::int64_t>(address) - kBase)); }

 private:
  static constexpr std::uint8_t kWhole = 15;
  struct Access {
    std::uint32_t time;
    std::int16_t agent;                                // -1: nobody yet
    std::uint8_t words;                                // a bit for each 4 bytes of the granule
    std::uint8_t lane;                                 // of a warp's, that wrote
    Place place;
  };
  struct alignas(64) Granule {                         // a cache line
    std::int8_t readers = 0;
    bool uniform = true;                               // one write covered all words
    std::uint8_t unfenced = 0;                         // words stored by generic code with no proxy fence since
    Access write{0, -1, 0, 0, 0};                        // the last one to the first word; to all if uniform
    std::array<Access, 4> reads;                       // since then
  };
  static_assert(sizeof(Granule) == 64);
  struct Rest {                                        // of a granule, seldom needed
    std::array<Access, 3> writes;                      // the last ones to the other words, unless uniform
    std::array<Access, 4> reads;
  };
  static constexpr int kReads = 8;

  Access& write_of(std::uint32_t g, int word) { return word == 0 ? shadow_[g].write : rest_[g].writes[static_cast<std::size_t>(word - 1)]; }
  Access& read_of(std::uint32_t g, int i) { return i < 4 ? shadow_[g].reads[static_cast<std::size_t>(i)] : rest_[g].reads[static_cast<std::size_t>(i - 4)]; }

  // An access lies inside one granule: up to 16 bytes, aligned.
  std::pair<std::uint32_t, std::uint8_t> place(std::uint32_t address, std::uint32_t bytes) const {
    const std::uint32_t offset = address - kBase, first = offset % kGranule / 4, last = (offset % kGranule + bytes - 1) / 4;
    if (last > 3 || address % bytes) misaligned(offset, bytes);
    return {offset / kGranule, static_cast<std::uint8_t>((2u << last) - (1u << first))};
  }

  unsigned char* at(std::uint32_t address, std::uint32_t bytes, int agent, const char* verb) {
    if (address < kBase || address + bytes > kBase + bytes_) outside(address, agent, verb);
    return memory_.data() + (address - kBase);
  }

  // One entry for an agent and its words. When a granule has more than eight the oldest is forgotten: a race may be missed, none invented.
  void note_read(std::uint32_t g, std::uint32_t time, std::int16_t agent, std::uint8_t words) {
    Granule& granule = shadow_[g];
    for (int i = 0; i < granule.readers; ++i)
      if (Access& r = read_of(g, i); r.agent == agent && r.words == words) {
        r.time = time, r.place = block_.place();
        return;
      }
    if (granule.readers == kReads)
      for (int i = 1; i < kReads; ++i) read_of(g, i - 1) = read_of(g, i);
    else ++granule.readers;
    read_of(g, granule.readers - 1) = {time, agent, words, 0, block_.place()};
  }

#define COLD [[noreturn, gnu::cold, gnu::noinline]]
  COLD void misaligned(std::uint32_t offset, std::uint32_t bytes) const {
    block_.fault(text("%u bytes at ", bytes) + name_of(offset) + ": not aligned", "the address must be a multiple of the access's size");
  }
  COLD void outside(std::uint32_t address, int agent, const char* verb) const {
    block_.fault(name(agent) + " " + verb + " " + name_of(static_cast<std::int64_t>(address) - kBase) + text(", outside the block's %u bytes", bytes_),
                 "the offset of the region, the stage or the row that this address is made of");
  }
  COLD void never_written(int agent, std::uint32_t granule) const {
    block_.fault("race: " + name(agent) + " reads " + name_of(granule * kGranule) + ", never written", "the load of this tile, or the offset that is read");
  }
  COLD void unfenced(int agent, std::uint32_t granule, const Access& other) const {
    block_.fault("race: " + name(agent) + " reads " + name_of(granule * kGranule) + " through the async proxy, stored by " + name(other.agent) + " with no fence.proxy.async after it",
                 "fence.proxy.async by every storing thread, then a barrier, then the asynchronous read", other.place);
  }
  COLD void race(int agent, const char* verb, std::uint32_t granule, const std::string& how, const Access& other) const {
    block_.fault("race: " + name(agent) + " " + verb + " " + name_of(granule * kGranule) + ", " + how, advice(agent, other.agent), other.place);
  }
#undef COLD
  std::string advice(int agent, int other) const {     // for `agent`, that comes after `other` with nothing to order them
    if (agent::is_bulk_load(other)) return "a wait for " + mbarriers_[static_cast<std::size_t>(other - agent::mbarrier(0))] + " with the right parity before this access";
    if (agent::is_bulk_load(agent) || agent::is_tensor_core(other))
      return "the release: wgmma.wait_group first, then the arrival at the empty barrier, and the wait for it (parity included) before this access";
    if (agent::is_bulk_store(other)) return "cp.async.bulk.wait_group.read by the thread that committed the store, then a barrier, before this access";
    if (!agent::is_warp(other)) return "cp.async.wait_group by the copying thread, then a barrier, before this access";
    return "a barrier between the two";
  }

  Block& block_;
  std::vector<unsigned char> memory_;
  std::uint32_t bytes_;
  std::vector<Granule> shadow_;
  std::unique_ptr<Rest[]> rest_;
  std::vector<std::string> mbarriers_;                 // names, by index
  std::vector<std::vector<std::pair<std::uint32_t, std::uint8_t>>> unfenced_;   // by thread
};

inline thread_local constinit SharedMemory* shared = nullptr;

}  // namespace cuda_on_host
