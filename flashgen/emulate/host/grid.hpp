// The blocks of a launch, spread over cores, with an outcome that the seed alone decides.
//
// Each of kSlots multiprocessors runs its share of the blocks, one at a time, always on the same core. Until it meets an atomic a block
// touches nothing that another one may touch, so blocks run side by side. At an atomic it stops. When all have stopped or ended a round is
// over: those that wait take their turns one by one, in an order under the seed, a quarter of them a round late.
#pragma once
#include <atomic>
#include <barrier>
#include <thread>

#include "traps.hpp"
#include "units.hpp"

namespace cuda_on_host {

struct Launch {                                        // machine.py fills it
  unsigned grid[3], block[3];
  std::uint32_t shared_bytes;
  int checks;
  std::uint64_t seed;
  const void* params;
  const Region* regions;
  const Array* arrays;
  int region_count, array_count, cores, number;        // number: of the kernel in its call, from 1
  int early;                                           // may it start before the kernel ahead of it has ended?
  int cluster;                                         // blocks of one
};

// A block on a multiprocessor, or a cluster of them, with everything it owns.
class Resident {
 public:
  Resident(const Launch& launch, unsigned number, Stacks& stacks, std::function<void()> kernel)
      : threads_({static_cast<int>(number) * launch.cluster, launch.cluster, builtins::blockDim}, launch.seed, launch.checks, stacks, std::move(kernel)) {
    for (int rank = 0; rank < launch.cluster; ++rank) {
      memories_.push_back(std::make_unique<SharedMemory>(threads_, rank, launch.shared_bytes));
      units_.push_back(std::make_unique<Units>(threads_, *memories_.back(), barrier_, units_));
    }
    threads_.describe_with([this](const Thread& t) { return units_[static_cast<std::size_t>(t.rank)]->describe(t); });
    threads_.explain_with([this](const Thread& t) { return units_[static_cast<std::size_t>(t.rank)]->why(t); });
    threads_.at_return([this](const Thread& t) {
      if (units_.size() > 1) barrier_.returned(t);
      if (!threads_.left(t.rank)) units_[static_cast<std::size_t>(t.rank)]->end();
    });
  }

  // Runs until it ends, or has to wait for its turn: then true.
  bool advance() {
    enter();
    while (!threads_.paused())
      if (!threads_.step()) return false;
    return true;
  }
  void take_turn() { enter(), threads_.take_turn(); }
  void complete_late() { enter(), threads_.complete_late(); }
  std::uint64_t moves() const { return threads_.moves(); }
  Fault polls() const { return threads_.polls(); }

 private:
  void enter() { block = &threads_, order = &order_; }

  Block threads_;
  ClusterBarrier barrier_;
  std::vector<std::unique_ptr<SharedMemory>> memories_;   // by block
  std::vector<std::unique_ptr<Units>> units_;
  GlobalOrder order_;
};

class Grid {
 public:
  Grid(const Launch& launch, void (*kernel)(const void*))
      : launch_(launch), kernel_([=, params = launch.params] { kernel(params); }), blocks_(launch.grid[0] * launch.grid[1] * launch.grid[2] / static_cast<unsigned>(launch.cluster)),
        cores_(std::clamp(launch.cores, 1, kSlots)), random_(launch.seed * 69069 + 3), round_over_(cores_, Planner{this}) {
    for (unsigned i = 0; i < kSlots; ++i) slots_[i].next = i;
  }

  // What went wrong, empty if nothing.
  Fault run() {
    const Traps traps;
    many_cores = cores_ > 1;
    std::vector<std::jthread> others;
    for (int core = 1; core < cores_; ++core) others.emplace_back([=, this] { work(core); });
    work(0);
    others.clear();
    return failed_ < kSlots ? slots_[failed_].fault : Fault{};
  }

 private:
  static constexpr int kSlots = 8;
  struct Slot {
    unsigned next = 0;                                 // the number of its next block
    std::unique_ptr<Stacks> stacks;                    // of its block
    std::unique_ptr<Resident> block;
    bool rests = false;                                // in this round
    Fault fault;
  };
  struct Planner {
    Grid* grid;
    void operator()() noexcept { grid->plan_round(); }
  };

