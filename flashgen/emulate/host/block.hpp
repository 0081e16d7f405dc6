// One CUDA block on the CPU: every thread is a fiber, every asynchronous unit (TMA, tensor core) an engine, and one
// scheduler with a seed decides who moves next. A thread runs until it blocks; an engine completes one operation at a time.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "clocks.hpp"
#include "exchange.hpp"
#include "fault.hpp"
#include "fibers.hpp"
#include "ptx.hpp"

namespace cuda_on_host {

struct Wait { const char* what = ""; std::uint32_t object = 0; int detail = 0; };   // why a thread is blocked

class Block;
class SharedMemory;
struct Warp;
struct Deferred;
struct Array; struct GlobalGranule;                    // global_shadow.hpp

struct PlainPlace {                                    // of what reads or writes global memory by itself
  Place place = 0;
  std::uint16_t number = 0;                            // as PlaceNumbers has it
  const Array* array = nullptr;                        // where it last did
  GlobalGranule* shadow = nullptr;                     // of that, as if the first one were that of address 0
};

struct alignas(64) Thread {
  Context context;
  Block* block = nullptr;
  Warp* warp = nullptr;
  SharedMemory* memory = nullptr;
  StackTop* top = nullptr;
  int id = 0, lane = 0;
  Place place = 0;                                     // the last twin it called
  unsigned exchanges = 0;
  std::uint32_t products_seen = 0, stores_seen = 0;    // how far this very thread has waited for its warpgroup's wgmma, its warp's TMA stores,
  std::uint32_t copies_seen = 0, kernel_ahead_seen = 0;   // its warp's cp.async, the end of the kernel ahead
  bool done = false;
  int registers = 0;                                   // setmaxnreg
  Wait wait;
};
inline Thread& this_thread() { return *THIS_STACK.thread; }

struct Warp {
  std::uint32_t ready = 0;                             // lanes that can run
  std::uint32_t paused = 0;                            // lanes that wait for the warp's turn, or have ended theirs
  std::uint32_t gone = 0;                              // lanes that have returned, or never were: no rendezvous waits for them
  std::uint32_t priority = 0;
  Thread* threads = nullptr;                           // by lane
  Deferred* deferred = nullptr;
  Clock clock;
  std::array<Exchange, 2> exchanges;                   // two: a lane may be one rendezvous ahead of the slowest
};

class Engine {                                         // an asynchronous unit
 public:
  virtual ~Engine() = default;
  virtual int ready() const = 0;                       // how many operations could complete now
  virtual void complete(int which) = 0;
  virtual Fault unfinished() const = 0;                // what a block must not leave behind; empty if nothing
  double eagerness = 0;                                // how likely it completes something rather than let a warp go on
};

class Block {
 public:
  Block(int number, Dim3 size, std::uint64_t seed, bool checks, Stacks& stacks, std::function<void()> kernel);
  // Lets one warp run until it blocks, or one engine complete one operation. False once the block has ended.
  bool step();
  bool paused() const { return paused_ != nullptr; }   // does a warp wait for its turn?
  void take_turn();                                    // lets that warp go on to the end of its turn

  void block_on(Wait wait);                            // the running thread waits until somebody wakes it
  void pause();                                        // the running thread waits for its turn, or ends it
  void wake(int thread) { warps_[static_cast<std::size_t>(thread) / 32].ready |= 1u << (thread % 32); }
  void wake_all(std::vector<int>& threads) { for (int t : threads) wake(t); threads.clear(); }
  [[noreturn]] void fault(std::string what, std::string hint = "", Place other = 0);

  bool running() const { return running_ != nullptr; }   // false while an engine works
  Place place() const { return running_ ? running_->place : engine_place_; }
  void engine_at(Place place) { engine_place_ = place; }  // where its operation was issued
  Thread& thread() { return *running_; }
  int number() const { return number_; }
  int warp_index() const { return static_cast<int>(static_cast<unsigned>(running_->id) / 32); }
  Warp& warp() { return *running_->warp; }
  double chance() { return std::uniform_real_distribution<double>()(random_); }   // of the seed, in [0, 1)
  int lane() const { return running_->lane; }
  Thread& thread(int id) { return threads_[static_cast<std::size_t>(id)]; }
  int size() const { return static_cast<int>(threads_.size()); }
  bool checks() const { return checks_; }
  PlainPlace& plain_place(const void* caller) { return plain_places_[reinterpret_cast<std::uintptr_t>(caller) / 4 % plain_places_.size()]; }
  void add(Engine* engine);
  void describe_with(std::function<std::string(const Wait&)> describe) { describe_ = std::move(describe); }

