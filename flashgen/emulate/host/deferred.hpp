// What the lanes of a warp leave and go on: ldmatrix and mma.sync in series (series.py), where nobody can tell when they are done.
//
// The first lane to come to one writes down what it is, a step; the others compare, and leave only what is theirs. They meet where a series ends,
// at the next ldmatrix outside of series, before whatever else orders memory, or when there is no room left. The last one to come does it all,
// as of when each lane came to it: between the two no clock moves and nothing is stored. Outside of series they meet at every product.
#pragma once
#include "matrix.hpp"
#include "meetings.hpp"

namespace cuda_on_host {

using Fragment = std::uint32_t __attribute__((vector_size(16)));   // a lane's share of an operand a
inline bool differ(Fragment x, Fragment y) {
  const auto bits = reinterpret_cast<std::uint64_t __attribute__((vector_size(16)))>(x ^ y);
  return bits[0] | bits[1];
}

struct Step {
  const void* place = nullptr;                         // where it returns to; null: no lane has come to it yet
  std::int32_t d = 0, a_at = 0;                        // where a product's accumulators and operand a lie in each lane's frame: bytes from the top of the stack
  std::uint32_t a = 0, b[2] = {};                      // numbers of matrices that were loaded: the first one, each. Where all places agree they do
  bool shared = false;                                 // what the lanes leave, with an earlier step, so far
  ptx::Kind kind{};
  union {                                              // what its lanes leave, by lane
    std::uint32_t* rows = nullptr;                     // of an ldmatrix
    Fragment* fragments;                               // of a product
  };
};

// A warp's.
struct Deferred {
  static constexpr int kSteps = 192;
  Step steps[kSteps + 1];                              // the last one stays empty: what a lane does next outside of series
  alignas(64) std::uint32_t rows[kSteps][32];          // of an ldmatrix, by lane
  Fragment fragments[kSteps][32];                      // of a product
  std::uint32_t pairs[kSteps][32][2];                  // of its b, unless loaded
  std::uint32_t rows_left = 0, fragments_left = 0, loaded = 0;   // loaded: matrices since the first series began, by number
  std::vector<Matrix> matrices;                        // of those, as far as they are here, transposed

  void add(const Thread& t) {
    t.top->deferred = this, t.top->lane = t.lane, t.top->step = steps + kSteps;
    tops[t.lane] = reinterpret_cast<char*>(t.top);
  }
  void begin_series(StackTop& top) {
    if (top.runs++) return;
    top.step = steps;
    if (!steps->place) loaded = 0, matrices.clear();
  }
  void end_series(StackTop& top) {
    if (--top.runs) return;
    if (top.step != steps) meet();
    top.step = steps + kSteps;
  }
  bool left(const StackTop& top) const { return top.runs && top.step != steps; }
  [[gnu::noinline]] static void meet();
  void finish();                                       // once the lanes have met

  [[gnu::noinline]] Step& first(StackTop& top, const Step& mine);   // what this lane does next, if `top.step` does not say so
  [[gnu::noinline]] void no_longer_shared(Step& step, int lane, Fragment mine);

 private:
  bool shares(const StackTop& top, Step& mine) const;
  void load(const Step& step, bool alike);
  template <class Widen> const float (&left_of(const Step& step, Widen widen))[16][16];
  template <class Widen> void multiply(const Step& step, Widen widen);

  struct Left {                                        // an operand a
    struct Key { std::uint32_t number; ptx::Kind kind; bool operator==(const Key&) const = default; } key;
    alignas(32) float of[16][16];
  } converted[4];
  char* tops[32];                                      // of the lanes' stacks
};

inline void Deferred::meet() {
  Thread& t = this_thread();
  t.place = place_of(t.top->step[-1].place);
  t.block->meet("mma.sync", [] { this_thread().warp->deferred->finish(); });
}

// No other lane has come to it, or not to this one.
inline Step& Deferred::first(StackTop& top, const Step& mine) {
  if (top.step == steps + kSteps) top.runs ? meet() : void(top.step = steps);
  Step& step = *top.step;
  if (step.place) {
    top.thread->place = place_of(mine.place);
    if (step.place != mine.place || step.d != mine.d)
      block->fault("the warp diverged: its lanes come from different ldmatrix or mma.sync", "a branch around one that not all 32 lanes take", place_of(step.place));
    return step;
  }
  step = mine;
  if (step.kind.matrices) {
    step.rows = rows[rows_left++];
    step.a = std::exchange(loaded, loaded + step.kind.matrices);
  } else if (step.kind.a_loaded) {
    const auto* const a = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(&top) + step.a_at);
    for (std::uint32_t i = 0; i < 4; ++i)
      if (a[i] != a[0] + i) not_modelled("mma.sync of an a that one ldmatrix did not load");
  } else if (!(step.shared = shares(top, step))) {
    step.fragments = fragments[fragments_left++];
  }
  return step;
}

// Operand a often comes again, with other columns of b.
inline bool Deferred::shares(const StackTop& top, Step& mine) const {
  for (const Step* step = &mine; step-- > steps && &mine - step < 16;)
    if (!step->kind.matrices && !step->kind.a_loaded && step->a_at == mine.a_at) {
      mine.fragments = step->fragments;
      return step->kind.float16 == mine.kind.float16 && std::memcmp(mine.fragments + top.lane, reinterpret_cast<const char*>(&top) + mine.a_at, sizeof(Fragment)) == 0;
    }
  return false;
}

// In this lane it is another one. Those that came before had the same, those that come later have left what it was.
inline void Deferred::no_longer_shared(Step& step, int lane, Fragment mine) {
  Fragment* const apart = fragments[fragments_left++];
  std::memcpy(apart, step.fragments, sizeof *fragments);
  apart[lane] = mine;
  step.fragments = apart, step.shared = false;
}

}  // namespace cuda_on_host
