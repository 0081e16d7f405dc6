// Division and remainder that round towards minus infinity; n > 0.

__device__ __forceinline__ int floor_div(int a, int n) { return a / n - (a % n < 0); }
__device__ __forceinline__ long long floor_div(long long a, long long n) { return a / n - (a % n < 0); }

__device__ __forceinline__ int floor_mod(int a, int n) { return a % n + (a % n < 0 ? n : 0); }
__device__ __forceinline__ long long floor_mod(long long a, long long n) { return a % n + (a % n < 0 ? n : 0); }