  // What the running thread knows: its warp's clock, but waits for asynchronous work count for the thread that waited.
  Clock& clock() { return clock(*running_); }
  Clock& clock_of(int lane) { return clock(warp().threads[lane]); }   // of the running warp
  // What it did so far becomes visible to whoever receives the result; what it does from now on does not.
  void release(Clock& to) { to.join(clock()), tick(); }
  void tick() { ++warp().clock.time[agent::warp(warp_index())]; }
  void acquire(const Clock& other) {
    clock().join(other);
    acquire_own(other);
  }
  void acquire_own(const Clock& other) {               // when another lane of the warp has acquired the rest
    running_->products_seen = std::max(running_->products_seen, other.time[agent::tensor_core(running_->id / 128)]);
    running_->stores_seen = std::max(running_->stores_seen, other.time[agent::bulk_store(warp_index())]);
    running_->copies_seen = std::max(running_->copies_seen, other.time[agent::copies(warp_index())]), running_->kernel_ahead_seen |= other.time[agent::kernel_ahead];
  }

  template <class Last> void meet(const char* what, Last last);   // returns once all lanes have come; the last one calls `last`; `what` must agree
  template <class Value> Left<Value> exchange(const char* what, Value mine);   // a value from each lane, once all have come
  template <class Value, class Last> void exchange(const char* what, Value mine, Last last);   // the last one calls `last` with them

 private:
  Clock& clock(const Thread& t) {
    Clock& c = t.warp->clock;
    const auto id = static_cast<unsigned>(t.id);
    c.time[agent::tensor_core(id / 128)] = t.products_seen;
    c.time[agent::bulk_store(id / 32)] = t.stores_seen;
    c.time[agent::copies(id / 32)] = t.copies_seen, c.time[agent::kernel_ahead] = t.kernel_ahead_seen;
    return c;
  }
  bool run_a_warp();
  void run(Warp& warp);
  bool run_an_engine(bool forced);
  Thread& next_lane(Warp& warp);
  void complete_if_due(Exchange& e);
  void end();
  std::string waiting() const;
  static void enter();

  Context scheduler_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Engine*> engines_;
  std::mt19937_64 random_;
  std::uint64_t seed_;
  int number_;
  bool checks_;
  std::array<PlainPlace, 128> plain_places_{};
  Warp* paused_ = nullptr;
  Thread* running_ = nullptr;
  Place engine_place_ = 0;
  std::function<void()> kernel_;
  std::function<std::string(const Wait&)> describe_;
  std::unique_ptr<Fault> fault_;
};

inline thread_local constinit Block* block = nullptr;  // which runs on this core; likewise `shared` and `units`

// Seed 0: asynchronous work completes as late as it can. Seed 1: as early as it can. Others: each engine its own way, for what catches
// a missing wait is a load that is late when a product is early. Warps go by random, changing priorities.
inline Block::Block(int number, Dim3 size, std::uint64_t seed, bool checks, Stacks& stacks, std::function<void()> kernel)
    : threads_(size.x * size.y * size.z), warps_((threads_.size() + 31) / 32), random_((seed * 1000003 + static_cast<std::uint64_t>(number)) * 7919 + 1),
      seed_(seed), number_(number), checks_(checks), kernel_(std::move(kernel)) {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const unsigned n = static_cast<unsigned>(i);
    Thread& t = threads_[i];
    t.id = static_cast<int>(i), t.lane = t.id % 32;
    t.block = this, t.warp = &warps_[i / 32];
    t.top = &stacks.prepare(i, t.context, {&t, {n % size.x, n / size.x % size.y, n / size.x / size.y}}, &Block::enter);
    wake(t.id);
  }
  if (const std::size_t lanes = threads_.size() % 32) warps_.back().gone = ~0u << lanes;
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warps_[i].threads = &threads_[32 * i];
    warps_[i].priority = static_cast<std::uint32_t>(random_());
    warps_[i].clock.time[agent::warp(static_cast<int>(i))] = 1;
  }
}

inline void Block::add(Engine* engine) {
  engine->eagerness = seed_ < 2 ? static_cast<double>(seed_) : std::array{0.0, 0.02, 0.3, 1.0}[random_() / 16 % 4];
  engines_.push_back(engine);
}

inline bool Block::step() {
  if (run_an_engine(false) || run_a_warp() || run_an_engine(true)) return true;
  end();
  return false;
}

