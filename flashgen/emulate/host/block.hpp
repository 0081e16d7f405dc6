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

#include "threads.hpp"

namespace cuda_on_host {

// A cluster of blocks, of one as a rule. The threads of each fill whole warpgroups where there are several.
class Block {
 public:
  Block(const Shape& shape, std::uint64_t seed, int checks, Stacks& stacks, std::function<void()> kernel);
  // Lets one warp run until it blocks, or one engine complete one operation. False once the block has ended.
  bool step();
  bool paused() const { return paused_ != nullptr; }   // does a warp wait for its turn?
  void take_turn();                                    // lets that warp go on to the end of its turn
  void complete_late() {                               // lets an engine complete an operation, if one is in flight, though a warp could go on,
    run_an_engine(true);                               // and warps that many others were ahead of come to their turn
    for (Warp& w : warps_) w.priority = static_cast<std::uint32_t>(random_());
  }

  void block_on(Wait wait);                            // the running thread waits until somebody wakes it
  void pause();                                        // the running thread waits for its turn, or ends it
  void wake(int thread) { ++moves_, warps_[static_cast<std::size_t>(thread) / 32].ready |= 1u << (thread % 32); }
  void visit(Visit now) { moves_ += std::exchange(running_->visit, now) != now; }   // finding again what it found before moves nothing
  std::uint64_t moves() const { return moves_; }       // how often something changed that another thread may wait for
  Fault polls() const;                                 // which threads wait for a word to change
  void wake_all(std::vector<int>& threads) { for (int t : threads) wake(t); threads.clear(); }
  [[noreturn]] void fault(std::string what, std::string hint = "", Place other = 0);

  bool running() const { return running_ != nullptr; }   // false while an engine works
  Place place() const { return running_ ? running_->place : engine_place_; }
  void engine_at(Place place) { engine_place_ = place; }  // where its operation was issued
  Thread& thread() { return *running_; }
  int number() const { return shape_.first; }
  int blocks() const { return shape_.blocks; }
  int block_of(const Thread& t) const { return shape_.first + t.rank; }
  int local(const Thread& t) const { return t.id - t.rank * stride_; }   // its number in its block
  int first_thread(int rank) const { return rank * stride_; }
  std::string name_of_warp(int warp) const { return name_of("warp", warp, 32); }
  std::string name_of_warpgroup(int warpgroup) const { return name_of("warpgroup", warpgroup, 128); }
  int warp_index() const { return static_cast<int>(static_cast<unsigned>(running_->id) / 32); }
  Warp& warp() { return *running_->warp; }
  double chance() { return std::uniform_real_distribution<double>()(random_); }   // of the seed, in [0, 1)
  int lane() const { return running_->lane; }
  const Warp& warp(int index) const { return warps_[static_cast<std::size_t>(index)]; }
  Thread& thread(int id) { return threads_[static_cast<std::size_t>(id)]; }
  int size() const { return size_; }                   // threads of one block
  int all() const { return static_cast<int>(threads_.size()); }   // and of all, with those that fill warpgroups
  int left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }   // threads that have not returned
  bool checks() const { return checks_; }
  bool strict() const { return strict_; }              // judge what the written rules forbid, and shipped kernels do
  PlainPlace& plain_place(const void* caller) { return plain_places_[reinterpret_cast<std::uintptr_t>(caller) / 4 % plain_places_.size()]; }
  void add(Engine* engine);
  void describe_with(std::function<std::string(const Thread&)> describe) { describe_ = std::move(describe); }
  void explain_with(std::function<std::string(const Thread&)> why) { why_ = std::move(why); }
  void at_return(std::function<void(const Thread&)> returned) { returned_ = std::move(returned); }

  std::vector<std::string> mbarriers;                  // names, by index

  // What the running thread knows: its warp's clock, but waits for asynchronous work count for the thread that waited.
  Clock& clock() { return clock(*running_); }
  Clock& clock_of(int lane) { return clock(warp().threads[lane]); }   // of the running warp
  // What it did so far becomes visible to whoever receives the result; what it does from now on does not.
  void release(Clock& to) {
    warp().released = {warp().clock.time[agent::warp(warp_index())], lane(), running_->place};
    to.join(clock()), tick();
  }
  void tick() { ++warp().clock.time[agent::warp(warp_index())]; }
  void acquire(const Clock& other) {
    clock().join(other);
    acquire_own(other);
  }
  void acquire_own(const Clock& other) {               // when another lane of the warp has acquired the rest
    running_->products_seen = std::max(running_->products_seen, other.time[agent::tensor_core(running_->id / 128)]);
    running_->stores_seen = std::max(running_->stores_seen, other.time[agent::bulk_store(warp_index())]);
    running_->copies_seen = std::max(running_->copies_seen, other.time[agent::copies(warp_index())]), running_->kernel_ahead_seen |= other.time[agent::kernel_ahead];
    running_->met = std::max(running_->met, other.time[agent::warp(warp_index())] + 1);
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
  std::string name_of(const char* what, int index, int threads) const {
    return shape_.blocks == 1 ? text("%s %d", what, index) : text("%s %d of block %d", what, index % (stride_ / threads), shape_.first + index / (stride_ / threads));
  }
  bool run_a_warp();
  void run(Warp& warp);
  bool run_an_engine(bool forced);
  Thread& next_lane(Warp& warp);
  int first_lane(std::uint32_t lanes) const { return seed_ % 4 == 3 ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes); }
  void complete_if_due(Exchange& e);
  void end();
  std::string waiting(bool polls = false) const, advice() const;
  static void enter();