  void work(int core) {
    const TrapStack stack;
    do {
      for (int turn = 0; turn < static_cast<int>(order_.size()); ++turn) {
        if (order_[turn] % cores_ != core) continue;
        for (int now = turn_; now != turn; now = turn_) turn_.wait(now);
        guarded(order_[turn], [](Slot& slot) { slot.block->take_turn(); });
        turn_ = turn + 1;
        turn_.notify_all();
      }
      for (int i = core; i < kSlots; i += cores_)
        if (!slots_[i].rests) guarded(i, [this](Slot& slot) { advance(slot); });
      round_over_.arrive_and_wait();
    } while (!done_);
  }

  void advance(Slot& slot) {
    const auto index = static_cast<int>(&slot - slots_.data());
    auto& idle = idle_[static_cast<std::size_t>(index % cores_)];
    while (slot.block || slot.next < blocks_) {
      if (!slot.block) {
        if (idle.empty()) idle.push_back(std::make_unique<Stacks>());
        slot.stacks = std::move(idle.back()), idle.pop_back();
        slot.block = std::make_unique<Resident>(launch_, std::exchange(slot.next, slot.next + kSlots), *slot.stacks, kernel_);
      }
      if (failed_ < index || slot.block->advance()) return;
      slot.block.reset();
      idle.push_back(std::move(slot.stacks));
    }
  }

  // Of several slots that fail in a round the first counts, whatever the cores did: so the ones after it need not go on.
  template <class Move> void guarded(int index, Move move) {
    Slot& slot = slots_[index];
    if (failed_ < index) return;
    sigjmp_buf back;
    trapped = &back;
    try {
      if (sigsetjmp(back, 1) == 0) return move(slot);
      slot.fault = trap_fault();
    } catch (const Fault& found) {
      slot.fault = found;
    } catch (const std::exception& error) {
      slot.fault.what = error.what();
    }
    for (int first = failed_; index < first && !failed_.compare_exchange_weak(first, index);) {}
  }

  void plan_round() {                                  // on one core, while the others wait
    order_.clear();
    turn_ = 0;
    for (int i = 0; i < kSlots; ++i)
      if (slots_[i].block) order_.push_back(i);
    done_ = failed_ < kSlots || order_.empty() || stuck();
    std::shuffle(order_.begin(), order_.end(), random_);
    for (std::size_t i = order_.size(); i-- > 0;)      // not the first
      if (Slot& slot = slots_[order_[i]]; (slot.rests = i > 0 && random_() % 4 == 0)) order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // Do those that take turns only find, turn after turn, what they have found before? Then no thread that runs can end their wait.
  bool stuck() {
    std::uint64_t moves = 0;
    bool starts = false;
    for (const Slot& slot : slots_) moves += slot.next + (slot.block ? slot.block->moves() : 0), starts |= slot.next < blocks_;
    quiet_ = std::exchange(moves_, moves) == moves ? quiet_ + 1 : 0;
    if (quiet_ > 0 && quiet_ % kPatientRounds == 0)   // no thread goes on but those that look again: what is late comes now
      for (const int i : order_) guarded(i, [](Slot& slot) { slot.block->complete_late(); });
    if (quiet_ < kQuietRounds) return false;
    Fault& fault = slots_[static_cast<std::size_t>(failed_ = order_.front())].fault;
    fault = slots_[static_cast<std::size_t>(failed_)].block->polls();
    fault.what = "deadlock: words of global memory are read again and again, and nobody who would change them can run";
    for (const int i : order_) fault.what += slots_[static_cast<std::size_t>(i)].block->polls().what;
    fault.hint = starts ? kNotStarted : kNobodyWrites;
    return true;
  }

  static constexpr int kPatientRounds = 100, kQuietRounds = 10000;
  static constexpr const char* kNobodyWrites = "who should write these words, and does it wait for one who waits here?";
  static constexpr const char* kNotStarted = "who should write these words? Eight blocks run at a time, in the order of their numbers: one that waits for a later block may wait in vain";
  const Launch& launch_;
  std::function<void()> kernel_;
  unsigned blocks_;                                    // or clusters
  int cores_;
  std::mt19937_64 random_;
  std::array<Slot, kSlots> slots_;
  std::array<std::vector<std::unique_ptr<Stacks>>, kSlots> idle_;   // by core, for its next block: still in the cache
  std::vector<int> order_;                             // slots that take their turns in this round
  std::atomic<int> turn_ = 0;                          // whose turn it is, an index of `order_`
  std::atomic<int> failed_ = kSlots;                   // the first slot that found a fault
  bool done_ = false;
  std::uint64_t moves_ = 0;                            // of all blocks, when the last round was over
  int quiet_ = 0;                                      // rounds since they last changed
  std::barrier<Planner> round_over_;
};

}  // namespace cuda_on_host
