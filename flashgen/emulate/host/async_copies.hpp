// cp.async (PTX ISA 9.0, 9.7.9.25.3): every thread's own copies of 4, 8 or 16 bytes, in groups that the thread waits for.
#pragma once
#include <span>

#include "global_memory.hpp"
#include "shared_memory.hpp"

namespace cuda_on_host {

// A copy may land at any time from its issue on: its bytes turn to NaN at once, its data arrive when the scheduler says. The thread
// knows of it after its own wait_group, others after a barrier besides. A warp's copies are one agent whose time counts groups:
// that one lane has waited says nothing about a copy of a later group, but of the same group's it does, whichever lane issued them.
class AsyncCopies : public Engine {
 public:
  AsyncCopies(Block& block, SharedMemory& memory) : block_(block), memory_(memory), queues_(static_cast<std::size_t>(block.all())) {}

  // Of the running thread. It is judged with its other ones, before the thread does anything else that matters: see settle().
  INLINED void leave(StackTop& top, Place place, std::uint32_t destination, const void* source, int bytes, int source_bytes, bool past_l1) {
    left_[static_cast<std::size_t>(top.copies)] = {source, destination, place, 0, source_bytes, 0, static_cast<std::int16_t>(bytes), past_l1};
    if (++top.copies == kLeft) [[unlikely]] settle(*top.thread);
  }
  // Issues what the running thread has left.
  [[gnu::noinline]] void settle(Thread& t) {
    const std::span left(left_.data(), static_cast<std::size_t>(std::exchange(t.top->copies, 0)));
    Queue& queue = queue_of(t.id);
    const int agent = agent::copies(t.id / 32);
    Clock& clock = block_.clock();
    clock.time[agent] = static_cast<std::uint32_t>(queue.groups + 1);
    SharedMemory::Writes writes(memory_, agent, clock, SharedMemory::Proxy::generic);
    for (Copy& copy : left) {
      t.place = copy.place;
      const auto size = static_cast<std::uint32_t>(copy.bytes);
      check(copy);
      const Array* const array = array_of(copy);
      if (array) after_the_kernel_ahead(block_, t.kernel_ahead_seen != 0, *array, reinterpret_cast<std::uintptr_t>(copy.source));
      if (array && array->shadow) note_read(*array, copy, agent, clock);
      writes.come_from(copy.place);
      if (size == SharedMemory::kGranule) std::memset(writes.write(copy.destination), 0xFF, SharedMemory::kGranule);
      else std::memset(writes.write(copy.destination, size), 0xFF, size);
      __builtin_prefetch(copy.source);
      copy.group = queue.groups, copy.thread = static_cast<std::int16_t>(t.id);
    }
    if (queue.last != queue.groups) queue.flying.resize(static_cast<std::size_t>(queue.groups + 1)), queue.last = queue.groups;
    queue.first = std::min(queue.first, queue.groups);
    queue.flying.back() += static_cast<int>(left.size());
    queue.place = t.place;
    flying_.insert(flying_.end(), left.begin(), left.end());
    block_.tick();
  }
  void commit() { ++queue_of(block_.thread().id).groups; }
  // Until at most `newest` groups of this thread are pending.
  void wait(int newest) {
    Thread& t = block_.thread();
    Queue& queue = queue_of(t.id);
    queue.awaited = std::max(queue.awaited, queue.groups - newest);
    while (!queue.landed()) queue.waits = true, block_.block_on({"cp.async.wait_group", 0, newest});
    t.copies_seen = std::max(t.copies_seen, static_cast<std::uint32_t>(std::max(0, queue.awaited)));
  }
  void wait_all() { commit(), wait(0); }

  int ready() const override { return static_cast<int>(flying_.size()); }
  void complete(int which) override {                  // and its neighbours, most likely of the same thread: as lines come from memory
    const auto first = flying_.begin() + which / kAtOnce * kAtOnce, last = flying_.end() - first > kAtOnce ? first + kAtOnce : flying_.end();
    for (auto copy = first; copy != last;) {
      const auto [thread, group] = std::pair(copy->thread, copy->group);
      int landed = 0;
      for (; copy != last && copy->thread == thread && copy->group == group; ++copy, ++landed) land(*copy);
      Queue& queue = queue_of(thread);
      queue.flying[static_cast<std::size_t>(group)] -= landed;
      if (queue.waits && queue.landed()) queue.waits = false, block_.wake(thread);
    }
    std::copy(std::max(last, flying_.end() - (last - first)), flying_.end(), first);
    flying_.erase(flying_.end() - (last - first), flying_.end());
  }
  Fault unfinished() const override {
    for (const Queue& queue : queues_)
      if (const auto thread = static_cast<int>(&queue - queues_.data()); queue.last >= queue.awaited)
        return {text("the block ended with copies that thread %d never waited for", thread), "cp.async.commit_group and wait_group after the last copy", queue.place, 0, 0, thread};
    return {};
  }

