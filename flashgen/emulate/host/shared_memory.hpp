// The block's shared memory: bounds, swizzle, and a shadow that finds races whatever order the scheduler chose.
#pragma once
#include "block.hpp"
#include "proxy_order.hpp"
#include "regions.hpp"
#include "shadow.hpp"

namespace cuda_on_host {

class SharedMemory {
 public:
  static constexpr std::uint32_t kBase = 1024;         // sm_90 keeps the first KiB of the window for itself
  static constexpr std::uint32_t kGranule = 16;        // bytes, the unit of the shadow

  SharedMemory(Block& block, int rank, std::uint32_t bytes)
      : block_(block), rank_(rank), memory_(bytes + 64, 0xFF), bytes_(bytes), shadow_(bytes / kGranule + 1), writes_(std::make_unique_for_overwrite<OtherWrites[]>(shadow_.size())),
        more_(std::make_unique_for_overwrite<MoreReads[]>(shadow_.size())), live_(shadow_.size()), unfenced_(static_cast<std::size_t>(block.all())), reads_unfenced_(block.strict() ? shadow_.size() : 0) {}   // NaN, whatever the type

  // All of a box lies in the block's memory, whichever of its rows then matter.
  void must_hold(std::uint32_t address, int bytes, int agent, const char* verb) { at(address, static_cast<std::uint32_t>(bytes), agent, verb); }

  // Past the shadow, for what it has already judged.
  unsigned char* poke(std::uint32_t address) { return memory_.data() + (address - kBase); }

  // Into the cache, for a read that comes soon.
  void prefetch(std::uint32_t address) const {
    if (address - kBase < bytes_) __builtin_prefetch(&shadow_[(address - kBase) / kGranule]), __builtin_prefetch(memory_.data() + (address - kBase));
  }

  // The generic proxy is ordinary loads and stores; the asynchronous one is TMA and wgmma.
  enum class Proxy { generic, async };
  // Who accesses: an agent; a warp's lane, and since when of that warp's clock it has not met the others. No lane, no such time: not a thread.
  struct Who {
    std::int16_t agent;
    std::uint8_t lane;
    std::uint32_t met;
    bool apart_from(const Touch& other) const { return other.agent == agent && other.lane != lane && other.time >= met; }   // nothing orders the two lanes
  };
  Who who(int agent) const {
    if (!agent::is_warp(agent)) return {static_cast<std::int16_t>(agent), kNoLane, kNever};
    return {static_cast<std::int16_t>(agent), static_cast<std::uint8_t>(block_.lane()), block_.thread().met};
  }

  // Writes by one agent from one place, which learns nothing between them.
  class Writes {
   public:
    INLINED Writes(SharedMemory& memory, int agent, const Clock& clock, Proxy proxy)
        : memory_(memory), clock_(clock), who_(memory.who(agent)), proxy_(proxy), checks_(memory.block_.checks()),
          whole_{clock.time[agent], who_.agent, kWhole, static_cast<std::uint8_t>(proxy == Proxy::generic ? memory.block_.lane() : 0), memory.block_.place()}, data_(memory.memory_.data()), shadow_(memory.shadow_.data()), granules_(memory.bytes_ / kGranule) {}

    void come_from(Place place) { whole_.place = place; }
    void at(std::uint32_t time) { whole_.time = time; }   // the agent's, which is later than what it knows of itself

