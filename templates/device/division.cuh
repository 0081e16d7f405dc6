// Division of integers, n > 0: floor_div and floor_mod round towards minus infinity, quotient and remainder are of what is not negative.

__device__ __forceinline__ int floor_div(int a, int n) { return a / n - (a % n < 0); }
__device__ __forceinline__ long long floor_div(long long a, long long n) { return a / n - (a % n < 0); }

__device__ __forceinline__ int floor_mod(int a, int n) { return a % n + (a % n < 0 ? n : 0); }
__device__ __forceinline__ long long floor_mod(long long a, long long n) { return a % n + (a % n < 0 ? n : 0); }

__device__ __forceinline__ int quotient(int a, int n) { return u32(a) / u32(n); }

// The same, at once where it is 0.
__device__ __forceinline__ int quotient_of_few(int a, int n) {
  if (a < n) return 0;
  return u32(a) / u32(n);
}

__device__ __forceinline__ int remainder(int a, int n) { return u32(a) % u32(n); }

// The same of a key, counted from where its tile begins in n keys: a tile that divides n lies between two multiples of it.
__device__ __forceinline__ int key_quotient(int a, int n) { return n % BLOCK_N ? u32(a) / u32(n) : 0; }

__device__ __forceinline__ int key_remainder(int a, int n) { return n % BLOCK_N ? u32(a) % u32(n) : a; }

// a % n for 0 <= a < 2 n.
__device__ __forceinline__ int wrapped(int a, int n) { return min(u32(a), u32(a - n)); }

// Division by the same n many times, as a product: exact for a < 2^31, since n divides 2^(31 + shift) + e with e < n <= 2^shift.
struct Divisor {
  u32 n, multiplier, shift;
  Divisor() = default;
  __device__ __forceinline__ explicit Divisor(int d) : n(max(d, 1)), shift(32 - __clz(n - 1)) { multiplier = ((1ull << (31 + shift)) + n - 1) / n; }
  __device__ __forceinline__ int quotient(int a) const { return __umulhi(2 * u32(a), multiplier) >> shift; }
  __device__ __forceinline__ int remainder(int a) const { return a - quotient(a) * n; }
  __device__ __forceinline__ int floor_div(int a) const { return a < 0 ? ~quotient(~a) : quotient(a); }
  __device__ __forceinline__ int floor_mod(int a) const { return a - floor_div(a) * n; }
};

// Of two bools in one word that of a column.
__device__ __forceinline__ bool flag_at(u32 both, int column) { return both & 0xFF << column % 2 * 8; }

// Bit i of x; none outside 0 to 31.
__device__ __forceinline__ bool bit(int x, int i) { return u32(i) < 32 && (x >> i & 1); }
__device__ __forceinline__ bool bit(long long x, long long i) { return i >= 0 && i < 32 && (x >> i & 1); }
__device__ __forceinline__ bool long_bit(long long x, int i) { return u32(i) < 64 && (x >> i & 1); }

// The integer nearest to x.
__device__ __forceinline__ int long_int(long long x) { return int(min(max(x, -2147483648LL), 2147483647LL)); }