 private:
  struct Copy {
    const void* source;
    std::uint32_t destination;
    Place place;
    int group, source_bytes;
    std::int16_t thread, bytes;
    bool past_l1;
  };
  struct Queue {                                       // of a thread
    int groups = 0, awaited = 0;                       // committed; of which it has waited, or waits, for the first so many
    int last = -1;                                     // the newest group with a copy
    Place place = 0;                                   // of that copy
    std::vector<int> flying;                           // copies in flight, by group
    int first = 0;                                     // the oldest group with any
    bool waits = false;                                // is the thread blocked?
    bool landed() {
      while (first < static_cast<int>(flying.size()) && flying[static_cast<std::size_t>(first)] == 0) ++first;
      return first >= std::min(awaited, static_cast<int>(flying.size()));
    }
  };
  static constexpr int kAtOnce = 8, kLeft = 64;

  INLINED void check(const Copy& copy) const {
    const int bytes = copy.bytes;
    if (bytes == 16 && copy.source_bytes == 16 && copy.destination % 16 == 0) [[likely]] return;
    if (copy.past_l1 ? bytes != 16 : bytes != 4 && bytes != 8 && bytes != 16) block_.fault(text("cp.async.%s of %d bytes", copy.past_l1 ? "cg" : "ca", bytes), "4, 8 or 16 bytes with .ca, 16 with .cg");
    if (copy.source_bytes < 0 || copy.source_bytes > bytes) block_.fault(text("cp.async of %d bytes from %d", bytes, copy.source_bytes), "the source size is at most the copy's");
    if (copy.destination & static_cast<std::uint32_t>(bytes - 1)) block_.fault(text("cp.async of %d bytes to shared address %#x: not aligned", bytes, copy.destination), "the address must be a multiple of the copy's size");
  }
  INLINED const Array* array_of(const Copy& copy) {
    const auto from = reinterpret_cast<std::uintptr_t>(copy.source);
    if (!array_ || from % 16 || !array_->holds(from, static_cast<std::size_t>(copy.bytes))) [[unlikely]] array_ = inside(copy.source, static_cast<std::size_t>(copy.source_bytes), static_cast<std::size_t>(copy.bytes));
    return array_;
  }

  INLINED void note_read(const Array& array, const Copy& copy, int agent, const Clock& clock) const {
    const auto from = reinterpret_cast<std::uintptr_t>(copy.source);
    GlobalGranule& granule = array.shadow[array.granule(from)];
    __builtin_prefetch(&granule + 2, 1);
    const GlobalAccess now{{block_.number(), static_cast<std::uint8_t>(agent), launch_number, 0xFFFF}, clock.time[static_cast<std::size_t>(agent)], PlaceNumbers::of(copy.place)};
    const bool whole = copy.source_bytes == 16 && from % 16 == 0 && !many_cores && block_.checks() && !granule.apart();
    if (!whole || !noted_at_once<Access::read, 16>(granule, granule, array.defined, now)) [[unlikely]]
      GlobalUse(block_, Access::read, agent, clock).note(array, from, static_cast<std::size_t>(copy.source_bytes));
  }
  INLINED void land(const Copy& copy) {
    unsigned char* to = memory_.poke(copy.destination);
    if (copy.source_bytes == 16) {
      std::memcpy(to, copy.source, 16);
    } else {
      std::memset(to, 0, static_cast<std::size_t>(copy.bytes));
      if (copy.source_bytes > 0) std::memcpy(to, copy.source, static_cast<std::size_t>(copy.source_bytes));
    }
  }
  Queue& queue_of(int thread) { return queues_[static_cast<std::size_t>(thread)]; }

  Block& block_;
  SharedMemory& memory_;
  std::vector<Copy> flying_;
  std::array<Copy, kLeft> left_;                       // the running thread's, not issued yet
  const Array* array_ = nullptr;                       // that the last copy came from
  std::vector<Queue> queues_;                          // by thread
};

}  // namespace cuda_on_host
