// flashgen 0.1.0 | spec float32 | arch sm_90a | plan 9eac2381 | generated, do not edit
//
//   o = softmax(score(softmax_scale * q k^T) where mask) v
//
//   arrays    q, o [B, Sq, Hq, 128] float32    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   planes    2 float16 planes, scaled by powers of two: a query row, a tile of keys or values; low x high + high x low + high x high, small ones before or
//             apart; o error about 4e-07
//   tile      128 queries x 80 keys    2 warpgroups compute 64 query rows each, 1 loads
//   keys      of a query tile: 2 ranges of tiles in closed form (unmasked, masked), taken downwards
//   order     longest query tiles first, in sections of heads that share the L2, dealt by a counter
//   softmax   one pass, log2 units; o and l rescaled at every key tile, divided once at the end; no key: o = 0, lse = -inf
//   shared    Q 65536 | K 2 x 40960 | V 2 x 40960 | k scales 2 x 16 | v scales 2 x 16 | tile 128 | 2 stages    229648 of 232448 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Strides { long long batch, head, row, column; };   // in elements

struct Params {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
  Strides o_strides;
  float* lse;                            // [B, Hq, Sq], natural log
  u16* k_planes;                         // of k, tiles as in shared memory
  u16* v_planes;                         // of v, tiles as in shared memory
  float* k_scales;                       // of a tile, 16 bytes apart, or NaN
  float* v_scales;                       // of a tile, 16 bytes apart, or NaN
  int* lost;                             // of 16 query rows: whether they have seen what planes cannot hold
  int* counter;                          // query tiles dealt beyond the first of each block; blocks that are done. Zero at launch, zero again after
  float softmax_scale;
  int q_len;
  int kv_len;
  int heads;
  int batch;
  int group;                             // query heads a key/value head
  int section;                           // heads whose keys and values stay in the L2 together
};

// ----------------------------------------------------------------------------------------------------------------- plan

constexpr int BLOCK_M = 128;             // queries of a tile
constexpr int BLOCK_N = 80;              // keys of a tile
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int STAGES = 2;                // key and value tiles in flight
constexpr float LN_2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)

constexpr int QK_DIM = 128, V_DIM = 128;   // columns of the arrays
constexpr int QK_PART = 64, V_PART = 128;   // columns that one sum of a score covers, that one product of values gives
constexpr int PLANES = 2;                // of an operand, high first
using Element = u16;                     // that products multiply: float16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
constexpr int Q_PLANE = BLOCK_M * QK_STORED * ELEMENT_BYTES;   // bytes
constexpr int K_PLANE = BLOCK_N * QK_STORED * ELEMENT_BYTES, V_PLANE = BLOCK_N * V_STORED * ELEMENT_BYTES;
constexpr int SPLIT_THREADS = 256;       // of a block that splits a tile
constexpr int K_BYTES = PLANES * K_PLANE, V_BYTES = PLANES * V_PLANE;
constexpr int SCALE_BYTES = 16;          // of the scale of a tile of keys or values, so often that a copy moves it

// Shared memory of the attention, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 65536
constexpr u32 K = 65536;                 // 2 x 40960
constexpr u32 V = 147456;                // 2 x 40960
constexpr u32 K_SCALES = 229376;         // 2 x 16
constexpr u32 V_SCALES = 229408;         // 2 x 16
constexpr u32 TILE = 229440;             // 1 x 128
constexpr u32 K_FULL = 229568;           // 2 x 8
constexpr u32 K_EMPTY = 229584;          // 2 x 8
constexpr u32 V_FULL = 229600;           // 2 x 8
constexpr u32 V_EMPTY = 229616;          // 2 x 8
constexpr u32 TILE_FULL = 229632;        // 1 x 8
constexpr u32 TILE_EMPTY = 229640;       // 1 x 8

constexpr int ROW_BYTES = 128, SWIZZLE_COLUMNS = ROW_BYTES / ELEMENT_BYTES;   // of a block: a tile lies as blocks of so many columns, swizzled in each row

// Where a column, the first of a product's, begins in a tile of ROWS rows.
template <int ROWS> __device__ __forceinline__ constexpr u32 column_at(int column) {
  return column / SWIZZLE_COLUMNS * ROWS * ROW_BYTES + column % SWIZZLE_COLUMNS * ELEMENT_BYTES;
}

constexpr int WARPGROUPS = 2, WARPGROUP_ROWS = 64;   // that compute, and the query rows of each
constexpr int LOAD_WARPGROUPS = 1, THREADS = 128 * (LOAD_WARPGROUPS + WARPGROUPS);   // of a block
constexpr int LOAD_REGISTERS = 40, COMPUTE_REGISTERS = 232;   // a thread
constexpr int TILE_BYTES = 128, BARRIER_BYTES = 8;   // of a query tile's Work, of an mbarrier

// Named barriers.
constexpr int MEETING = 4;               // + warpgroup: its four warps are there

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// barrier.cuh: mbarrier_init, mbarrier_init_fence, mbarrier_expect, mbarrier_arrive, mbarrier_wait, bar_sync
// global.cuh: load_global_x4, store_global_x4, store_global_x2
// grid.cuh: previous_kernel_wait, next_kernel_start
// math.cuh: exp2, maximum, f16x2, low_f16, high_f16
// shared.cuh: load_shared, store_shared, store_shared_x4
// tma.cuh: async_proxy_fence, bulk_load
// wgmma.cuh: wgmma_fence, wgmma_commit, wgmma_wait, fewer_registers, more_registers

// d[64 x 80] (+)= a b^T with a in shared memory, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_qk(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39"
    "}, %40, %41, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
    : "l"(a), "l"(b), "r"(accumulate));
}

// d[64 x 128] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_pv(float* d, const u32* a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
    "}, { %64, %65, %66, %67 }, %68, p, 1, 1, 1; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

}  // namespace ptx

