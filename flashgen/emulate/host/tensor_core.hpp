// wgmma (PTX ISA 9.0, 9.7.15): asynchronous products of a warpgroup, operands through descriptors or registers.
//
// An operation reads its operands when the scheduler says so: at the latest when a wait_group needs it, at the earliest when all
// 128 threads have issued it. A thread's accumulator registers hold NaN from the issue to its own wait.
#pragma once
#include <deque>
#include <memory>

#include "matrix.hpp"
#include "shared_memory.hpp"

namespace cuda_on_host {

// d[64][n] (+)= a[64][16] * b[16][n], in blocks of 4 rows by `Vectors` times 8 columns that stay in vector registers.
template <int Vectors>
void multiply_columns(const float (*a)[16], const float* b, float* d, int n, bool accumulate, int first) {
  auto load = [](const float* p) { Vector v; std::memcpy(&v, p, sizeof v); return v; };
  for (int row = 0; row < 64; row += 4) {
    Vector sum[4][Vectors] = {};
    if (accumulate)
      for (int r = 0; r < 4; ++r)
        for (int v = 0; v < Vectors; ++v) sum[r][v] = load(d + (row + r) * n + first + 8 * v);
    for (int k = 0; k < 16; ++k)
      for (int v = 0; v < Vectors; ++v) {
        const Vector right = load(b + k * n + first + 8 * v);
        for (int r = 0; r < 4; ++r) sum[r][v] += a[row + r][k] * right;
      }
    for (int r = 0; r < 4; ++r)
      for (int v = 0; v < Vectors; ++v) std::memcpy(d + (row + r) * n + first + 8 * v, &sum[r][v], sizeof(Vector));
  }
}
inline void multiply(const float (*a)[16], const float* b, float* d, int n, bool accumulate) {
  int column = 0;
  for (; column + 16 <= n; column += 16) multiply_columns<2>(a, b, d, n, accumulate, column);
  if (column < n) multiply_columns<1>(a, b, d, n, accumulate, column);
}

// A shared-memory operand's descriptor (PTX ISA, matrix descriptor format of wgmma).
struct Descriptor {
  std::uint32_t start, leading, stride, row_bytes;     // bytes
  explicit Descriptor(std::uint64_t bits)
      : start((bits & 0x3FFF) << 4), leading((bits >> 16 & 0x3FFF) << 4), stride((bits >> 32 & 0x3FFF) << 4) {
    static constexpr std::array<std::uint32_t, 4> kRowBytes = {16, 128, 64, 32};
    row_bytes = kRowBytes[bits >> 62];
    if (bits >> 49 & 7) not_modelled("wgmma descriptor with a base offset");
    if (start >> 7 & (row_bytes / 16 - 1))
      block->fault(text("wgmma: a descriptor of %u-byte swizzle starts at shared address %#x, inside of a pattern of %u bytes", row_bytes, start, row_bytes * 8),
                   "the offset of the operand: a multiple of the pattern, plus steps along the dense direction within a row");
  }
  // Address of the 16-byte chunk that holds 8 elements: `line` runs along the strided direction, `chunk` along the dense one.
  std::uint32_t k_major(int mn, int chunk) const {     // dense along k: two chunks a row
    const std::uint32_t across = row_bytes == 16 ? static_cast<std::uint32_t>(chunk) * leading : static_cast<std::uint32_t>(chunk) * 16;
    return swizzle(start + static_cast<std::uint32_t>(mn / 8) * stride + static_cast<std::uint32_t>(mn % 8) * row_bytes + across, row_bytes / 16);
  }
  std::uint32_t mn_major(int k, int chunk) const {     // dense along m or n, in columns of row_bytes
    if (row_bytes == 16) not_modelled("wgmma MN-major without swizzle");
    const int per_row = static_cast<int>(row_bytes / 16);
    return swizzle(start + static_cast<std::uint32_t>(chunk / per_row) * leading + static_cast<std::uint32_t>(chunk % per_row) * 16 +
                       static_cast<std::uint32_t>(k / 8) * stride + static_cast<std::uint32_t>(k % 8) * row_bytes, row_bytes / 16);
  }
};

class TensorCore : public Engine {                     // the share of one warpgroup: operations complete in order
 public:
  TensorCore(int warpgroup, Block& block, SharedMemory& memory) : agent_(agent::tensor_core(warpgroup)), block_(block), memory_(memory) {}

