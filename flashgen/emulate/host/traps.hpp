// What the processor itself stops at, as faults: plain accesses outside memory, alignment that vectors want, divisions by zero.
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include "global_memory.hpp"

namespace cuda_on_host {

inline thread_local constinit sigjmp_buf* trapped = nullptr;   // back to the core's own stack; what the block owns is lost
inline thread_local constinit siginfo_t trap_info{};
inline thread_local constinit std::uintptr_t trap_at = 0;      // the instruction

inline void on_trap(int, siginfo_t* info, void* context) {
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  trap_at = static_cast<std::uintptr_t>(registers.gregs[REG_RIP]);
#else
  trap_at = static_cast<std::uintptr_t>(registers.pc);
#endif
  trap_info = *info;
  siglongjmp(*trapped, 1);
}

inline Fault trap_fault() {
  const bool thread = block && block->running();
  Fault fault{"", "", thread ? place_of(reinterpret_cast<const void*>(trap_at)) + 1 : block->place(), 0, thread ? block->block_of(block->thread()) : block->number(), thread ? block->local(block->thread()) : -1};
  if (trap_info.si_signo == SIGILL || trap_info.si_signo == SIGTRAP) {
    fault.what = "the compiler found that this cannot happen";
    fault.hint = "what C++ leaves undefined: an end of a function without return, an access of another type";
  } else if (trap_info.si_signo == SIGFPE) {
    fault.what = "a division of integers by zero";
    fault.hint = "lengths, counts and params that can be zero";
  } else if (trap_info.si_code == SI_KERNEL || trap_info.si_signo == SIGBUS) {
    fault.what = "an access that is not aligned";
    fault.hint = "the width of the access against the start and the strides of the array";
  } else {
    fault.what = "plain access of global memory at " + outside_of(reinterpret_cast<std::uintptr_t>(trap_info.si_addr));
    fault.hint = kOutside;
  }
  return fault;
}

class TrapStack {                                      // a core's: handlers run there, as the fiber's may be full
 public:
  TrapStack() {
    const stack_t mine{stack_.data(), 0, stack_.size()};
    sigaltstack(&mine, &old_);
  }
  ~TrapStack() { sigaltstack(&old_, nullptr); }

 private:
  std::vector<char> stack_ = std::vector<char>(1 << 16);
  stack_t old_;
};

class Traps {                                          // while it lives, the handlers are ours
 public:
  Traps() {
    struct sigaction action{};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~Traps() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
  std::array<struct sigaction, kSignals.size()> old_;
};

}  // namespace cuda_on_host