// Shared-memory descriptors of wgmma (PTX ISA 9.0, 9.7.15.5.1): address, leading and stride offset in units of 16 bytes, 128-byte swizzle.
constexpr u64 SWIZZLE_128 = 1ull << 62, STRIDE = u64(8 * ROW_BYTES >> 4) << 32;   // from 8 rows to the next 8
__device__ __forceinline__ u64 address(u32 at) { return (at & 0x3FFFF) >> 4; }
// Rows contiguous along k; or along n, with blocks of SWIZZLE_COLUMNS so many bytes apart.
__device__ __forceinline__ u64 k_major(u32 at) { return address(at) | 1ull << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 n_major(u32 at, u32 block_bytes) { return address(at) | u64(block_bytes >> 4) << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 advance(u64 descriptor, u32 bytes) { return (descriptor & ~0xFFFFFFFFull) | u32(u32(descriptor) + (bytes >> 4)); }

// --------------------------------------------------------------------------------------------------------------- planes

constexpr int TOP = 14;                  // the largest of what shares a scale comes into [2^14, 2^15)
constexpr float SMALLEST = 0.125f;       // from there on planes keep all their bits
#define LOST __int_as_float(0x7fffffff)
constexpr float FAINT = 0x1p-11f;        // of a score, in log2 units: what planes lose of q.k in a column is 2^-9 of it

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((127 + e) << 23); }   // 0 for -127
__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }   // as bits, which are ordered as the numbers are
__device__ __forceinline__ int exponent(u32 largest) { return max(min(TOP + 127 - int(largest >> 23), 126), -126); }

// A plane is what the planes before it leave of x and y, rounded to 11 bits.
__device__ __forceinline__ void split(float x, float y, u32 (&planes)[PLANES]) {
  #pragma unroll
  for (int i = 0; i < PLANES; ++i) {
    planes[i] = ptx::f16x2(x, y);
    x -= ptx::low_f16(planes[i]);
    y -= ptx::high_f16(planes[i]);
  }
}

// 8 columns of a row, side by side.
__device__ __forceinline__ void load_columns(float* x, const float* from) {
  ptx::load_global_x4(x, from);
  ptx::load_global_x4(x + 4, from + 4);
}

// ------------------------------------------------------------------------------------------------- holes, from the spec

struct Variant {                         // what score and mask need, folded once a query tile
  const Params& p;
  float factor;                          // log2 units of one unit of the score
  int offset;
  __device__ __forceinline__ Variant(const Params& p, int batch, int head, int kv_head)
    : p(p) {
    factor = p.softmax_scale * 1.442695f;
    offset = p.kv_len - p.q_len + 1;
  }
  __device__ __forceinline__ float to_log2() const { return factor; }   // log2 units of one unit of the score below

  struct Row {                           // of one query row and one key tile
    int end;                             // of the keys seen, from kv_begin
  };
  __device__ __forceinline__ Row row(int q_idx, int kv_begin) const {
    Row row;
    row.end = min(q_idx + offset, p.kv_len) - kv_begin;
    return row;
  }

  // kv_idx <= q_idx + kv_len - q_len
  __device__ __forceinline__ bool keep(const Row& row, int column) const {
    return column < row.end;
  }
};

// ------------------------------------------------------------------------------------------------------------- geometry

struct Sequence {                        // one of the batch: its lengths in rows and in tiles, and where its rows lie
  const Params& p;
  const int batch;

  __device__ __forceinline__ int q_len() const { return p.q_len; }
  __device__ __forceinline__ int kv_len() const { return p.kv_len; }
  __device__ __forceinline__ int query_tiles() const { return (q_len() + BLOCK_M - 1) / BLOCK_M; }
  __device__ __forceinline__ int key_tiles() const { return (kv_len() + BLOCK_N - 1) / BLOCK_N; }
  // Row 0 of a head in an array; row i lies i * strides.row elements further on.
  template <class T> __device__ __forceinline__ T* rows(T* array, const Strides& strides, int head) const {
    return array + batch * strides.batch + head * strides.head;
  }
  // The index of a query row among those of all heads and sequences.
  __device__ __forceinline__ long long row(int head, int q_idx) const { return (long long)(batch * p.heads + head) * q_len() + q_idx; }
};

// -------------------------------------------------------------------------------------------------------------- softmax

struct Rows {                            // the running state of a thread's two rows
  float max[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f};
  float log2 = 1.0f;                     // log2 units of one unit of scores
};

// Accumulator element i of a thread: row (i / 2) % 2 of its two, and this column from the thread's first on.
__device__ __forceinline__ constexpr int column(int i) { return i / 4 * 8 + (i & 1); }
__device__ __forceinline__ int first_column() { return (threadIdx.x & 3) * 2; }

__device__ __forceinline__ float row_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }
__device__ __forceinline__ float row_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

__device__ __forceinline__ float base_of(float max) { return max == -INF ? 0.0f : max; }   // no key yet: exp2(-inf - 0) = 0, not NaN

// Products in units of `scale` become exponentials in units of `unit`, in place. Returns in `rescale` the factors that bring o and l to the new maximum.
template <bool MASKED>
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], Rows& rows, float (&rescale)[2], float (&unit)[2], const float (&scale)[2],
                                        const Variant& variant, int q_idx, int kv_begin) {
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Variant::Row row = variant.row(q_idx + 8 * r, kv_begin + first_column());
    float top = -INF;
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
      #pragma unroll
      for (int j = i; j < i + 2; ++j) {
        if (MASKED && !variant.keep(row, column(j))) s[j] = -INF;
      }
      top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    }
    const float largest = fmaxf(rows.max[r], row_max(top) * scale[r]), base = base_of(largest);
    const float growth = (rows.max[r] - base) * rows.log2;
    rescale[r] = ptx::exp2(growth);
    rows.max[r] = largest;
    // Differences first: products with rows.log2 would be rounded, and those of large scores be no exponents.
    const auto exponential = [&](float s) { return ptx::exp2(fmaf(s, scale[r], -base) * rows.log2); };
    float sum = 0.0f;
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
      const float left = exponential(s[i]), right = exponential(s[i + 1]);
      sum += left + right;
      s[i] = left * power_of_two(TOP);
      s[i + 1] = right * power_of_two(TOP);
    }
    rows.sum[r] = fmaf(rows.sum[r], rescale[r], sum);
    unit[r] = power_of_two(-TOP);
  }
}

