// Threads, warps and asynchronous units of a block, as the scheduler knows them.
#pragma once
#include <string>

#include "clocks.hpp"
#include "exchange.hpp"
#include "fault.hpp"
#include "fibers.hpp"
#include "ptx.hpp"

namespace cuda_on_host {

struct Wait { const char* what = ""; std::uint32_t object = 0; int detail = 0; };   // why a thread is blocked
inline constexpr const char* kTurn = "its turn";        // at a word that other blocks see at once
// Such a word, and what a thread found or left there.
struct Visit {
  const void* word = nullptr;
  std::uint32_t value = 0;
  bool operator==(const Visit&) const = default;
};
struct Shape { int first, blocks; Dim3 size; };        // of a cluster: the number of its first block, how many, the threads of each

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
  int id = 0, lane = 0;                                // id: in the cluster
  int rank = 0;                                        // of its block in the cluster
  Place place = 0;                                     // the last twin it called
  unsigned exchanges = 0;
  std::uint32_t products_seen = 0, stores_seen = 0;    // how far this very thread has waited for its warpgroup's wgmma, its warp's TMA stores,
  std::uint32_t copies_seen = 0, kernel_ahead_seen = 0;   // its warp's cp.async, the end of the kernel ahead
  std::uint32_t met = 1;                               // what its warp's other lanes did from that time of the warp on is not known to it
  bool done = false;
  int registers = 0, register_changes = 0;             // setmaxnreg
  Wait wait;
  Visit visit;                                         // its last
};
inline Thread& this_thread() { return *THIS_STACK.thread; }

struct Warp {
  std::uint32_t ready = 0;                             // lanes that can run
  std::uint32_t paused = 0;                            // lanes that wait for the warp's turn, or have ended theirs
  std::uint32_t gone = 0;                              // lanes that have returned, or never were: no rendezvous waits for them
  std::uint32_t priority = 0;
  std::uint32_t met = 0;                               // its time at the last __syncwarp
  struct Release { std::uint32_t time = 0; int lane = 0; Place place = 0; } released;   // the last one, by a lane at a time
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

}  // namespace cuda_on_host