  // Whether a float comes of an accumulator in flight, by whatever arithmetic: results of a NaN keep its bits.
  static bool in_flight(std::uint32_t bits) { return (bits | kQuiet) == (kInFlight | kQuiet); }

  void fence() { state().fenced = true; }
  void commit() { state().groups.push_back(state().issued); }

  void issue(const Operation& operation, float* accumulators, const std::uint32_t* fragment) {
    const int t = block_.thread().id % 128;
    State& mine = state();
    if (!mine.fenced && block_.checks()) block_.fault("wgmma with no wgmma.fence since registers were last touched", "wgmma.fence before the first wgmma after a wait");
    const std::size_t index = mine.issued++;
    mine.place = block_.place();
    if (index == completed_ + queue_.size()) queue_.push_back({operation, tile_for(mine, accumulators, operation.n), {}, {}, 0, block_.place()});
    Queued& op = queue_[index - completed_];
    if (!(op.operation == operation)) block_.fault("wgmma: the threads of the warpgroup disagree on its operands", "descriptors and scale-d must be the same in all 128 threads", op.place);
    lend(mine, op.tile, accumulators, index, operation.accumulate);
    if (fragment) {
      op.fragment[t] = fragment;
      mine.fragments.push_back({fragment, {fragment[0], fragment[1], fragment[2], fragment[3]}, index});
    }
    if (block_.lane() == 0) op.clock.join(block_.clock());
    if (index == passed_.size()) passed_.emplace_back();
    passed_[index][static_cast<std::size_t>(t / 32)] = block_.warp().clock.time[agent::passed(block_.warp_index())];
    ++op.threads;
  }

  void wait(int newest) {
    State& mine = state();
    mine.fenced = false;
    const int last = static_cast<int>(mine.groups.size()) - newest - 1;
    if (last < 0) return;
    const std::size_t end = mine.groups[static_cast<std::size_t>(last)];
    if (completed_ < end) {
      waiting_.push_back({block_.thread().id, end});
      block_.block_on({"wgmma.wait_group"});
    }
    std::uint32_t& seen = block_.thread().products_seen;
    seen = std::max(seen, static_cast<std::uint32_t>(end));
    for (int warp = 0, first = block_.thread().id / 128 * 4; warp < 4; ++warp) {   // the product held the four together
      std::uint32_t& known = block_.warp().clock.time[agent::passed(first + warp)];
      known = std::max(known, passed_[end - 1][static_cast<std::size_t>(warp)]);
    }
    std::erase_if(mine.fragments, [&](const Fragment& f) {
      if (f.operation >= end) return false;
      if (block_.checks() && std::memcmp(f.registers, f.at_issue.data(), 16) != 0)
        block_.fault("a's registers changed before the wait for the wgmma that reads them", "wgmma.wait_group before the registers are written again");
      return true;
    });
    std::erase_if(mine.loans, [&](const Loan& loan) { return loan.last < end ? give_back(loan), true : false; });
  }