// The end of a row: 1 / l, the log-sum-exp and the maximum, natural log. No key: o = 0, lse = -inf, max = -inf.
struct End { float inverse, lse, max; };
__device__ __forceinline__ End finalize(const Rows& rows, int r, const Variant& variant) {
  const float natural = rows.log2 * LN_2, largest = rows.max[r] * natural;
  const float sum = row_sum(rows.sum[r]);
  if (sum == 0.0f) return {0.0f, -INF, -INF};
  return {1.0f / sum, largest + logf(sum), largest};
}

// -------------------------------------------------------------------------------------------- keys and values to planes

__device__ __forceinline__ void splitters_meet() { __syncthreads(); }
// The largest of one number of the threads that split a tile, and the least of another, as bits.
__device__ __forceinline__ void extremes(u32& largest, u32& least, u32 words) {
  #pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    least = min(least, __shfl_xor_sync(~0u, least, lanes));
  }
  if (threadIdx.x % 32 == 0) {
    const u32 own = words + threadIdx.x % SPLIT_THREADS / 32 * 8;
    ptx::store_shared(own, largest);
    ptx::store_shared(own + 4, least);
  }
  splitters_meet();
  #pragma unroll
  for (int warp = 0; warp < SPLIT_THREADS / 32; ++warp) {
    largest = max(largest, ptx::load_shared(words + 8 * warp));
    least = min(least, ptx::load_shared(words + 8 * warp + 4));
  }
}

// One tile: of an array's BLOCK_N rows from `first` on, DIM columns, STORED with zeros around them, in the form that products read from
// shared memory: for each plane blocks of 64 columns, 128 bytes a row, swizzled. Its scale is NaN where a row, or a column of a warp's
// rows, lies so far below it that its planes lose bits, or where a number is not finite.
// `exists`: whether some query may see the key of a row; `seen`: whether it is so of all rows.
template <int DIM, int STORED, class Exists>
__device__ __forceinline__ void split_tile(const float* from, const Strides& strides, int first, int length, Element* to, float* scales, u32 words,
                                           bool seen, Exists exists) {
  constexpr int LANES = STORED <= 64 ? 8 : STORED <= 128 ? 16 : 32, PASS = SPLIT_THREADS / LANES, PASSES = (BLOCK_N + PASS - 1) / PASS;
  const int top_row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
  const int last = min(BLOCK_N, length - first) - 1, nearest = max(last, -first);   // of a sequence without keys row 0 is read, and counts for nothing
  float x[PASSES][8];
  from += first * strides.row + min(chunk * 8, DIM - 8) * strides.column;
  #pragma unroll
  for (int i = 0; i < PASSES; ++i)       // no conditions, so that all are under way at once
    load_columns(x[i], from + min(i * PASS + top_row, nearest) * strides.row);
  if (LANES * 8 > DIM || PASSES * PASS - 1 > last || !seen)
    #pragma unroll
    for (int i = 0; i < PASSES; ++i)
      #pragma unroll
      for (int c = 0; c < 8; ++c)
        x[i][c] = i * PASS + top_row <= last && chunk * 8 < DIM && exists(first + i * PASS + top_row) ? x[i][c] : 0.0f;
  u32 whole = 0, least = 0x7f800000, columns[8] = {};   // the largest number; the largest of the row or column where that is least
  #pragma unroll
  for (int i = 0; i < PASSES; ++i) {
    u32 largest = 0;
    #pragma unroll
    for (int c = 0; c < 8; ++c) {
      largest = max(largest, magnitude(x[i][c]));
      columns[c] = max(columns[c], magnitude(x[i][c]));
    }
    #pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    whole = max(whole, largest);
    if (largest > 0) least = min(least, largest);
  }
  #pragma unroll
  for (int c = 0; c < 8; ++c) {
    #pragma unroll
    for (int lanes = LANES; lanes < 32; lanes *= 2) columns[c] = max(columns[c], __shfl_xor_sync(~0u, columns[c], lanes));
    if (columns[c] > 0) least = min(least, columns[c]);
  }
  extremes(whole, least, words);
  const float factor = power_of_two(exponent(whole));
  #pragma unroll
  for (int i = 0; i < PASSES; ++i) {
    const int row = i * PASS + top_row;
    if (row >= BLOCK_N || chunk * 8 >= STORED) continue;
    u32 planes[4][PLANES];
    #pragma unroll
    for (int c = 0; c < 4; ++c) split(x[i][2 * c] * factor, x[i][2 * c + 1] * factor, planes[c]);
    Element* const at = to + (chunk / 8 * BLOCK_N + row) * SWIZZLE_COLUMNS + ((chunk ^ row) & 7) * 8;
    #pragma unroll
    for (int plane = 0; plane < PLANES; ++plane)
      ptx::store_global_x4(at + plane * BLOCK_N * STORED, planes[0][plane], planes[1][plane], planes[2][plane], planes[3][plane]);
  }
  const bool lost = whole >= 0x7f800000 || __uint_as_float(least) * factor < SMALLEST;
  if (threadIdx.x < SCALE_BYTES / 4) scales[threadIdx.x] = lost ? LOST : power_of_two(-exponent(whole));
}

// A block a tile, of keys and of values in turn.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) split_keys_values(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 words = (u32)__cvta_generic_to_shared(memory);
  const int tiles = Sequence{p, 0}.key_tiles(), heads = p.heads / p.group;   // of every sequence
  const int index = (gridDim.x - 1 - blockIdx.x) / 2;   // downwards, so that the L2 still holds what the attention begins with
  const int tile = index % tiles, head = index / tiles % heads;
  const Sequence sequence{p, index / tiles / heads};
  const bool seen = true;
  const auto exists = [](int) { return true; };
  if (blockIdx.x % 2 == 0)
    split_tile<QK_DIM, QK_STORED>(sequence.rows(p.k, p.k_strides, head), p.k_strides, tile * BLOCK_N, sequence.kv_len(),
                                  p.k_planes + (long long)index * (K_BYTES / 2), p.k_scales + (long long)index * (SCALE_BYTES / 4),
                                  words, seen, exists);
  else
    split_tile<V_DIM, V_STORED>(sequence.rows(p.v, p.v_strides, head), p.v_strides, tile * BLOCK_N, sequence.kv_len(),
                                p.v_planes + (long long)index * (V_BYTES / 2), p.v_scales + (long long)index * (SCALE_BYTES / 4),
                                words, seen, exists);
}

