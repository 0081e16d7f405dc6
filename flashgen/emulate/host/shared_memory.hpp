// The block's shared memory: bounds, swizzle, and a shadow that finds races whatever order the scheduler chose.
#pragma once
#include "block.hpp"
#include "shadow.hpp"

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

  SharedMemory(Block& block, std::uint32_t bytes) : block_(block), memory_(bytes + 64, 0xFF), bytes_(bytes), shadow_(bytes / kGranule + 1), writes_(std::make_unique_for_overwrite<OtherWrites[]>(shadow_.size())), more_(std::make_unique_for_overwrite<MoreReads[]>(shadow_.size())), unfenced_(static_cast<std::size_t>(block.size())) {}   // NaN, whatever the type

  // Past the shadow, for what it has already judged.
  unsigned char* poke(std::uint32_t address) { return memory_.data() + (address - kBase); }

  // Into the cache, for a read that comes soon.
  void prefetch(std::uint32_t address) const {
    if (address - kBase < bytes_) __builtin_prefetch(&shadow_[(address - kBase) / kGranule]), __builtin_prefetch(memory_.data() + (address - kBase));
  }

  // The generic proxy is ordinary loads and stores; the asynchronous one is TMA and wgmma.
  enum class Proxy { generic, async };

  // Writes by one agent from one place, which learns nothing between them.
  class Writes {
   public:
    INLINED Writes(SharedMemory& memory, int agent, const Clock& clock, Proxy proxy)
        : memory_(memory), clock_(clock), agent_(static_cast<std::int16_t>(agent)), proxy_(proxy), checks_(memory.block_.checks()),
          whole_{clock.time[agent], agent_, kWhole, static_cast<std::uint8_t>(proxy == Proxy::generic ? memory.block_.lane() : 0), memory.block_.place()}, data_(memory.memory_.data()), shadow_(memory.shadow_.data()), granules_(memory.bytes_ / kGranule) {}

    void come_from(Place place) { whole_.place = place; }

    unsigned char* write(std::uint32_t address, std::uint32_t bytes) const {
      if (bytes == kGranule) return write(address);
      unsigned char* const data = memory_.at(address, bytes, agent_, "writes");
      if (!checks_) return data;
      const auto [g, words] = memory_.place(address, bytes);
      memory_.judge_write(g, words, agent_, clock_);
      Granule& granule = shadow_[g];
      if (granule.uniform) memory_.writes_[g].fill(granule.write);
      granule.uniform = false;
      for (int i = 0; i < 4; ++i)
        if (words >> i & 1) memory_.write_of(g, i) = whole_, memory_.write_of(g, i).words = words;
      memory_.for_more(granule, g, [all = words](Touch& r) {   // whoever comes after this write comes after reads of it all, too: they may stay
        if (!(r.words &= static_cast<std::uint8_t>(~all))) r = {};
      });
      if (proxy_ == Proxy::async) granule.unfenced &= static_cast<std::uint8_t>(~words);
      else memory_.to_fence(g, words);
      return data;
    }
    // A whole granule.
    INLINED unsigned char* write(std::uint32_t address) const {
      const std::uint32_t offset = address - kBase, g = granule_at(offset);
      if (g >= granules_) [[unlikely]] memory_.not_a_granule(address, agent_, "writes");
      if (!checks_) return data_ + offset;
      Granule& granule = shadow_[g];
      bool known = granule.uniform & (granule.write.time + 1 <= clock_.time[granule.write.agent] + 1);   // one, as kNever is no write at all
      known &= all_known(granule.reads, clock_.time.data() + granule.readers * kReaders);   // the agent's own is
      memory_.for_more(granule, g, [&](const Touch& r) { known &= r.time <= clock_.time[r.agent]; });
      if (!known) [[unlikely]] memory_.judge_write(g, kWhole, agent_, clock_);
      const bool again = granule.uniform && granule.unfenced == kWhole && granule.write.is_of(agent_, kWhole) && granule.write.lane == whole_.lane;
      std::fill_n(granule.reads, kReaders, 0);
      granule.write = whole_;                          // made long ago: what is copied right after its members were written waits for them
      granule.uniform = true;
      granule.readers = kNobody;
      granule.more = 0;
      if (proxy_ == Proxy::async) granule.unfenced = 0;
      else if (!again) memory_.to_fence(g, kWhole);     // else the thread remembers it already
      return data_ + offset;
    }

   private:
    SharedMemory& memory_;
    const Clock& clock_;
    std::int16_t agent_;
    Proxy proxy_;
    bool checks_;
    Touch whole_;                                      // of a granule
    unsigned char* data_;                              // of the memory, so that it need not be asked each time
    Granule* shadow_;
    std::uint32_t granules_;
  };
  // Reads, likewise.
  class Reads {
   public:
    INLINED Reads(SharedMemory& memory, int agent, const Clock& clock, Proxy proxy)
        : memory_(memory), clock_(clock), now_(clock.time[agent]), agent_(static_cast<std::int16_t>(agent)), readers_(static_cast<std::uint8_t>(agent / kReaders)), which_(static_cast<std::uint8_t>(agent % kReaders)), place_(PlaceNumbers::of(memory.block_.place())), proxy_(proxy),
          checks_(memory.block_.checks()), data_(memory.memory_.data()), shadow_(memory.shadow_.data()), granules_(memory.bytes_ / kGranule) {}

    const unsigned char* read(std::uint32_t address, std::uint32_t bytes) const {
      if (bytes == kGranule) return read(address);
      unsigned char* const data = memory_.at(address, bytes, agent_, "reads");
      if (!checks_) return data;
      const auto [g, words] = memory_.place(address, bytes);
      judge(shadow_[g], g, words);
      memory_.note_elsewhere(g, now(words));
      return data;
    }
    // A whole granule.
    INLINED const unsigned char* read(std::uint32_t address) const {
      const std::uint32_t offset = address - kBase, g = granule_at(offset);
      if (g >= granules_) [[unlikely]] memory_.not_a_granule(address, agent_, "reads");
      if (!checks_) return data_ + offset;
      Granule& granule = shadow_[g];
      judge(granule, g, kWhole);
      if (granule.readers != readers_) [[unlikely]] {
        if (granule.readers != kNobody) return memory_.note_elsewhere(g, now(kWhole)), data_ + offset;
        granule.readers = readers_;
      }
      granule.reads[which_] = now_;
      granule.read_at[which_] = place_;
      return data_ + offset;
    }

   private:
    INLINED void judge(const Granule& granule, std::uint32_t g, std::uint8_t words) const {
      const Touch& w = granule.write;
      if (!granule.uniform || w.time > clock_.time[w.agent] || (proxy_ == Proxy::async && granule.unfenced & words)) [[unlikely]] memory_.judge_read(g, words, agent_, clock_, proxy_);
    }
    INLINED Touch now(std::uint8_t words) const { return {now_, agent_, words, 0, PlaceNumbers::place(place_)}; }

    SharedMemory& memory_;
    const Clock& clock_;
    std::uint32_t now_;
    std::int16_t agent_;
    std::uint8_t readers_, which_;                     // where a granule keeps the agent's reads
    std::uint16_t place_;                              // its number
    Proxy proxy_;
    bool checks_;
    unsigned char* data_;
    Granule* shadow_;
    std::uint32_t granules_;
  };
  const unsigned char* read(std::uint32_t address, std::uint32_t bytes, int agent, const Clock& clock, Proxy proxy) { return Reads(*this, agent, clock, proxy).read(address, bytes); }
  unsigned char* write(std::uint32_t address, std::uint32_t bytes, int agent, const Clock& clock, Proxy proxy) { return Writes(*this, agent, clock, proxy).write(address, bytes); }

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
  Touch& write_of(std::uint32_t g, int word) { return word == 0 ? shadow_[g].write : writes_[g][static_cast<std::size_t>(word - 1)]; }

  INLINED static std::uint32_t granule_at(std::uint32_t offset) { return std::rotr(offset, 4); }   // more than there are where it is not aligned
  // An access lies inside one granule: up to 16 bytes, aligned.
  INLINED std::pair<std::uint32_t, std::uint8_t> place(std::uint32_t address, std::uint32_t bytes) const {
    const std::uint32_t offset = address - kBase, first = offset % kGranule / 4, last = (offset % kGranule + bytes - 1) / 4;
    if (last > 3 || address & (bytes - 1)) [[unlikely]] misaligned(offset, bytes);
    return {offset / kGranule, static_cast<std::uint8_t>((2u << last) - (1u << first))};
  }

  INLINED unsigned char* at(std::uint32_t address, std::uint32_t bytes, int agent, const char* verb) {
    if (address < kBase || address + bytes > kBase + bytes_) [[unlikely]] outside(address, agent, verb);
    return memory_.data() + (address - kBase);
  }

  [[gnu::noinline]] void judge_read(std::uint32_t g, std::uint8_t words, int agent, const Clock& clock, Proxy proxy) {
    const Granule& granule = shadow_[g];
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Touch& w = write_of(g, i); granule.uniform || (words >> i & 1)) {
        if (w.time == kNever) never_written(agent, g);
        if (w.time > clock.time[w.agent]) race(agent, "reads", g, "written by " + name(w.agent) + " with no wait in between", w);
        if (proxy == Proxy::async && (granule.unfenced & words)) unfenced(agent, g, w);
      }
  }
  [[gnu::noinline]] void judge_write(std::uint32_t g, std::uint8_t words, int agent, const Clock& clock) {
    const Granule& granule = shadow_[g];
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Touch& w = write_of(g, i); granule.uniform || (words >> i & 1))
        if (w.time != kNever && w.time > clock.time[w.agent]) race(agent, "writes", g, "written by " + name(w.agent) + " with no wait in between", w);
    const auto judge = [&](const Touch& r) {
      if ((r.words & words) && r.agent != agent && r.time > clock.time[r.agent])
        race(agent, "writes", g, "still read by " + name(r.agent) + ", nothing orders the two", r);
    };
    for (int i = 0; i < kReaders; ++i)
      if (granule.reads[i]) judge({granule.reads[i], static_cast<std::int16_t>(granule.readers * kReaders + i), kWhole, 0, PlaceNumbers::place(granule.read_at[i])});
    for_more(granule, g, judge);
  }
  [[gnu::noinline]] void to_fence(std::uint32_t g, std::uint8_t words) {
    shadow_[g].unfenced |= words;
    auto& mine = unfenced_[static_cast<std::size_t>(block_.thread().id)];
    if (mine.empty()) mine.reserve(64);
    mine.emplace_back(g, words);
  }

  // When there are too many one is forgotten: a race may be missed, none invented.
  [[gnu::noinline]] void note_elsewhere(std::uint32_t g, const Touch& read) {
    MoreReads& more = more_[g];
    std::uint8_t& used = shadow_[g].more;
    const auto free = [&](std::size_t i) { return !(used >> i & 1) || more[i].words == 0 || more[i].is_of(read.agent, read.words); };
    std::size_t at = 0;
    while (!free(at) && ++at < more.size()) {}
    at %= more.size();
    used |= static_cast<std::uint8_t>(1u << at);
    more[at] = read;
  }
  template <class Visit> INLINED void for_more(const Granule& granule, std::uint32_t g, const Visit& visit) {
    for (unsigned left = granule.more; left; left &= left - 1) visit(more_[g][static_cast<std::size_t>(std::countr_zero(left))]);
  }

#define COLD [[noreturn, gnu::cold, gnu::noinline]]
  COLD void not_a_granule(std::uint32_t address, int agent, const char* verb) const {
    if (address - kBase < bytes_) misaligned(address - kBase, kGranule);
    outside(address, agent, verb);
  }
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
  COLD void unfenced(int agent, std::uint32_t granule, const Touch& other) const {
    block_.fault("race: " + name(agent) + " reads " + name_of(granule * kGranule) + " through the async proxy, stored by " + name(other.agent) + " with no fence.proxy.async after it",
                 "fence.proxy.async by every storing thread, then a barrier, then the asynchronous read", other.place);
  }
  COLD void race(int agent, const char* verb, std::uint32_t granule, const std::string& how, const Touch& other) const {
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
  std::unique_ptr<OtherWrites[]> writes_;
  std::unique_ptr<MoreReads[]> more_;
  std::vector<std::string> mbarriers_;                 // names, by index
  std::vector<std::vector<std::pair<std::uint32_t, std::uint8_t>>> unfenced_;   // by thread
};

inline thread_local constinit SharedMemory* shared = nullptr;

}  // namespace cuda_on_host
