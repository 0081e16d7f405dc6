// Fibers: one stack per CUDA thread, switched by hand on x86-64 and aarch64, by ucontext elsewhere (-DFIBERS_BY_UCONTEXT forces it).
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "stack.hpp"

#if !defined(__x86_64__) && !defined(__aarch64__)
#define FIBERS_BY_UCONTEXT
#endif
#ifdef FIBERS_BY_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_on_host {

#ifdef FIBERS_BY_UCONTEXT

struct Context { ucontext_t registers; };

inline void switch_context(Context& from, Context& to) { swapcontext(&from.registers, &to.registers); }
inline void prefetch_context(const Context&) {}

inline void prepare_context(Context& context, char* bottom, char* top, void (*entry)()) {
  getcontext(&context.registers);
  context.registers.uc_stack.ss_sp = bottom;
  context.registers.uc_stack.ss_size = static_cast<std::size_t>(top - bottom);
  context.registers.uc_link = nullptr;
  makecontext(&context.registers, entry, 0);
}

#else

struct Context { void* stack_pointer = nullptr; };

extern "C" void cuda_on_host_switch(void** save, void* load);
#if defined(__x86_64__)
// System V x86-64: a callee keeps rbx, rbp, r12-r15 and the stack pointer; everything else is the caller's to save.
asm(R"(
  .pushsection .text
  .type cuda_on_host_switch, @function
cuda_on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cuda_on_host_switch, .-cuda_on_host_switch
  .popsection
)");
constexpr int kSaved = 8, kReturn = 6;                 // words: the registers, where `ret` goes, and for alignment the return address of an entry, which never returns
#else
// AAPCS64: a callee keeps x19-x30, d8-d15 and the stack pointer.
asm(R"(
  .pushsection .text
  .type cuda_on_host_switch, %function
cuda_on_host_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size cuda_on_host_switch, .-cuda_on_host_switch
  .popsection
)");
constexpr int kSaved = 20, kReturn = 11;
#endif

inline void switch_context(Context& from, Context& to) { cuda_on_host_switch(&from.stack_pointer, to.stack_pointer); }
// What a fiber goes on with, into the cache.
inline void prefetch_context(const Context& context) {
  for (int line = 0; line < 8; ++line) __builtin_prefetch(static_cast<const char*>(context.stack_pointer) + 64 * line);
}

inline void prepare_context(Context& context, char*, char* top, void (*entry)()) {
  auto** const saved = reinterpret_cast<void**>(top) - kSaved;   // what the first switch loads; the top is a multiple of 16
  std::fill_n(saved, kSaved, nullptr);
  saved[kReturn] = reinterpret_cast<void*>(entry);
  context.stack_pointer = saved;
}

#endif

// Stacks of one resident block, with a guard page below each: an overflow faults instead of corrupting a neighbour.
class Stacks {
 public:
  static constexpr std::size_t kThreads = 1024;        // the largest CUDA block

  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    if (mapped_) munmap(mapped_, kMapped);
  }

  StackTop& prepare(std::size_t number, Context& context, const StackTop& top, void (*entry)()) {
    if (!mapped_) {
      mapped_ = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped_ == MAP_FAILED) throw std::runtime_error("no memory for fiber stacks");
      first_ = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(mapped_) + StackTop::kBytes - 1) & ~(StackTop::kBytes - 1));
    }
    for (; guarded_ <= number; ++guarded_) mprotect(first_ + guarded_ * StackTop::kBytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
    char* const bottom = first_ + number * StackTop::kBytes;
    prepare_context(context, bottom, reinterpret_cast<char*>(&top_of(bottom)), entry);
    return top_of(bottom) = top;
  }

 private:
  static constexpr std::size_t kMapped = (kThreads + 1) * StackTop::kBytes;

  void* mapped_ = nullptr;
  char* first_ = nullptr;
  std::size_t guarded_ = 0;
};

}  // namespace cuda_on_host