// ----------------------------------------------------------------------------------------------------------------- work

struct Work {                            // a query tile and its key tiles
  static constexpr int RANGES = 2;
  int block, batch, head, kv_head;
  int begin[RANGES], end[RANGES];        // of each range
  static constexpr int V_SLICES = 1, v_slice = 0;   // a block has all columns of v and o

  Work() = default;
  // The t-th query tile of some heads: section by section of heads, which share the L2, in each the last query tiles of all heads first.
  __device__ __forceinline__ Work(int t, const Params& p, int first_head, int heads) {
    const int blocks = Sequence{p, 0}.query_tiles();   // of every sequence
    const int section = t / (p.section * blocks), width = min(p.section, heads - section * p.section), within = t - section * p.section * blocks;
    block = blocks - 1 - within / width;
    head = first_head + section * p.section + within % width;
    batch = head / p.heads;
    head -= batch * p.heads;
    kv_head = head / p.group;
    find_keys(p, block * BLOCK_M, BLOCK_M);
  }
  __device__ __forceinline__ Work(int t, const Params& p) : Work(t, p, 0, p.heads * p.batch) {}

  // The key tiles of `rows` rows from q_begin on.
  __device__ __forceinline__ void find_keys(const Params& p, int q_begin, int rows) {
    const int q_last = min(q_begin + rows, p.q_len) - 1;
    const int keys_end = max(0, p.kv_len - p.q_len + q_last + 1);
    const int full_end = max(0, p.kv_len - p.q_len + q_begin + 1);
    const int last = (keys_end + BLOCK_N - 1) / BLOCK_N;
    const int tail = full_end / BLOCK_N;
    begin[0] = 0, end[0] = tail;
    begin[1] = tail, end[1] = last; // the mask is tested in these
  }

  __device__ __forceinline__ int last() const {   // the last key tile, or -1: no row sees a key
    int tile = -1;
    #pragma unroll
    for (int range = 0; range < RANGES; ++range) tile = begin[range] < end[range] ? end[range] - 1 : tile;
    return tile;
  }
  __device__ __forceinline__ int first() const {  // the first key tile, or 0
    int tile = 0;
    #pragma unroll
    for (int range = RANGES - 1; range >= 0; --range) tile = begin[range] < end[range] ? begin[range] : tile;
    return tile;
  }
};

// Query tiles of some heads, each as often as blocks share it.
__device__ __forceinline__ int count_query_tiles(const Params& p, int heads) { return Sequence{p, 0}.query_tiles() * heads * Work::V_SLICES; }

// The index of a query tile among all, where its flags lie.
__device__ __forceinline__ long long query_tile(const Params& p, const Work& work) {
  return (long long)(work.batch * p.heads + work.head) * Sequence{p, work.batch}.query_tiles() + work.block;
}
// The index of a tile of keys or of values, where its planes and its scale lie.
__device__ __forceinline__ long long key_tile(const Params& p, const Work& work, int tile) {
  return (long long)(work.batch * (p.heads / p.group) + work.kv_head) * Sequence{p, work.batch}.key_tiles() + tile;
}

// The largest scale of a key tile for which planes hold enough of a warp's rows of queries. What lies far below the largest number of its
// row loses bits, and where k is 0 in the column of that one, nothing in the score is larger.
__device__ __forceinline__ float enough(const float (&scale)[2], const Variant& variant) {
  float largest = fmaxf(scale[0], scale[1]);
  #pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
  return FAINT / largest;
}

// Planes of x * factor and y * factor, which nothing rounds before.
__device__ __forceinline__ void split_products(float x, float y, float factor, u32 (&planes)[PLANES]) {
  planes[0] = ptx::f16x2(x * factor, y * factor);
  if (PLANES > 1) planes[PLANES - 1] = ptx::f16x2(fmaf(x, factor, -ptx::low_f16(planes[0])), fmaf(y, factor, -ptx::high_f16(planes[0])));
}

struct QueryRows {                       // of a query tile a warp's rows: of each thread two, 8 apart, and of their chunks of 8 columns every fourth
  static constexpr int CHUNKS = QK_STORED / 32;
  const int row;                         // the thread's first
  const float factor;                    // planes hold rows times this
  float x[2][8 * CHUNKS];

  __device__ __forceinline__ QueryRows(const Params& p, const Work& work, int row, const Variant& variant) : row(row), factor(variant.to_log2()) {
    const Sequence sequence{p, work.batch};
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_idx = min(work.block * BLOCK_M + row + 8 * r, sequence.q_len() - 1);   // beyond the end the last row again
      const float* const from = sequence.rows(p.q, p.q_strides, work.head) + q_idx * p.q_strides.row;
      #pragma unroll
      for (int c = 0; c < CHUNKS; ++c)
        load_columns(x[r] + 8 * c, from + min(chunk(c) * 8, QK_DIM - 8) * p.q_strides.column);
    }
  }
  static __device__ __forceinline__ int chunk(int c) { return c * 4 + threadIdx.x % 4; }

  // Multiplies each row by a power of two, whose inverse is its scale. Whether planes hold all of it, times the factor.
  __device__ __forceinline__ bool normalize(float (&scale)[2]) {
    bool exact = true;
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = 0.0f;              // or NaN
      #pragma unroll
      for (int i = 0; i < 8 * CHUNKS; ++i) {
        if (QK_STORED > QK_DIM && chunk(i / 8) * 8 >= QK_DIM) x[r][i] = 0.0f;
        largest = ptx::maximum(largest, fabsf(x[r][i]));
      }
      largest = ptx::maximum(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = ptx::maximum(largest, __shfl_xor_sync(~0u, largest, 2));
      const int e = exponent(magnitude(largest * factor));
      const float power = power_of_two(e);
      scale[r] = power_of_two(-e);
      exact &= magnitude(largest * factor) < 0x7f800000 && magnitude(largest * power) < 0x7f800000 && !loses_bits(largest * power * factor);
      #pragma unroll
      for (int i = 0; i < 8 * CHUNKS; ++i) x[r][i] *= power;
    }
    if (__any_sync(~0u, some_column_loses<4>())) exact &= !some_column_loses<32>();   // rarely asked
    return __all_sync(~0u, exact);
  }

  // A row, or a column, whose largest number this is.
  static __device__ __forceinline__ bool loses_bits(float largest) { return largest > 0.0f && largest < SMALLEST; }
  // Of the thread's two rows, or of all that LANES lanes have.
  template <int LANES> __device__ __forceinline__ bool some_column_loses() const {
    bool lost = false;
    #pragma unroll
    for (int i = 0; i < 8 * CHUNKS; ++i) {
      float largest = fmaxf(fabsf(x[0][i]), fabsf(x[1][i]));
      #pragma unroll
      for (int lanes = 4; lanes < LANES; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
      lost |= loses_bits(largest * factor);
    }
    return lost;
  }

  __device__ __forceinline__ void store(u32 tile) const {   // as planes, in the form of split_tile
    #pragma unroll
    for (int r = 0; r < 2; ++r)
      #pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        u32 planes[4][PLANES];
        #pragma unroll
        for (int i = 0; i < 4; ++i) split_products(x[r][8 * c + 2 * i], x[r][8 * c + 2 * i + 1], factor, planes[i]);
        const u32 at = tile + (chunk(c) / 8 * BLOCK_M + row + 8 * r) * ROW_BYTES + ((chunk(c) ^ row) & 7) * 16;
        #pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
          ptx::store_shared_x4(at + plane * Q_PLANE, planes[0][plane], planes[1][plane], planes[2][plane], planes[3][plane]);
      }
  }
};