    unsigned char* write(std::uint32_t address, std::uint32_t bytes) const {
      if (bytes == kGranule) return write(address);
      unsigned char* const data = memory_.at(address, bytes, who_.agent, "writes");
      if (!checks_) return data;
      const auto [g, words] = memory_.place(address, bytes);
      memory_.judge_write(g, words, who_, clock_, proxy_);
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
      if (g >= granules_) [[unlikely]] memory_.not_a_granule(address, who_.agent, "writes");
      if (!checks_) return data_ + offset;
      Granule& granule = shadow_[g];
      bool known = granule.uniform & (granule.write.time + 1 <= clock_.time[granule.write.agent] + 1) & !who_.apart_from(granule.write);   // one, as kNever is no write at all
      known &= all_known(granule.reads, clock_.time.data() + granule.readers * kReaders);   // the agent's own is
      memory_.for_more(granule, g, [&](const Touch& r) { known &= r.time <= clock_.time[r.agent]; });
      if (!known | memory_.block_.strict()) [[unlikely]] memory_.judge_write(g, kWhole, who_, clock_, proxy_);
      const bool again = granule.uniform && granule.unfenced == kWhole && granule.write.is_of(who_.agent, kWhole) && granule.write.lane == whole_.lane;
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
    Who who_;
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
        : memory_(memory), clock_(clock), now_(clock.time[agent]), who_(memory.who(agent)), readers_(static_cast<std::uint8_t>(agent / kReaders)), which_(static_cast<std::uint8_t>(agent % kReaders)), place_(PlaceNumbers::of(memory.block_.place())), proxy_(proxy),
          checks_(memory.block_.checks()), data_(memory.memory_.data()), shadow_(memory.shadow_.data()), granules_(memory.bytes_ / kGranule) {}

    void by(const Thread& lane) { who_.lane = static_cast<std::uint8_t>(lane.lane), who_.met = lane.met; }   // of the same warp, as the ones after it

    const unsigned char* read(std::uint32_t address, std::uint32_t bytes) const {
      if (bytes == kGranule) return read(address);
      unsigned char* const data = memory_.at(address, bytes, who_.agent, "reads");
      if (!checks_) return data;
      const auto [g, words] = memory_.place(address, bytes);
      judge(shadow_[g], g, words);
      memory_.note_elsewhere(g, now(words), who_.met);
      return data;
    }
    // A whole granule.
    INLINED const unsigned char* read(std::uint32_t address) const {
      const std::uint32_t offset = address - kBase, g = granule_at(offset);
      if (g >= granules_) [[unlikely]] memory_.not_a_granule(address, who_.agent, "reads");
      if (!checks_) return data_ + offset;
      Granule& granule = shadow_[g];
      judge(granule, g, kWhole);
      if (granule.readers != readers_) [[unlikely]] {
        if (granule.readers != kNobody) return memory_.note_elsewhere(g, now(kWhole), who_.met), data_ + offset;
        granule.readers = readers_;
      }
      granule.reads[which_] = now_;
      granule.read_at[which_] = place_;
      return data_ + offset;
    }

   private:
    INLINED void judge(const Granule& granule, std::uint32_t g, std::uint8_t words) const {
      const Touch& w = granule.write;
      if (!granule.uniform || w.time > clock_.time[w.agent] || who_.apart_from(w) || (proxy_ == Proxy::async && granule.unfenced & words)) [[unlikely]] memory_.judge_read(g, words, who_, clock_, proxy_);
      if (memory_.block_.strict() && proxy_ == Proxy::generic) [[unlikely]] memory_.reads_unfenced_.note(g, who_.agent * 32 + who_.lane);
    }
    INLINED Touch now(std::uint8_t words) const { return {now_, who_.agent, words, who_.lane, PlaceNumbers::place(place_)}; }

    SharedMemory& memory_;
    const Clock& clock_;
    std::uint32_t now_;
    Who who_;
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
    reads_unfenced_.fence(block_.thread().id);
  }

  std::string name(int agent) const {
    if (agent::is_warp(agent)) return block_.name_of_warp(agent);
    if (agent::is_tensor_core(agent)) return "wgmma of " + block_.name_of_warpgroup(agent - agent::tensor_core(0));
    if (agent::is_bulk_store(agent)) return "the TMA store of " + block_.name_of_warp(agent - agent::bulk_store(0));
    if (agent::is_bulk_load(agent)) return "the TMA load of " + block_.mbarriers[static_cast<std::size_t>(agent - agent::mbarrier(0))];
    return "cp.async of " + block_.name_of_warp(agent - agent::copies(0));
  }
  // `K[1]+0x40` of this block.
  std::string where(std::int64_t offset) const { return name_of(offset) + (block_.blocks() == 1 ? "" : text(" of block %d", block_.number() + rank_)); }
  // The 8 bytes of an mbarrier, that nobody may touch while it lives.
  void set_live(std::uint32_t address, bool live) {
    const auto [g, words] = place(address, 8);
    live_[g] = static_cast<std::uint8_t>(live ? live_[g] | words : live_[g] & ~words);
  }
  int rank() const { return rank_; }

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