  int ready() const override { return !queue_.empty() && queue_.front().threads == 128; }
  void complete(int) override {
    Queued& op = queue_.front();
    block_.engine_at(op.place);
    op.clock.time[agent_] = static_cast<std::uint32_t>(++completed_);
    if (op.operation.element == Operation::Element::bf16) load(op, [](Halves bits) { return widen_bf16(bits); });
    else load(op, [](Halves bits) { return widen_f16(bits); });
    multiply(a_, b_.data(), op.tile->value.data(), op.operation.n, op.operation.accumulate);
    queue_.pop_front();
    std::erase_if(waiting_, [&](auto& w) { return w.second <= completed_ ? block_.wake(w.first), true : false; });
  }
  Fault unfinished() const override {
    for (const State& s : states_)
      if (!s.loans.empty()) return {"the block ended with accumulators nobody waited for", "wgmma.commit_group and wgmma.wait_group after the last product", s.place};
    return {};
  }

 private:
  struct Tile {                                        // accumulators in flight, 64 x n row-major
    int n, borrowers = 0;
    std::vector<float> value;
  };
  struct Loan {                                        // one thread's registers, NaN until its own wait for operation `last`
    Tile* tile;
    float* registers;
    std::size_t last;
  };
  struct Fragment {                                    // A registers, not to change until the wait for `operation`
    const std::uint32_t* registers;
    std::array<std::uint32_t, 4> at_issue;
    std::size_t operation;
  };
  struct State {                                       // of a thread
    bool fenced = false;
    std::size_t issued = 0;
    Place place = 0;                                   // of the last issue
    std::vector<std::size_t> groups;                   // how many operations were issued when each was committed
    std::vector<Loan> loans;
    std::vector<Fragment> fragments;
  };
  struct Queued {
    Operation operation;
    Tile* tile;
    std::array<const std::uint32_t*, 128> fragment;
    Clock clock;
    int threads;                                       // that have issued it
    Place place;
  };
  // A signalling NaN: a move leaves it as it is, and any arithmetic makes it quiet, so that what was touched is no longer the same.
  static constexpr std::uint32_t kInFlight = 0x7FA0F117, kQuiet = 1u << 22;

  State& state() { return states_[static_cast<std::size_t>(block_.thread().id % 128)]; }

  // Registers i and i + 1 of a thread hold neighbours of one row, so they move in pairs.
  template <class Visit>
  void for_each_pair(int n, Visit visit) {
    const int t = block_.thread().id % 128, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < n / 2; i += 2) visit(i, (row + 8 * (i >> 1 & 1)) * n + column + 8 * (i >> 2));
  }

  Tile* tile_for(State& mine, float* accumulators, int n) {
    for (const Loan& loan : mine.loans)
      if (loan.registers == accumulators && loan.tile->n == n) return loan.tile;
    auto free = std::find_if(tiles_.begin(), tiles_.end(), [](auto& tile) { return tile->borrowers == 0; });
    if (free == tiles_.end()) free = tiles_.insert(free, std::make_unique<Tile>());
    (*free)->n = n;
    (*free)->value.resize(static_cast<std::size_t>(64 * n));
    return free->get();
  }
  void lend(State& mine, Tile* tile, float* accumulators, std::size_t operation, bool accumulate) {
    for (Loan& loan : mine.loans)
      if (loan.registers == accumulators) {
        if (loan.tile != tile) block_.fault("wgmma: the threads of the warpgroup disagree on its accumulators", "one array of accumulators a product, the same in all threads");
        loan.last = operation;
        return;
      }
    mine.loans.push_back({tile, accumulators, operation});
    ++tile->borrowers;
    if (accumulate) for_each_pair(tile->n, [&](int i, int at) { std::memcpy(&tile->value[static_cast<std::size_t>(at)], accumulators + i, 8); });
    std::fill_n(accumulators, tile->n / 2, std::bit_cast<float>(kInFlight));
  }
  void give_back(const Loan& loan) {
    Tile& tile = *loan.tile;
    const auto touched = [&](int i) { return std::bit_cast<std::uint32_t>(loan.registers[i]) ^ kInFlight; };
    std::uint32_t any = 0;
    for (int i = 0; i < tile.n / 2; ++i) any |= touched(i);
    for (int i = 0; any && block_.checks(); ++i)
      if (touched(i)) block_.fault(text("accumulator %d was written before the wait for its wgmma", i), "wgmma.wait_group before the accumulators are touched");
    for_each_pair(tile.n, [&](int i, int at) { std::memcpy(loan.registers + i, &tile.value[static_cast<std::size_t>(at)], 8); });
    --tile.borrowers;
  }