  Context scheduler_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Engine*> engines_;
  std::mt19937_64 random_;
  std::uint64_t seed_;
  Shape shape_;
  int size_, stride_;                                  // stride: from a block's first thread to the next one's
  std::vector<Dim3> indices_;                          // of the blocks
  std::vector<int> left_;
  bool checks_, strict_;
  std::array<PlainPlace, 128> plain_places_{};
  Warp* paused_ = nullptr;
  std::uint64_t moves_ = 0;
  Thread* running_ = nullptr;
  Place engine_place_ = 0;
  std::function<void()> kernel_;
  std::function<std::string(const Thread&)> describe_, why_;
  std::function<void(const Thread&)> returned_;
  std::unique_ptr<Fault> fault_;
};

inline thread_local constinit Block* block = nullptr;  // which runs on this core

// Seed 0: asynchronous work completes as late as it can. Seed 1: as early as it can. Others: each engine its own way, for what catches
// a missing wait is a load that is late when a product is early. Warps go by random, changing priorities.
inline Block::Block(const Shape& shape, std::uint64_t seed, int checks, Stacks& stacks, std::function<void()> kernel)
    : random_((seed * 1000003 + static_cast<std::uint64_t>(shape.first)) * 7919 + 1), seed_(seed), shape_(shape), size_(static_cast<int>(shape.size.x * shape.size.y * shape.size.z)),
      stride_(shape.blocks == 1 ? size_ : (size_ + 127) / 128 * 128), left_(static_cast<std::size_t>(shape.blocks), size_), checks_(checks > 0), strict_(checks > 1), kernel_(std::move(kernel)) {
  threads_ = std::vector<Thread>(static_cast<std::size_t>(shape.blocks * stride_));
  warps_ = std::vector<Warp>((threads_.size() + 31) / 32);
  for (unsigned number = static_cast<unsigned>(shape.first), last = number + static_cast<unsigned>(shape.blocks); number < last; ++number)
    indices_.push_back({number % builtins::gridDim.x, number / builtins::gridDim.x % builtins::gridDim.y, number / builtins::gridDim.x / builtins::gridDim.y});
  for (Warp& warp : warps_) warp.gone = ~0u;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    Thread& t = threads_[i];
    t.id = static_cast<int>(i), t.lane = t.id % 32, t.rank = t.id / stride_;
    t.block = this, t.warp = &warps_[i / 32];
    const auto n = static_cast<unsigned>(local(t));
    t.top = &stacks.prepare(i, t.context, {.thread = &t, .index = {n % shape.size.x, n / shape.size.x % shape.size.y, n / shape.size.x / shape.size.y}, .block_index = &indices_[static_cast<std::size_t>(t.rank)]}, &Block::enter);
    if ((t.done = local(t) >= size_)) continue;
    t.warp->gone &= ~(1u << t.lane);
    wake(t.id);
  }
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
      throw Fault{"deadlock: every thread waits and nothing is in flight" + waiting(), advice(), t.place, 0, block_of(t), local(t)};
  for (Engine* engine : engines_)
    if (Fault left = engine->unfinished(); checks_ && !left.what.empty()) {
      left.block = number();
      throw left;
    }
}

// For a deadlock. What one wait lacks for a reason that it shows comes first: others wait for those that wait there.
inline std::string Block::advice() const {
  for (const Thread& t : threads_)
    if (const std::string why = t.done ? "" : why_(t); !why.empty()) return why;
  return "who should arrive next at these barriers, and is there an iteration, a parity or an empty range that one side skips and the other does not?";
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
  if (chosen) ++moves_, chosen->complete(static_cast<int>(random_() % static_cast<unsigned>(chosen->ready())));
  return chosen != nullptr;
}

// A lane that is ready; from now on it is the running one. Under some seeds the last one goes first.
inline Thread& Block::next_lane(Warp& warp) {
  const int lane = first_lane(warp.ready);
  warp.ready &= ~(1u << lane);
  if (warp.ready) prefetch_context(warp.threads[first_lane(warp.ready)].context);   // the one after it
  return *(running_ = warp.threads + lane);
}

inline void Block::enter() {
  block->kernel_();
  settle();
  block->running_->done = true, ++block->moves_;
  --block->left_[static_cast<std::size_t>(block->running_->rank)];
  block->returned_(*block->running_);
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
  block_on({kTurn});
}

inline void Block::fault(std::string what, std::string hint, Place other) {
  Fault fault{std::move(what), std::move(hint), place(), other, running_ ? block_of(*running_) : number(), running_ ? local(*running_) : -1};
  if (!running_) throw fault;                          // raised by an engine, on the scheduler's own stack
  fault_ = std::make_unique<Fault>(std::move(fault));
  for (;;) block_on({"a fault"});
}

inline Fault Block::polls() const {
  const auto first = std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return !t.done && t.wait.what == kTurn; });
  return {waiting(true), "", first->place, 0, block_of(*first), local(*first)};
}

// Lines such as "threads 128-255 wait for parity 0 of `K full[1]` (phase 0, 1 arrival and 0 bytes missing) at <1f3c>".
inline std::string Block::waiting(bool polls) const {
  std::map<std::string, std::vector<int>> by_reason, returned;
  for (const Thread& t : threads_) {
    if (polls && (t.done || t.wait.what != kTurn)) continue;
    const std::string of = blocks() == 1 && !polls ? "" : text("of block %d ", block_of(t));
    if (!t.done) by_reason[of + "wait for " + describe_(t) + text(" at <%x>", t.place)].push_back(local(t));
    else if (local(t) < size_) returned[of + "have returned"].push_back(local(t));
  }
  std::string lines;
  for (const auto& all : {by_reason, returned})
    for (const auto& [reason, ids] : all) {
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