// ---------------------------------------------------------------------------------------------------------------- roles

// What was found out about a query tile goes to the others through shared memory, word by word.
__device__ __forceinline__ void post(u32 at, const Work& work) {
  #pragma unroll
  for (int i = 0; i < sizeof(Work) / 4; ++i) ptx::store_shared(at + 4 * i, reinterpret_cast<const u32*>(&work)[i]);
}
__device__ __forceinline__ Work fetch(u32 at) {
  Work work;
  work.block = ptx::load_shared(at);
  if (work.block >= 0)                   // else there is no tile, and nothing more was written
    #pragma unroll
    for (int i = 1; i < sizeof(Work) / 4; ++i) reinterpret_cast<u32*>(&work)[i] = ptx::load_shared(at + 4 * i);
  return work;
}
static_assert(sizeof(Work) <= TILE_BYTES, "there is place for a query tile");

// The last block leaves the counters as it found them, and the one behind them, of blocks that are done.
__device__ __forceinline__ void leave(int* counter, int counters) {
  __threadfence();
  if (atomicAdd(counter + counters, 1) == int(gridDim.x) - 1)
    for (int i = 0; i <= counters; ++i) counter[i] = 0;
}

// A warp's next number.
__device__ __forceinline__ int take(int* counter) {
  int taken;
  if (threadIdx.x % 32 == 0) taken = atomicAdd(counter, 1);
  return __shfl_sync(~0u, taken, 0);
}

struct Dealer {                          // query tiles by a counter, a block's first by its own number
  static constexpr int COUNTERS = 1;
  const Params& p;
  const int count = count_query_tiles(p, p.heads * p.batch);
  int t;

  __device__ __forceinline__ bool next(int dealt) {
    t = dealt ? gridDim.x + take(p.counter) : blockIdx.x;
    return t < count;
  }
  __device__ __forceinline__ Work work() const { return Work(t, p); }
};

// One warp: deals query tiles, the next while one is worked on, so that nobody waits for the counter, or while key tiles are found.
__device__ __forceinline__ void deal(const Params& p, u32 shared) {
  const int lane = threadIdx.x & 31, reader = 0;
  const u32 place = shared + TILE + TILE_BYTES * reader;
  Dealer dealer{p};
  ptx::previous_kernel_wait();           // what is counted begins at zero
  for (int dealt = 0;; ++dealt) {
    ptx::mbarrier_wait(shared + TILE_EMPTY, (dealt & 1) ^ 1);
    const bool more = dealer.next(dealt);
    if (more) {
      const Work work = dealer.work();
      if (lane == reader) post(place, work);
    } else if (lane == reader) {
      ptx::store_shared(place, u32(-1));
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + TILE_FULL);
    if (!more) break;
  }
  if (lane == 0) leave(p.counter, Dealer::COUNTERS);
}

struct Copies {                          // that one thread starts, for a query tile
  const Params& p;
  const u32 shared;
  const Work& work;

  __device__ __forceinline__ void keys(int tile, int stage) const {
    const u32 full = shared + K_FULL + BARRIER_BYTES * stage;
    const long long index = key_tile(p, work, tile);
    ptx::mbarrier_expect(full, K_BYTES + SCALE_BYTES);
    ptx::bulk_load(shared + K + stage * K_BYTES, p.k_planes + index * (K_BYTES / 2), K_BYTES, full);
    ptx::bulk_load(shared + K_SCALES + stage * SCALE_BYTES, p.k_scales + index * (SCALE_BYTES / 4), SCALE_BYTES, full);
  }
  __device__ __forceinline__ void values(int tile, int stage) const {
    const u32 full = shared + V_FULL + BARRIER_BYTES * stage;
    const long long index = key_tile(p, work, tile);
    ptx::mbarrier_expect(full, V_BYTES + SCALE_BYTES);
    ptx::bulk_load(shared + V + stage * V_BYTES, p.v_planes + index * (V_BYTES / 2), V_BYTES, full);
    ptx::bulk_load(shared + V_SCALES + stage * SCALE_BYTES, p.v_scales + index * (SCALE_BYTES / 4), SCALE_BYTES, full);
  }
};

