// Pointers of a kernel's text, and arrays of a thread's own: types that see what is done through them (types.py).
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "stack.hpp"

#define INLINED inline __attribute__((always_inline))   // so that a return address names the whole chain of inlined callers

namespace cuda_on_host {

void misaligned_pointer();
void past_the_end();
void met_nan(float x);                                 // on its way to memory, or to fewer bits
INLINED void leaves(float x) { if (x != x) [[unlikely]] met_nan(x); }
// A load or a store of C++, to the race checker: global memory's, unless it is the thread's own.
template <unsigned kBytes> void note_load(const void* address);
template <unsigned kBytes> void note_store(const void* address);

template <class T, int N, int... More> struct Local;
template <class T> constexpr bool kIsLocal = false;
template <class T, int... Sizes> constexpr bool kIsLocal<Local<T, Sizes...>> = true;

// What a pointer points to: read where it is used as a value, written where something is assigned to it.
template <class T> class Element {
 public:
  INLINED explicit Element(T* at) : at_(at) {}
  INLINED operator std::remove_const_t<T>() const {
    if (elsewhere()) note_load<sizeof(T)>(at_);
    return *at_;
  }
  INLINED T operator=(const T& value) const {
    if (elsewhere()) {
      note_store<sizeof(T)>(at_);
      if constexpr (std::same_as<T, float>) leaves(value);
    }
    return *at_ = value;
  }
  INLINED T operator=(const Element& other) const { return *this = static_cast<T>(other); }
  INLINED T& result() const {                          // which an instruction writes
    if (elsewhere()) note_store<sizeof(T)>(at_);
    return *at_;
  }
  INLINED T operator+=(const T& value) const { return *this = static_cast<T>(*this) + value; }

 private:
  // Not in the stack of the thread that runs, where most are.
  INLINED bool elsewhere() const {
    const auto at = reinterpret_cast<std::uintptr_t>(at_);
    if ((at ^ reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0))) < StackTop::kBytes) return false;
    if (at % alignof(T)) [[unlikely]] misaligned_pointer();
    return true;
  }
  T* at_;
};

template <class T> INLINED T& result(T& variable) { return variable; }
template <class T> INLINED T& result(Element<T> element) { return element.result(); }

// T*
template <class T> struct Pointer {
  T* at;

  Pointer() = default;
  INLINED Pointer(T* address) : at(address) {}
  template <class U> requires std::same_as<const U, T> INLINED Pointer(Pointer<U> other) : at(other.at) {}
  template <int N> INLINED Pointer(Local<T, N>& array) : at(array.rows) {}
  template <class U, int N> requires std::same_as<const U, T> INLINED Pointer(const Local<U, N>& array) : at(array.rows) {}
  INLINED operator T*() const { return at; }
  template <std::unsigned_integral Integer> requires(sizeof(Integer) == sizeof(T*)) INLINED explicit operator Integer() const { return reinterpret_cast<Integer>(at); }

  INLINED decltype(auto) operator*() const {
    if constexpr (kIsLocal<T>) return (*at);
    else if constexpr (std::is_const_v<T>) return static_cast<std::remove_const_t<T>>(Element<T>(at));
    else return Element<T>(at);
  }
  INLINED decltype(auto) operator[](std::integral auto i) const { return *(*this + i); }
  INLINED Pointer operator+(std::integral auto n) const { return at + n; }
  INLINED Pointer operator-(std::integral auto n) const { return at - n; }
  INLINED Pointer& operator+=(std::integral auto n) { return at += n, *this; }
};
template <class T> INLINED std::ptrdiff_t operator-(Pointer<T> a, Pointer<T> b) { return a.at - b.at; }

// reinterpret_cast<To*>. It tests the alignment, as some compilers copy through the pointer unseen.
template <class To, class From> INLINED Pointer<To> cast(From* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(To)) misaligned_pointer();
  return reinterpret_cast<To*>(from);
}
template <class To, class From> INLINED Pointer<To> cast(Pointer<From> from) { return cast<To>(from.at); }

// T[N][...], a thread's. A row one past the end is a fault, too, to which compilers let a reference be made.
template <class T, int... Sizes> struct RowOf { using Type = Local<T, Sizes...>; };
template <class T> struct RowOf<T> { using Type = T; };
template <class T, int N, int... More> struct Local {
  using Row = typename RowOf<T, More...>::Type;
  Row rows[N];

  INLINED Row& operator[](std::integral auto i) { return test(i), rows[i]; }
  INLINED const Row& operator[](std::integral auto i) const { return test(i), rows[i]; }
  INLINED Pointer<Row> operator+(std::integral auto n) { return rows + n; }
  INLINED Pointer<const Row> operator+(std::integral auto n) const { return rows + n; }

 private:
  static INLINED void test(auto i) {
    if (i < 0 || i >= N) [[unlikely]] past_the_end();
  }
};

}  // namespace cuda_on_host
