// One launch on the emulator in a process of its own, for a processor that Python does not run on. test_aarch64.py writes what it takes
// (numbers of 8 bytes, and texts and memory with their length before them), and reads what it leaves: the arrays; on stdout, the finding.
#include <fstream>
#include <iostream>

#include "machine.cpp"

struct Memory {                                        // 16-byte aligned, and as many bytes after that as it was
  std::size_t bytes, shift;
  char* at;
  explicit Memory(std::istream& in, std::size_t shift = 0) : shift(shift) {
    in.read(reinterpret_cast<char*>(&bytes), 8);
    at = new (std::align_val_t{64}) char[bytes + shift + 16]() + shift;
    in.read(at, static_cast<std::streamsize>(bytes));
  }
};

int main(int, char** arguments) {
  using namespace cuda_on_host;
  std::ifstream in(arguments[1], std::ios::binary);
  const auto number = [&] { std::uint64_t n; in.read(reinterpret_cast<char*>(&n), 8); return n; };
  const Memory entry(in), params(in);
  Launch launch{};
  for (unsigned& n : launch.grid) n = static_cast<unsigned>(number());
  for (unsigned& n : launch.block) n = static_cast<unsigned>(number());
  launch.shared_bytes = static_cast<std::uint32_t>(number());
  launch.seed = number(), launch.number = static_cast<int>(number());
  launch.checks = launch.cluster = 1, launch.cores = 2, launch.params = params.at;
  std::vector<Array> arrays;
  std::vector<Memory> kept;
  for (auto count = number(); count--;) {
    const auto shift = number(), defined = number();
    const Memory name(in), memory(in, shift), shadow(in);
    arrays.push_back({name.at, reinterpret_cast<std::uintptr_t>(memory.at), memory.bytes, shadow.bytes ? reinterpret_cast<GlobalGranule*>(shadow.at) : nullptr, defined != 0});
    kept.push_back(memory), kept.push_back(shadow);
  }
  for (auto count = number(); count--;) {              // pointers in params: where, and to what
    const auto at = number(), array = number(), pointer = arrays[array].begin + number();
    std::memcpy(params.at + at, &pointer, 8);
  }
  launch.arrays = arrays.data(), launch.array_count = static_cast<int>(arrays.size());
  if (const Report* found = cuda_on_host_launch(cuda_on_host_entry(entry.at), &launch)) std::cout << found->what;
  std::ofstream out(arguments[2], std::ios::binary);
  for (const Memory& memory : kept) out.write(memory.at, static_cast<std::streamsize>(memory.bytes));
}