// One thread: fills the buffers.
__device__ __forceinline__ void load(const Params& p, u32 shared) {
  int stage = 0, parity = 1;
  ptx::previous_kernel_wait();           // what it wrote is there
  for (int dealt = 0;; ++dealt) {
    ptx::mbarrier_wait(shared + TILE_FULL, dealt & 1);
    const Work work = fetch(shared + TILE);
    ptx::mbarrier_arrive(shared + TILE_EMPTY);
    if (work.block < 0) return;
    const Copies copies{p, shared, work};
    for (int tile = work.last(); tile >= work.first(); --tile) {
      ptx::mbarrier_wait(shared + K_EMPTY + BARRIER_BYTES * stage, parity);
      copies.keys(tile, stage);
      ptx::mbarrier_wait(shared + V_EMPTY + BARRIER_BYTES * stage, parity);
      copies.values(tile, stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

// o = o * rescale + product * weight, for rows of a thread.
template <int N> __device__ __forceinline__ void add_tile(float* o, const float (&product)[N], const float (&rescale)[2], const float (&weight)[2]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) o[i] = fmaf(product[i], weight[i / 2 % 2], o[i] * rescale[i / 2 % 2]);
}

__device__ __forceinline__ void store_rows(const float (&o)[V_COLUMNS / 2], const Rows& rows, const Sequence& sequence, const Variant& variant,
                                           const Work& work, int q_idx) {
  const Params& p = sequence.p;
  const int first = work.v_slice * V_COLUMNS;   // of the columns of o
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = q_idx + 8 * r;
    const End end = finalize(rows, r, variant);
    if (row >= sequence.q_len()) continue;
    if (work.v_slice == 0 && threadIdx.x % 4 == 0) p.lse[sequence.row(work.head, row)] = end.lse;
    float* const to = sequence.rows(p.o, p.o_strides, work.head) + row * p.o_strides.row + (first + first_column()) * p.o_strides.column;
    #pragma unroll
    for (int i = 2 * r; i < V_COLUMNS / 2; i += 4)
      if (V_COLUMNS == V_DIM || first + column(i) < V_DIM) {
        ptx::store_global_x2(to + column(i), o[i] * end.inverse, o[i + 1] * end.inverse);
      }
  }
}

struct Queries {                         // a query tile, as a thread sees it
  const Work work;
  const Variant variant;
  const int q_idx;                       // the thread's first row; the other is 8 below
  float scale[2];                        // of its rows
  float k_enough;                        // for the rows of its warp
  bool exact = true;                     // by planes, all that its warp's rows have seen so far
  __device__ __forceinline__ Queries(const Work& work, const Params& p, int row)
    : work(work), variant(p, work.batch, work.head, work.kv_head), q_idx(work.block * BLOCK_M + row) {}
};

struct Attend {                          // one warpgroup: 64 query rows against all their keys
  const Params& p;
  const u32 shared;
  const int warpgroup, warp = threadIdx.x / 32 & 3, lane = threadIdx.x & 31;
  const u64 q_rows = k_major(shared + Q + warpgroup * WARPGROUP_ROWS * ROW_BYTES);
  const u64 k_tile = k_major(shared + K), v_tile = n_major(shared + V, BLOCK_N * ROW_BYTES);
  const int row = warpgroup * WARPGROUP_ROWS + warp * 16 + lane / 4;   // of a query tile, the thread's first
  int step = 0;                          // key tiles taken so far, over all query tiles

  // The place of a key tile, and what tells that it has come or gone.
  __device__ __forceinline__ int stage(int at) const { return at % STAGES; }
  __device__ __forceinline__ void await(u32 barriers, int at) const { ptx::mbarrier_wait(shared + barriers + BARRIER_BYTES * stage(at), at / STAGES & 1); }
  __device__ __forceinline__ void release(u32 barriers, int nth) const { if (lane == 0) ptx::mbarrier_arrive(shared + barriers + BARRIER_BYTES * nth); }
  __device__ __forceinline__ void meet() const { ptx::bar_sync(MEETING + warpgroup, 128); }
  __device__ __forceinline__ void first_turn() const {}   // nobody takes turns at the tensor cores
  __device__ __forceinline__ void take_turn() const {}
  __device__ __forceinline__ void pass_turn() const {}

  __device__ __forceinline__ Work next_tile(int nth) const {   // block -1: there are no more
    ptx::mbarrier_wait(shared + TILE_FULL, nth & 1);
    const Work work = fetch(shared + TILE);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + TILE_EMPTY);
    return work;
  }

  __device__ __forceinline__ void fetch_queries(Queries& queries) const {
    QueryRows own(p, queries.work, row, queries.variant);
    queries.exact = own.normalize(queries.scale);
    queries.k_enough = enough(queries.scale, queries.variant);
    meet();                              // all four warps are done with the rows before
    own.store(shared + Q);
    ptx::async_proxy_fence();
    meet();
  }

  // s = q k^T over one part of the columns.
  __device__ __forceinline__ void start_scores(float (&s)[BLOCK_N / 2], int at, int part) const {
    const int steps = min(QK_PART, QK_COLUMNS - part * QK_PART) / K_STEP;
    const u64 q = advance(q_rows, column_at<BLOCK_M>(part * QK_PART)), k = advance(k_tile, stage(at) * K_BYTES + column_at<BLOCK_N>(part * QK_PART));
    ptx::wgmma_fence();
    #pragma unroll
    for (int i = 0; i < steps; ++i)
      ptx::product_qk(s, advance(q, 1 * Q_PLANE + column_at<BLOCK_M>(K_STEP * i)), advance(k, 0 * K_PLANE + column_at<BLOCK_N>(K_STEP * i)),
                      i > 0);
    #pragma unroll
    for (int i = 0; i < steps; ++i)
      ptx::product_qk(s, advance(q, 0 * Q_PLANE + column_at<BLOCK_M>(K_STEP * i)), advance(k, 1 * K_PLANE + column_at<BLOCK_N>(K_STEP * i)),
                      1);
    #pragma unroll
    for (int i = 0; i < steps; ++i)
      ptx::product_qk(s, advance(q, 0 * Q_PLANE + column_at<BLOCK_M>(K_STEP * i)), advance(k, 0 * K_PLANE + column_at<BLOCK_N>(K_STEP * i)),
                      1);
    ptx::wgmma_commit();
  }

  // product = p v for one part of the columns.
  __device__ __forceinline__ void start_output(float (&product)[V_PART / 2], const u32 (&probabilities)[PLANES][BLOCK_N / 4], int at, int part) const {
    const u64 v = advance(v_tile, stage(at) * V_BYTES + column_at<BLOCK_N>(part * V_PART));
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k)
      ptx::product_pv(product, probabilities[1] + 4 * k, advance(v, 0 * V_PLANE + K_STEP * k * ROW_BYTES), k > 0);
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k)
      ptx::product_pv(product, probabilities[0] + 4 * k, advance(v, 1 * V_PLANE + K_STEP * k * ROW_BYTES), 1);
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k)
      ptx::product_pv(product, probabilities[0] + 4 * k, advance(v, 0 * V_PLANE + K_STEP * k * ROW_BYTES), 1);
    ptx::wgmma_commit();
  }

  static __device__ __forceinline__ void pack(const float (&s)[BLOCK_N / 2], u32 (&probabilities)[PLANES][BLOCK_N / 4]) {
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) {
      u32 planes[PLANES];
      split(s[2 * i], s[2 * i + 1], planes);
      #pragma unroll
      for (int plane = 0; plane < PLANES; ++plane) probabilities[plane][i] = planes[plane];
    }
  }

  // What a key tile's product is multiplied by on its way to o, and o before.
  struct Factors { float rescale[2], weight[2]; };
  template <bool MASKED>
  __device__ __forceinline__ Factors weigh(float (&s)[BLOCK_N / 2], float k_scale, Rows& rows, Queries& queries, int tile) const {
    Factors factors;
    softmax<MASKED>(s, rows, factors.rescale, factors.weight, {queries.scale[0] * k_scale, queries.scale[1] * k_scale},
                    queries.variant, queries.q_idx, tile * BLOCK_N);
    queries.exact &= k_scale <= queries.k_enough;
    return factors;
  }
  __device__ __forceinline__ void scale_values(Factors& factors, float v_scale, Queries& queries) const {
    factors.weight[0] *= v_scale;
    factors.weight[1] *= v_scale;
    queries.exact &= v_scale == v_scale;
  }

  __device__ __forceinline__ float scale(u32 scales, int at) const { return __uint_as_float(ptx::load_shared(shared + scales + stage(at) * SCALE_BYTES)); }

  // One key tile: scores, softmax, output, one after the other; the other warpgroup's products run beside the exponentials.
  template <bool MASKED>
  __device__ __forceinline__ void attend_tile(float (&o)[V_COLUMNS / 2], Rows& rows, Queries& queries, int tile) {
    constexpr int QK_PARTS = (QK_COLUMNS + QK_PART - 1) / QK_PART, V_PARTS = V_COLUMNS / V_PART;
    float s[BLOCK_N / 2], more[BLOCK_N / 2];
    u32 probabilities[PLANES][BLOCK_N / 4];
    await(K_FULL, step);
    const float k_scale = scale(K_SCALES, step);
    start_scores(s, step, 0);
    if (QK_PARTS == 1) ptx::wgmma_wait<0>();
    #pragma unroll
    for (int part = 1; part < QK_PARTS; ++part) {
      start_scores(more, step, part);
      ptx::wgmma_wait<0>();
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[i] += more[i];
    }
    release(K_EMPTY, stage(step));
    Factors factors = weigh<MASKED>(s, k_scale, rows, queries, tile);
    pack(s, probabilities);
    await(V_FULL, step);
    scale_values(factors, scale(V_SCALES, step), queries);
    #pragma unroll
    for (int part = 0; part < V_PARTS; ++part) {
      float product[V_PART / 2];
      start_output(product, probabilities, step, part);
      ptx::wgmma_wait<0>();
      if (part == V_PARTS - 1) release(V_EMPTY, stage(step));
      add_tile(o + part * V_PART / 2, product, factors.rescale, factors.weight);
    }
    ++step;
  }

  __device__ __forceinline__ void attend(float (&o)[V_COLUMNS / 2], Rows& rows, Queries& queries) {
    for (int tile = queries.work.end[1] - 1; tile >= queries.work.begin[1]; --tile)
      attend_tile<true>(o, rows, queries, tile);
    for (int tile = queries.work.end[0] - 1; tile >= queries.work.begin[0]; --tile)
      attend_tile<false>(o, rows, queries, tile);
  }

  __device__ __forceinline__ void run() {
    first_turn();
    Work work = next_tile(0);
    for (int dealt = 1; work.block >= 0; ++dealt) {
      Queries queries(work, p, row);
      float o[V_COLUMNS / 2] = {};
      Rows rows;
      if (work.last() >= 0) {
        fetch_queries(queries);
        attend(o, rows, queries);
      }
      work = next_tile(dealt);
      store_rows(o, rows, {p, queries.work.batch}, queries.variant, queries.work, queries.q_idx);
      if (lane == 0) p.lost[query_tile(p, queries.work) * (BLOCK_M / 16) + row / 16] = !queries.exact;
    }
  }
};