  [[gnu::noinline]] void judge_read(std::uint32_t g, std::uint8_t words, const Who& who, const Clock& clock, Proxy proxy) {
    const Granule& granule = shadow_[g];
    if (live_[g] & words) overwritten(who.agent, "reads", g, live_[g] & words);
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Touch& w = write_of(g, i); granule.uniform || (words >> i & 1)) {
        if (w.time == kNever) never_written(who.agent, g);
        if (w.time > clock.time[w.agent]) race(who.agent, "reads", g, "written by " + name(w.agent) + " with no wait in between", w);
        if (who.apart_from(w)) race_of_lanes(who, "reads", g, "written", w);
        if (proxy == Proxy::async && (granule.unfenced & words)) unfenced(who.agent, g, w);
      }
  }
  [[gnu::noinline]] void judge_write(std::uint32_t g, std::uint8_t words, const Who& who, const Clock& clock, Proxy proxy) {
    const Granule& granule = shadow_[g];
    if (live_[g] & words) overwritten(who.agent, "writes", g, live_[g] & words);
    for (int i = 0; i < (granule.uniform ? 1 : 4); ++i)
      if (const Touch& w = write_of(g, i); granule.uniform || (words >> i & 1)) {
        if (w.time != kNever && w.time > clock.time[w.agent]) race(who.agent, "writes", g, "written by " + name(w.agent) + " with no wait in between", w);
        if (w.time != kNever && who.apart_from(w) && w.place != block_.place()) race_of_lanes(who, "writes", g, "written", w);   // of lanes that do one store, one wins
      }
    const auto judge = [&](const Touch& r) {
      if ((r.words & words) && r.agent != who.agent && r.time > clock.time[r.agent])
        race(who.agent, "writes", g, "still read by " + name(r.agent) + ", nothing orders the two", r);
    };
    for (int i = 0; i < kReaders; ++i)
      if (granule.reads[i]) judge({granule.reads[i], static_cast<std::int16_t>(granule.readers * kReaders + i), kWhole, 0, PlaceNumbers::place(granule.read_at[i])});
    for_more(granule, g, [&](const Touch& r) {
      judge(r);
      if ((r.words & words) && who.apart_from(r)) race_of_lanes(who, "writes", g, "read", r);
    });
    if (proxy == Proxy::async && block_.strict()) judge_strictly(who.agent, g);
  }
  [[gnu::noinline]] void to_fence(std::uint32_t g, std::uint8_t words) {
    shadow_[g].unfenced |= words;
    auto& mine = unfenced_[static_cast<std::size_t>(block_.thread().id)];
    if (mine.empty()) mine.reserve(64);
    mine.emplace_back(g, words);
  }
  void judge_strictly(int agent, std::uint32_t g) {
    if (const int thread = reads_unfenced_.of(g); thread >= 0)
      block_.fault("proxy order: " + name(agent) + " writes " + where(g * kGranule) + " through the async proxy, read by " + name(thread / 32) + " with no fence.proxy.async after it",
                   "fence.proxy.async by every thread that has read, then the release of the bytes");
  }

