// Fibers: one stack per CUDA thread, switched by hand on x86-64 and by ucontext elsewhere (-DFIBERS_BY_UCONTEXT forces it).
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if !defined(__x86_64__)
#define FIBERS_BY_UCONTEXT
#endif
#ifdef FIBERS_BY_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_on_host {

#ifdef FIBERS_BY_UCONTEXT

struct Context { ucontext_t registers; };

inline void switch_context(Context& from, Context& to) { swapcontext(&from.registers, &to.registers); }

inline void prepare_context(Context& context, char* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&context.registers);
  context.registers.uc_stack.ss_sp = stack;
  context.registers.uc_stack.ss_size = bytes;
  context.registers.uc_link = nullptr;
  makecontext(&context.registers, entry, 0);
}

#else

struct Context { void* stack_pointer = nullptr; };

// System V x86-64: a callee keeps rbx, rbp, r12-r15 and the stack pointer; everything else is the caller's to save.
extern "C" void cuda_on_host_switch(void** save, void* load);
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

inline void switch_context(Context& from, Context& to) { cuda_on_host_switch(&from.stack_pointer, to.stack_pointer); }

inline void prepare_context(Context& context, char* stack, std::size_t bytes, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(stack + bytes) & ~std::uintptr_t{15});
  *--top = nullptr;                                    // the entry's return address: it never returns
  *--top = reinterpret_cast<void*>(entry);             // where the first switch's `ret` goes, 16-byte aligned as the ABI wants
  for (int i = 0; i < 6; ++i) *--top = nullptr;        // the six registers the first switch pops
  context.stack_pointer = top;
}

#endif

// Stacks of one resident block, with a guard page below each: an overflow faults instead of corrupting a neighbour.
class Stacks {
 public:
  static constexpr std::size_t kBytes = 128 << 10;
  static constexpr int kThreads = 1024;                // the largest CUDA block

  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    if (memory_) munmap(memory_, kThreads * (kBytes + page()));
  }

  char* at(int thread) {
    const std::size_t page = this->page(), stride = kBytes + page;
    if (!memory_) {
      void* memory = mmap(nullptr, kThreads * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::runtime_error("no memory for fiber stacks");
      memory_ = static_cast<char*>(memory);
    }
    for (; guarded_ <= thread; ++guarded_) mprotect(memory_ + static_cast<std::size_t>(guarded_) * stride, page, PROT_NONE);
    return memory_ + static_cast<std::size_t>(thread) * stride + page;
  }
  // Frames of a warp's lanes, at the same depth, fall into different sets of the first cache.
  static std::size_t bytes(int thread) { return kBytes - static_cast<std::size_t>(thread) % 32 * 128; }

 private:
  static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

  char* memory_ = nullptr;
  int guarded_ = 0;
};

}  // namespace cuda_on_host