// --------------------------------------------------------------------------------------------------------------- kernel

// Barriers side by side, each of which so many arrivals complete.
__device__ __forceinline__ void init(u32 barriers, int count, int arrivals) {
  for (int i = 0; i < count; ++i) ptx::mbarrier_init(barriers + BARRIER_BYTES * i, arrivals);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);   // uniform over a warp, so descriptors stay in uniform registers
  ptx::next_kernel_start();              // as soon as multiprocessors are free; it waits before it touches memory, as this one does
  if (threadIdx.x == 0) {
    init(shared + K_EMPTY, STAGES, 4 * WARPGROUPS);   // each warp, as each has read scales
    init(shared + V_EMPTY, STAGES, 4 * WARPGROUPS);
    init(shared + K_FULL, STAGES, 1);
    init(shared + V_FULL, STAGES, 1);
    init(shared + TILE_FULL, 1, 1);
    init(shared + TILE_EMPTY, 1, 4 * WARPGROUPS + 1);   // warps that compute, and who loads
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup < LOAD_WARPGROUPS) {
    ptx::fewer_registers<LOAD_REGISTERS>();
    if (threadIdx.x == 0) load(p, shared);
    if (threadIdx.x / 32 == 1) deal(p, shared);
  } else {
    ptx::more_registers<COMPUTE_REGISTERS>();
    Attend{p, shared, warpgroup - LOAD_WARPGROUPS}.run();
  }
}