  // Chunks of 8 elements, widened, as rows of `row` floats: `major` of them by `minor`, of which `address` gives each.
  template <class Address, class Widen>
  static void chunks(const SharedMemory::Reads& use, int major, int minor, Address address, Widen widen, float* to, int row) {
    for (int i = 0; i < major; ++i)
      for (int j = 0; j < minor; ++j) {
        const Vector eight = widen_8(use.read(address(i, j)), widen);
        std::memcpy(to + i * row + 8 * j, &eight, sizeof eight);
      }
  }
  // The same as columns.
  template <class Address, class Widen>
  static void chunks_across(const SharedMemory::Reads& use, int major, int minor, Address address, Widen widen, float* to, int row) {
    for (int i = 0; i < major; i += 8)
      for (int j = 0; j < minor; ++j) {
        Matrix matrix;
        for (int r = 0; r < 8; ++r) std::memcpy(&matrix.rows[r], use.read(address(i + r, j)), 16);
        matrix = transposed(matrix);
        for (int r = 0; r < 8; ++r) {
          const Vector eight = widen(matrix.rows[r]);
          std::memcpy(to + (8 * j + r) * row + i, &eight, sizeof eight);
        }
      }
  }
  template <class Widen>
  void load(const Queued& op, Widen widen) {
    const Operation& o = op.operation;
    const SharedMemory::Reads use(memory_, agent_, op.clock, SharedMemory::Proxy::async);
    const auto k_major = [](const Descriptor& d) { return [&d](int mn, int chunk) { return d.k_major(mn, chunk); }; };
    const auto mn_major = [](const Descriptor& d) { return [&d](int k, int chunk) { return d.mn_major(k, chunk); }; };
    const Descriptor b(o.b);
    if (o.b_mn_major) chunks(use, 16, o.n / 8, mn_major(b), widen, b_.data(), o.n);
    else chunks_across(use, o.n, 2, k_major(b), widen, b_.data(), o.n);
    if (o.a_in_registers) return load_fragment(op, widen);
    const Descriptor a(o.a);
    if (o.a_mn_major) chunks_across(use, 16, 8, mn_major(a), widen, a_[0], 16);
    else chunks(use, 64, 2, k_major(a), widen, a_[0], 16);
  }
  template <class Widen>
  void load_fragment(const Queued& op, Widen widen) {
    std::uint32_t pairs[64][2][4];                     // [row][k / 8][k / 2 % 4]
    for (int t = 0; t < 128; ++t)
      for (int r = 0; r < 4; ++r) pairs[t / 32 * 16 + t % 32 / 4 + 8 * (r & 1)][r >> 1][t % 4] = op.fragment[static_cast<std::size_t>(t)][r];
    for (int i = 0; i < 128; ++i) {
      const Vector eight = widen_8(pairs[i / 2][i % 2], widen);
      std::memcpy(a_[i / 2] + i % 2 * 8, &eight, sizeof eight);
    }
  }

  int agent_;
  Block& block_;
  SharedMemory& memory_;
  std::array<State, 128> states_;
  std::deque<Queued> queue_;
  std::size_t completed_ = 0;
  std::vector<std::array<std::uint32_t, 4>> passed_;   // by operation: agent::passed of each warp as it issued it
  std::vector<std::unique_ptr<Tile>> tiles_;
  std::vector<std::pair<int, std::size_t>> waiting_;
  alignas(32) float a_[64][16];
  alignas(32) std::array<float, 16 * 256> b_;
};

}  // namespace cuda_on_host