  // When there are too many one is forgotten: a race may be missed, none invented.
  [[gnu::noinline]] void note_elsewhere(std::uint32_t g, const Touch& read, std::uint32_t met) {
    MoreReads& more = more_[g];
    std::uint8_t& used = shadow_[g].more;
    const auto free = [&](std::size_t i) { return !(used >> i & 1) || more[i].words == 0 || more[i].is_of(read.agent, read.words); };
    std::size_t at = 0;
    while (!free(at) && ++at < more.size()) {}
    at %= more.size();
    const bool several = used >> at & 1 && more[at].is_of(read.agent, read.words) && more[at].lane != read.lane && more[at].time >= met;
    used |= static_cast<std::uint8_t>(1u << at);
    more[at] = read;
    if (several) more[at].lane = kNoLane;
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
    block_.fault(text("%u bytes at ", bytes) + where(offset) + ": not aligned", "the address must be a multiple of the access's size");
  }
  COLD void outside(std::uint32_t address, int agent, const char* verb) const {
    block_.fault(name(agent) + " " + verb + " " + where(static_cast<std::int64_t>(address) - kBase) + text(", outside the block's %u bytes", bytes_),
                 "the offset of the region, the stage or the row that this address is made of");
  }
  COLD void never_written(int agent, std::uint32_t granule) const {
    block_.fault("race: " + name(agent) + " reads " + where(granule * kGranule) + ", never written", "the load of this tile, or the offset that is read");
  }
  COLD void unfenced(int agent, std::uint32_t granule, const Touch& other) const {
    block_.fault("race: " + name(agent) + " reads " + where(granule * kGranule) + " through the async proxy, stored by " + name(other.agent) + " with no fence.proxy.async after it",
                 "fence.proxy.async by every storing thread, then a barrier, then the asynchronous read", other.place);
  }
  COLD void race(int agent, const char* verb, std::uint32_t granule, const std::string& how, const Touch& other) const {
    block_.fault("race: " + name(agent) + " " + verb + " " + where(granule * kGranule) + ", " + how, advice(agent, other), other.place);
  }
  COLD void race_of_lanes(const Who& who, const char* verb, std::uint32_t granule, const char* how, const Touch& other) const {
    const std::string theirs = other.lane == kNoLane ? "other lanes" : text("lane %d", other.lane);
    block_.fault("race: " + text("lane %d of ", who.lane) + name(who.agent) + " " + verb + " " + where(granule * kGranule) + ", " + how + " by " + theirs + " of the same warp with no __syncwarp in between",
                 "__syncwarp between the two, or one lane that does both; if each lane was to have its own bytes, the index", other.place);
  }
  COLD void overwritten(int agent, const char* verb, std::uint32_t granule, unsigned words) const {
    block_.fault(name(agent) + " " + verb + " the bytes of a live mbarrier, at " + where(granule * kGranule + 4 * std::countr_zero(words)), "mbarrier.inval once all its waiters have passed, then a barrier; else the offsets of the regions around it");
  }
#undef COLD
  std::string advice(int agent, const Touch& past) const {   // for `agent`, that comes after `past` with nothing to order them
    const int other = past.agent;
    if (agent::is_warp(agent) && agent::is_bulk_load(other)) {
      const std::string wait = "a wait for " + block_.mbarriers[static_cast<std::size_t>(other - agent::mbarrier(0))] + " with the right parity before this access";
      const Warp::Release& early = block_.warp(agent).released;
      return early.place && block_.warp(agent).clock.time[other] > 0 ? wait + text("; if these are the bytes of an earlier wait, they were released too early, at <%x>", early.place) : wait;
    }
    if (agent::is_bulk_load(other)) return "a wait for " + block_.mbarriers[static_cast<std::size_t>(other - agent::mbarrier(0))] + " with the right parity before this access";
    if (agent::is_bulk_load(agent) || agent::is_tensor_core(other))
      return "the release: wgmma.wait_group first, then the arrival at the empty barrier, and the wait for it (parity included) before this access";
    if (agent::is_bulk_store(other)) return "cp.async.bulk.wait_group.read by the thread that committed the store, then a barrier, before this access";
    if (!agent::is_warp(other)) return "cp.async.wait_group by the copying thread, then a barrier, before this access";
    if (const Warp& theirs = block_.warp(other); past.lane != kNoLane && theirs.released.lane != past.lane && theirs.released.time + 1 == past.time && theirs.met <= theirs.released.time)
      return text("__syncwarp before lane %d releases for its warp, at <%x>: the access by lane %d is not gathered; else a barrier between the two", theirs.released.lane, theirs.released.place, past.lane);
    return "a barrier between the two";
  }

  Block& block_;
  int rank_;                                           // of the block whose memory it is
  std::vector<unsigned char> memory_;
  std::uint32_t bytes_;
  std::vector<Granule> shadow_;
  std::unique_ptr<OtherWrites[]> writes_;
  std::unique_ptr<MoreReads[]> more_;
  std::vector<std::uint8_t> live_;                     // by granule: a bit for each word of an mbarrier
  std::vector<std::vector<std::pair<std::uint32_t, std::uint8_t>>> unfenced_;   // by thread
  UnfencedReads reads_unfenced_;
};

}  // namespace cuda_on_host