// -------------------------------------------------------------------------------------------------------- plain float32

// One block: a query tile against all its keys, 16 rows a warp, where the attention of planes told that they lost something.
struct AttendPlain {
  static constexpr int QK_PITCH = QK_DIM + 4, V_PITCH = V_DIM + 4;   // of a row in shared memory, in floats
  const Params& p;
  const u32 shared, tile_at = shared + BLOCK_M * QK_PITCH * 4;
  const Work work;
  const Sequence sequence = {p, work.batch};
  const Variant variant = Variant(p, work.batch, work.head, work.kv_head);
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16;
  float o[V_COLUMNS / 2] = {};
  Rows rows;

  __device__ __forceinline__ AttendPlain(const Params& p, u32 shared, const Work& work) : p(p), shared(shared), work(work) {}

  // Rows of a head's array from `first` on, zeros for those that do not exist.
  template <int ROWS, int DIM, class Exists>
  __device__ __forceinline__ void load_rows(u32 to, const float* from, const Strides& strides, int first, Exists exists) const {
    for (int i = threadIdx.x; i < ROWS * DIM; i += 2 * BLOCK_M) {
      const int row = i / DIM, column = i % DIM;
      const float x = exists(first + row) ? from[(first + row) * strides.row + column * strides.column] : 0.0f;
      ptx::store_shared(to + (row * (DIM + 4) + column) * 4, __float_as_uint(x));
    }
  }
  static __device__ __forceinline__ float load(u32 at) { return __uint_as_float(ptx::load_shared(at)); }

  // s = q k^T, the sums of parts of the columns added to each other: a long chain of roundings errs more than several short ones.
  __device__ __forceinline__ void scores(float (&s)[BLOCK_N / 2]) const {
    const u32 query = shared + (warp_row + lane / 4) * QK_PITCH * 4, key = tile_at + first_column() * QK_PITCH * 4;
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) s[i] = 0.0f;
    #pragma unroll 1
    for (int part = 0; part < QK_DIM; part += QK_PART) {
      float sums[BLOCK_N / 2] = {};
      #pragma unroll 1
      for (int k = part * 4; k < min(part + QK_PART, QK_DIM) * 4; k += 4) {
        const float q[2] = {load(query + k), load(query + 8 * QK_PITCH * 4 + k)};
        #pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i += 4)
          #pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float x = load(key + column(i + c) * QK_PITCH * 4 + k);
            sums[i + c] = fmaf(q[0], x, sums[i + c]);
            sums[i + 2 + c] = fmaf(q[1], x, sums[i + 2 + c]);
          }
      }
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[i] += sums[i];
    }
  }

  // o = o * rescale + p v. The lanes of a row hold its p between them.
  __device__ __forceinline__ void output(const float (&s)[BLOCK_N / 2], const float (&rescale)[2], const float (&unit)[2]) {
    #pragma unroll
    for (int part = 0; part < V_COLUMNS; part += V_PART) {
      float product[V_PART / 2] = {};
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) {
        if (i / 2 % 2) continue;
        #pragma unroll 1
        for (int other = 0; other < 4; ++other) {
          const int from = lane / 4 * 4 + other;
          const float weight[2] = {__shfl_sync(~0u, s[i] * unit[0], from), __shfl_sync(~0u, s[i + 2] * unit[1], from)};
          const u32 value = tile_at + ((other * 2 + column(i)) * V_PITCH + first_column() + part) * 4;
          #pragma unroll
          for (int j = 0; j < V_PART / 2; ++j)
            if (part + column(j) < V_DIM) product[j] = fmaf(weight[j / 2 % 2], load(value + column(j) * 4), product[j]);
        }
      }
      add_tile(o + part / 2, product, rescale, {1.0f, 1.0f});
    }
  }

  template <bool MASKED> __device__ __forceinline__ void step(int tile) {
    float s[BLOCK_N / 2], rescale[2], unit[2];
    __syncthreads();
    load_rows<BLOCK_N, QK_DIM>(tile_at, sequence.rows(p.k, p.k_strides, work.kv_head), p.k_strides, tile * BLOCK_N,
                               [&](int kv_idx) { return kv_idx < sequence.kv_len(); });
    __syncthreads();
    scores(s);
    softmax<MASKED>(s, rows, rescale, unit, {1.0f, 1.0f}, variant, work.block * BLOCK_M + warp_row + lane / 4, tile * BLOCK_N);
    __syncthreads();
    load_rows<BLOCK_N, V_DIM>(tile_at, sequence.rows(p.v, p.v_strides, work.kv_head), p.v_strides, tile * BLOCK_N,
                              [&](int kv_idx) { return kv_idx < sequence.kv_len(); });
    __syncthreads();
    output(s, rescale, unit);
  }

  __device__ __forceinline__ void run() {
    rows.log2 = variant.to_log2();
    load_rows<BLOCK_M, QK_DIM>(shared, sequence.rows(p.q, p.q_strides, work.head), p.q_strides, work.block * BLOCK_M,
                               [&](int q_idx) { return q_idx < sequence.q_len(); });
    for (int tile = work.end[1] - 1; tile >= work.begin[1]; --tile) step<true>(tile);
    for (int tile = work.end[0] - 1; tile >= work.begin[0]; --tile) step<false>(tile);
    store_rows(o, rows, sequence, variant, work, work.block * BLOCK_M + warp_row + lane / 4);
  }
};

extern "C" __global__ void __launch_bounds__(2 * BLOCK_M) forward_plain(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int count = count_query_tiles(p, p.heads * p.batch);
  for (int first = blockIdx.x * 32; first < count; first += gridDim.x * 32) {   // a lane a query tile
    const int t = first + threadIdx.x % 32;
    bool here = false;
    if (t < count) {
      const int* const flags = p.lost + query_tile(p, Work(t, p)) * (BLOCK_M / 16);
      #pragma unroll
      for (int warp = 0; warp < BLOCK_M / 16; ++warp) here |= flags[warp];
    }
    for (u32 lost = __ballot_sync(~0u, here); lost; lost &= lost - 1)
      AttendPlain(p, (u32)__cvta_generic_to_shared(memory), Work(first + __ffs(lost) - 1, p)).run();
  }
}
