// Where the lanes of a warp meet and leave values for each other; the last one to come may act for all.
#pragma once
#include "block.hpp"

namespace cuda_on_host {

template <class Last>
INLINED void Block::meet(const char* what, Last last) {
  Thread& self = this_thread();
  Warp& warp = *self.warp;
  Exchange& e = warp.exchanges[self.exchanges++ & 1];
  if (e.arrived == 0) e.what = what, e.place = self.place;
  if (e.what != what && std::strcmp(e.what, what) != 0)
    fault(text("the warp diverged: this lane is at %s, others at %s", what, e.what), "a branch that not all 32 lanes take around one of the two", e.place);
  e.arrived |= 1u << self.lane;
  if ((e.arrived | warp.gone) != ~0u) return block_on({what});
  warp.ready |= e.arrived & ~(1u << self.lane);
  e.arrived = 0;
  last();
}

template <class Value>
INLINED Left<Value> Block::exchange(const char* what, Value mine) {
  const Thread& self = this_thread();
  const Left<Value> all(self.warp->exchanges[self.exchanges & 1]);
  exchange(what, mine, [](const Left<Value>&) {});
  return all;
}

template <class Value, class Last>
INLINED void Block::exchange(const char* what, Value mine, Last last) {
  static_assert(sizeof(Value) <= 32);
  Thread& self = this_thread();
  Exchange& e = self.warp->exchanges[self.exchanges & 1];
  std::memcpy(e.values[static_cast<std::size_t>(self.lane)].data(), &mine, sizeof mine);
  meet(what, [&] { last(Left<Value>(e)); });
}

}  // namespace cuda_on_host