inline void Block::end() {
  for (const Thread& t : threads_)
    if (!t.done)
      throw Fault{"deadlock: every thread waits and nothing is in flight" + waiting(),
                  "who should arrive next at these barriers, and is there an iteration, a parity or an empty range that one side skips and the other does not?",
                  t.place, 0, number_, t.id};
  for (Engine* engine : engines_)
    if (Fault left = engine->unfinished(); checks_ && !left.what.empty()) {
      left.block = number_;
      throw left;
    }
}

inline bool Block::run_a_warp() {
  Warp* chosen = nullptr;
  for (Warp& w : warps_)
    if (w.ready && (!chosen || w.priority > chosen->priority)) chosen = &w;
  if (!chosen) return false;
  run(*chosen);
  if (chosen->ready) paused_ = chosen;
  if (paused_ || random_() % 4 == 0) chosen->priority = static_cast<std::uint32_t>(random_());
  return true;
}

inline void Block::run(Warp& warp) {
  while (warp.ready) {
    switch_context(scheduler_, next_lane(warp).context);
    running_ = nullptr;
    if (fault_) throw *fault_;
  }
  warp.ready = std::exchange(warp.paused, 0u);
}

inline void Block::take_turn() { run(*std::exchange(paused_, nullptr)); }

// `forced`: no warp can go on. Then the eager ones still come first, as a rule.
inline bool Block::run_an_engine(bool forced) {
  Engine* chosen = nullptr;
  double best = 0;
  for (Engine* e : engines_) {
    if (e->ready() == 0 || !(forced || (e->eagerness > 0 && chance() < e->eagerness))) continue;
    if (const double rank = e->eagerness + chance() * 0.5; rank > best || !chosen) chosen = e, best = rank;
  }
  if (chosen) chosen->complete(static_cast<int>(random_() % static_cast<unsigned>(chosen->ready())));
  return chosen != nullptr;
}

// A lane that is ready; from now on it is the running one.
inline Thread& Block::next_lane(Warp& warp) {
  const int lane = std::countr_zero(warp.ready);
  warp.ready &= warp.ready - 1;
  if (warp.ready) prefetch_context(warp.threads[std::countr_zero(warp.ready)].context);   // the one after it
  return *(running_ = warp.threads + lane);
}

inline void Block::enter() {
  block->kernel_();
  settle();
  block->running_->done = true;
  block->warp().gone |= 1u << block->lane();
  for (Exchange& e : block->warp().exchanges) block->complete_if_due(e);
  block->block_on({"the end of the block"});
}

inline void Block::complete_if_due(Exchange& e) {
  if (!e.arrived || (e.arrived | warp().gone) != ~0u) return;
  warp().ready |= e.arrived & ~(1u << lane());
  e.arrived = 0;
}

inline void Block::block_on(Wait wait) {
  Thread& self = *running_;
  self.wait = wait;
  if (fault_ || !self.warp->ready) return switch_context(self.context, scheduler_);
  if (Thread& next = next_lane(*self.warp); &next != &self) switch_context(self.context, next.context);   // straight on: half the switches
}

inline void Block::pause() {
  warp().paused |= 1u << lane();
  block_on({"a pause"});
}

inline void Block::fault(std::string what, std::string hint, Place other) {
  Fault fault{std::move(what), std::move(hint), place(), other, number_, running_ ? running_->id : -1};
  if (!running_) throw fault;                          // raised by an engine, on the scheduler's own stack
  fault_ = std::make_unique<Fault>(std::move(fault));
  for (;;) block_on({"a fault"});
}

// Lines such as "threads 128-255 wait for parity 0 of `K full[1]` (phase 0, 1 arrival and 0 bytes missing) at <1f3c>".
inline std::string Block::waiting() const {
  std::map<std::string, std::vector<int>> by_reason;
  for (const Thread& t : threads_)
    if (!t.done) by_reason["wait for " + describe_(t.wait) + text(" at <%x>", t.place)].push_back(t.id);
  std::string lines;
  for (const auto& [reason, ids] : by_reason) {
    std::string who;
    for (std::size_t i = 0, j; i < ids.size(); i = j) {
      for (j = i + 1; j < ids.size() && ids[j] == ids[j - 1] + 1; ++j) {}
      who += (i ? ", " : "") + (j == i + 1 ? text("%d", ids[i]) : text("%d-%d", ids[i], ids[j - 1]));
    }
    lines += text("\n  threads %s ", who.c_str()) + reason;
  }
  return lines;
}

}  // namespace cuda_on_host
