// flashgen 0.1.0 | spec float32 | arch sm_86 | plan a0e2ef06 | generated, do not edit
//
//   o = softmax(score(softmax_scale * q k^T) where mask) v
//
//   arrays    q, o [B, Sq, Hq, 128] float32    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   planes    2 float16 planes, scaled by powers of two: a query row, a tile of keys or values; low x high + high x low + high x high, small ones before or
//             apart; o error about 4e-07
//   tile      128 queries x 32 keys    8 warps compute 16 query rows each and share the loads
//   keys      of a query tile: 2 runs of tiles in closed form (unmasked, masked), taken downwards
//   order     longest query tiles first, in sections of heads that share the L2, a block a query tile
//   softmax   one pass, log2 units; o and l rescaled at every key tile, divided once at the end; no key: o = 0, lse = -inf
//   shared    Q 65536 | K 16384 | V 16384 | 1 stage    98304 of 101376 bytes

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
  u16* k_planes;                         // of k, tiles as shared memory holds them
  u16* v_planes;                         // of v, tiles as shared memory holds them
  float* k_scales;                       // of a tile, 16 bytes apart, or NaN
  float* v_scales;                       // of a tile, 16 bytes apart, or NaN
  int* lost;                             // of 16 query rows: whether they have seen what planes cannot hold
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
constexpr int BLOCK_N = 32;              // keys of a tile
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int STAGES = 1;                // key and value tiles in flight
constexpr float LN_2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)

constexpr int QK_DIM = 128, V_DIM = 128;   // columns of the arrays
constexpr int QK_PART = 64, V_PART = 32;   // columns that one sum of a score covers, that one product of values gives
constexpr int PLANES = 2;                // of an operand, high first
constexpr int Q_PLANE = BLOCK_M * QK_STORED * 2, K_PLANE = BLOCK_N * QK_STORED * 2, V_PLANE = BLOCK_N * V_STORED * 2;   // bytes
constexpr int SPLIT_THREADS = 256;       // of a block that splits a tile
constexpr int K_BYTES = PLANES * K_PLANE, V_BYTES = PLANES * V_PLANE;
constexpr int SCALE_BYTES = 16;          // of the scale of a tile of keys or values, so often that a copy moves it

// Shared memory of the attention, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 65536
constexpr u32 K = 65536;                 // 1 x 16384
constexpr u32 V = 81920;                 // 1 x 16384

constexpr int SWIZZLE_COLUMNS = 64, ROW_BYTES = 128;   // of a block: a tile lies as blocks of 64 columns of 16 bits, swizzled in each row

// Where a column, the first of 16, begins in a tile of ROWS rows, and where 16 keys begin that the tile's rows are.
template <int ROWS> __device__ __forceinline__ constexpr u32 column_at(int column) {
  return column / SWIZZLE_COLUMNS * ROWS * ROW_BYTES + column % SWIZZLE_COLUMNS * 2;
}

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int ROW_TILES = BLOCK_M / (16 * WARPS);   // of 16 query rows, a warp's

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

__device__ __forceinline__ void copy_async_16(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
__device__ __forceinline__ void load_global_x4(float* x, const float* from) {
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(from));
}
__device__ __forceinline__ void store_global_x4(void* to, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void store_global_x2(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(to), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float maximum(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
__device__ __forceinline__ u32 f16x2(float low, float high) { u32 x; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }
__device__ __forceinline__ float f32(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ __forceinline__ void mma_f16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 load_shared(u32 at) { u32 x; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory"); return x; }
__device__ __forceinline__ void store_shared(u32 at, u32 x) { asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }
__device__ __forceinline__ void store_shared_x4(u32 at, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" :: "r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

}  // namespace ptx

// --------------------------------------------------------------------------------------------------------------- planes

constexpr int TOP = 14;                  // the largest of what shares a scale comes into [2^14, 2^15)
constexpr float SMALLEST = 0.125f;       // from there on planes keep all their bits
#define NOT_HELD __int_as_float(0x7fffffff)

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((127 + e) << 23); }   // 0 for -127
__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }   // as bits, which are ordered as the numbers are
__device__ __forceinline__ int exponent(u32 largest) { return max(min(TOP + 127 - int(largest >> 23), 126), -126); }

// A plane is what the planes before it leave of x and y, rounded to 11 bits.
__device__ __forceinline__ void split(float x, float y, u32 (&planes)[PLANES]) {
  #pragma unroll
  for (int i = 0; i < PLANES; ++i) {
    planes[i] = ptx::f16x2(x, y);
    x -= ptx::f32(u16(planes[i]));
    y -= ptx::f32(u16(planes[i] >> 16));
  }
}

// 8 columns of a row.
__device__ __forceinline__ void load_columns(float* x, const float* from, const Strides& strides) {
  ptx::load_global_x4(x, from);
  ptx::load_global_x4(x + 4, from + 4);
}

// Where a chunk of 8 columns of a row lies in a plane. From there on: 16 columns number k, and `rows` further down, a multiple of 8.
constexpr int CHUNK_BYTES = 16;
__device__ __forceinline__ u32 place(u32 row, u32 chunk) { return row * ROW_BYTES + (chunk ^ row % 8) * CHUNK_BYTES; }
template <int ROWS> __device__ __forceinline__ u32 advance(u32 at, int rows, int k) {
  return (at ^ k % 4 * 2 * CHUNK_BYTES) + (k / 4 * ROWS + rows) * ROW_BYTES;
}

// Planes of a tile lie in global memory as they do in shared memory.
template <int BYTES> __device__ __forceinline__ void load_image(u32 to, const u16* from) {
  constexpr int PASS = CHUNK_BYTES * THREADS;
  const u32 at = CHUNK_BYTES * threadIdx.x;
  #pragma unroll
  for (int i = 0; i < BYTES; i += PASS)
    if (BYTES % PASS == 0 || i + at < BYTES) ptx::copy_async_16(to + i + at, from + i / 2 + at / 2, true);
}

// ------------------------------------------------------------------------------------------------- holes, from the spec

struct Variant {                         // what score and mask need, folded once a query tile
  const Params& p;
  float factor;                          // log2 units of one unit of the score
  int offset;
  __device__ __forceinline__ Variant(const Params& p, int batch, int head, int kv_head) : p(p) {
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
  // The number of a query row among those of all heads and sequences.
  __device__ __forceinline__ long long row(int head, int q_idx) const { return (long long)(batch * p.heads + head) * q_len() + q_idx; }
};

// -------------------------------------------------------------------------------------------------------------- softmax

struct Rows {                            // the running state of a thread's two rows
  float max[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f};
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
    rescale[r] = ptx::exp2((rows.max[r] - base) * variant.to_log2());
    rows.max[r] = largest;
    // Differences first: products with to_log2() would be rounded, and those of large scores be no exponents.
    const auto exponential = [&](float s) { return ptx::exp2((fmaf(s, scale[r], -base)) * variant.to_log2()); };
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
  const float natural = variant.to_log2() * LN_2, largest = rows.max[r] * natural;
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
__device__ __forceinline__ void split_tile(const float* from, const Strides& strides, int first, int length, u16* to, float* scales, u32 words,
                                           bool seen, Exists exists) {
  constexpr int LANES = STORED <= 64 ? 8 : STORED <= 128 ? 16 : 32, PASS = SPLIT_THREADS / LANES, PASSES = (BLOCK_N + PASS - 1) / PASS;
  const int top_row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
  const int last = min(BLOCK_N, length - first) - 1;
  float x[PASSES][8];
  from += first * strides.row + min(chunk * 8, DIM - 8) * strides.column;
  #pragma unroll
  for (int i = 0; i < PASSES; ++i)       // no conditions, so that all are under way at once
    load_columns(x[i], from + min(i * PASS + top_row, last) * strides.row, strides);
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
    u16* const at = to + (chunk / 8 * BLOCK_N + row) * SWIZZLE_COLUMNS + ((chunk ^ row) & 7) * 8;
    #pragma unroll
    for (int plane = 0; plane < PLANES; ++plane)
      ptx::store_global_x4(at + plane * BLOCK_N * STORED, planes[0][plane], planes[1][plane], planes[2][plane], planes[3][plane]);
  }
  const bool lost = whole >= 0x7f800000 || __uint_as_float(least) * factor < SMALLEST;
  if (threadIdx.x < SCALE_BYTES / 4) scales[threadIdx.x] = lost ? NOT_HELD : power_of_two(-exponent(whole));
}

// A block a tile, of keys and of values in turn.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) split_keys_values(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 words = (u32)__cvta_generic_to_shared(memory);
  const int tiles = Sequence{p, 0}.key_tiles(), heads = p.heads / p.group;   // of every sequence
  const int number = (gridDim.x - 1 - blockIdx.x) / 2;   // downwards, so that the L2 still holds what the attention begins with
  const int tile = number % tiles, head = number / tiles % heads;
  const Sequence sequence{p, number / tiles / heads};
  const bool seen = true;
  const auto exists = [&](int kv_idx) { return true; };
  float* const scales = (blockIdx.x % 2 ? p.v_scales : p.k_scales) + (long long)number * (SCALE_BYTES / 4);
  if (blockIdx.x % 2 == 0)
    split_tile<QK_DIM, QK_STORED>(sequence.rows(p.k, p.k_strides, head), p.k_strides, tile * BLOCK_N, sequence.kv_len(),
                                  p.k_planes + (long long)number * (K_BYTES / 2), scales, words, seen, exists);
  else
    split_tile<V_DIM, V_STORED>(sequence.rows(p.v, p.v_strides, head), p.v_strides, tile * BLOCK_N, sequence.kv_len(),
                                p.v_planes + (long long)number * (V_BYTES / 2), scales, words, seen, exists);
}

// ----------------------------------------------------------------------------------------------------------------- work

struct Work {                            // a query tile and its key tiles
  static constexpr int RUNS = 2;
  int block, batch, head, kv_head;
  int begin[RUNS], end[RUNS];            // of each run
  static constexpr int V_SPLITS = 1, v_split = 0;   // a block has all columns of v and o

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
    for (int run = 0; run < RUNS; ++run) tile = begin[run] < end[run] ? end[run] - 1 : tile;
    return tile;
  }
  __device__ __forceinline__ int first() const {  // the first key tile, or 0
    int tile = 0;
    #pragma unroll
    for (int run = RUNS - 1; run >= 0; --run) tile = begin[run] < end[run] ? begin[run] : tile;
    return tile;
  }
};

// Query tiles of some heads, each as often as blocks share it.
__device__ __forceinline__ int count_query_tiles(const Params& p, int heads) { return Sequence{p, 0}.query_tiles() * heads * Work::V_SPLITS; }

// The number of a query tile among all, where its flags lie.
__device__ __forceinline__ long long query_tile(const Params& p, const Work& work) {
  return (long long)(work.batch * p.heads + work.head) * Sequence{p, work.batch}.query_tiles() + work.block;
}
// The number of a tile of keys or of values, where its planes and its scale lie.
__device__ __forceinline__ long long key_tile(const Params& p, const Work& work, int tile) {
  return (long long)(work.batch * (p.heads / p.group) + work.kv_head) * Sequence{p, work.batch}.key_tiles() + tile;
}

struct QueryRows {                       // of a query tile a warp's rows: of each thread two, 8 apart, and of their chunks of 8 columns every fourth
  static constexpr int CHUNKS = QK_STORED / 32;
  const int row;                         // the thread's first
  float x[2][8 * CHUNKS];

  __device__ __forceinline__ QueryRows(const Params& p, const Work& work, int row) : row(row) {
    const Sequence sequence{p, work.batch};
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_idx = min(work.block * BLOCK_M + row + 8 * r, sequence.q_len() - 1);   // beyond the end the last row again
      const float* const from = sequence.rows(p.q, p.q_strides, work.head) + q_idx * p.q_strides.row;
      #pragma unroll
      for (int c = 0; c < CHUNKS; ++c) load_columns(x[r] + 8 * c, from + min(chunk(c) * 8, QK_DIM - 8) * p.q_strides.column, p.q_strides);
    }
  }
  static __device__ __forceinline__ int chunk(int c) { return c * 4 + threadIdx.x % 4; }

  // Multiplies each row by a power of two, whose inverse is its scale. Whether planes hold all of it.
  __device__ __forceinline__ bool normalize(float (&scale)[2]) {
    bool held = true;
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
      const int e = exponent(magnitude(largest));
      const float factor = power_of_two(e);
      scale[r] = power_of_two(-e);
      held &= magnitude(largest) < 0x7f800000 && !loses_bits(largest * factor);
      #pragma unroll
      for (int i = 0; i < 8 * CHUNKS; ++i) x[r][i] *= factor;
    }
    if (__any_sync(~0u, some_column_loses<4>())) held &= !some_column_loses<32>();   // rarely asked
    return __all_sync(~0u, held);
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
      lost |= loses_bits(largest);
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
        for (int i = 0; i < 4; ++i) split(x[r][8 * c + 2 * i], x[r][8 * c + 2 * i + 1], planes[i]);
        const u32 at = tile + (chunk(c) / 8 * BLOCK_M + row + 8 * r) * ROW_BYTES + ((chunk(c) ^ row) & 7) * 16;
        #pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
          ptx::store_shared_x4(at + plane * Q_PLANE, planes[0][plane], planes[1][plane], planes[2][plane], planes[3][plane]);
      }
  }
};

// --------------------------------------------------------------------------------------------------------------- attend

// o = o * rescale + product * weight, for rows of a thread.
template <int N> __device__ __forceinline__ void add_tile(float* o, const float (&product)[N], const float (&rescale)[2], const float (&weight)[2]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) o[i] = fmaf(product[i], weight[i / 2 % 2], o[i] * rescale[i / 2 % 2]);
}

__device__ __forceinline__ void store_rows(const float (&o)[V_COLUMNS / 2], const Rows& rows, const Params& p, const Variant& variant,
                                           const Work& work, int q_idx) {
  const Sequence sequence{p, work.batch};
  const int first = work.v_split * V_COLUMNS;   // of the columns of o
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = q_idx + 8 * r;
    const End end = finalize(rows, r, variant);
    if (row >= sequence.q_len()) continue;
    if (work.v_split == 0 && threadIdx.x % 4 == 0) p.lse[sequence.row(work.head, row)] = end.lse;
    float* const to = sequence.rows(p.o, p.o_strides, work.head) + row * p.o_strides.row + (first + first_column()) * p.o_strides.column;
    #pragma unroll
    for (int i = 2 * r; i < V_COLUMNS / 2; i += 4)
      if (V_COLUMNS == V_DIM || first + column(i) < V_DIM) {
        ptx::store_global_x2(to + column(i), o[i] * end.inverse, o[i + 1] * end.inverse);
      }
  }
}

struct Attend {                          // one block: a query tile against all its keys
  const Params& p;
  const u32 shared;
  const Work work;
  const Sequence sequence = {p, work.batch};
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * ROW_TILES;   // of the tile, the warp's first
  const int q_idx = work.block * BLOCK_M + warp_row + lane / 4;
  const Variant variant = Variant(p, work.batch, work.head, work.kv_head);
  float o[V_COLUMNS / 2] = {}, q_scale[2], rescale[2], weight[2];
  Rows rows;
  bool held = true;                      // by planes, all that the warp's rows have seen so far
  u32 queries[QK_COLUMNS / 16][PLANES][4];
  int next;                              // the key tile to load next, -1: none
  static constexpr int stage = 0;        // where the one to multiply next lies: there is one place

  __device__ __forceinline__ Attend(const Params& p, u32 shared) : p(p), shared(shared), work(blockIdx.x, p) {}

  __device__ __forceinline__ void load_query_tile() {
    QueryRows own(p, work, warp_row + lane / 4);
    held = own.normalize(q_scale);
    own.store(shared + Q);
  }
  template <bool> __device__ __forceinline__ void load_keys(int tile, int to) const {
    load_image<K_BYTES>(shared + K + to * K_BYTES, p.k_planes + key_tile(p, work, tile) * (K_BYTES / 2));
  }
  template <bool> __device__ __forceinline__ void load_values(int tile, int to) const {
    load_image<V_BYTES>(shared + V + to * V_BYTES, p.v_planes + key_tile(p, work, tile) * (V_BYTES / 2));
  }

  // The warp's rows of q, 16 columns of each plane.
  __device__ __forceinline__ void load_queries(u32 (&a)[PLANES][4], int k) const {
    const u32 row = shared + Q + place(warp_row + lane % 16, lane / 16);
    #pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) ptx::ldmatrix_x4(a[plane], advance<BLOCK_M>(row, 0, k) + plane * Q_PLANE);
  }

  // s = q k^T, a part of the columns at a time.
  __device__ __forceinline__ void scores(float (&s)[ROW_TILES][BLOCK_N / 2]) {
    const u32 key = shared + K + stage * K_BYTES + place(lane % 8 + lane / 16 * 8, lane / 8 % 2);   // an operand's halves in neighbouring registers
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) s[0][i] = 0.0f;
    #pragma unroll 1
    for (int part = 0; part < QK_COLUMNS; part += QK_PART) {
      float sums[PLANES][BLOCK_N / 2] = {};
      #pragma unroll
      for (int i = 0; i < min(QK_PART, QK_COLUMNS) / 16; ++i) {
        const int k = part / 16 + i;
        if (QK_COLUMNS % QK_PART != 0 && k >= QK_COLUMNS / 16) break;
        const u32 (&a)[PLANES][4] = queries[k];
        #pragma unroll
        for (int n = 0; n < BLOCK_N / 16; ++n)
          #pragma unroll
          for (int right = 0; right < PLANES; ++right) {
            u32 b[4];
            ptx::ldmatrix_x4(b, advance<BLOCK_N>(key, 16 * n, k) + right * K_PLANE);
            #pragma unroll
            for (int left = 0; left < PLANES - right; ++left) {
              ptx::mma_f16(sums[left + right] + 8 * n, a[left], b[0], b[1]);
              ptx::mma_f16(sums[left + right] + 8 * n + 4, a[left], b[2], b[3]);
            }
          }
      }
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[0][i] += PLANES > 1 ? sums[0][i] + sums[PLANES - 1][i] : sums[0][i];
    }
  }

  template <bool MASKED> __device__ __forceinline__ void attend(float (&s)[ROW_TILES][BLOCK_N / 2], int tile) {
    const long long at = key_tile(p, work, tile) * (SCALE_BYTES / 4);
    const float k_scale = p.k_scales[at], v_scale = p.v_scales[at];
    held &= k_scale == k_scale && v_scale == v_scale;
    softmax<MASKED>(s[0], rows, rescale, weight, {q_scale[0] * k_scale, q_scale[1] * k_scale}, variant, q_idx, tile * BLOCK_N);
    weight[0] *= v_scale, weight[1] *= v_scale;
  }

  // o = o * rescale + p v * weight, a part of the columns at a time; two neighbouring products of p are one operand of the next.
  __device__ __forceinline__ void output(const float (&s)[ROW_TILES][BLOCK_N / 2]) {
    const u32 value = shared + V + stage * V_BYTES + place(lane % 16, lane / 16);
    u32 probabilities[BLOCK_N / 16][PLANES][4];
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) {
      u32 planes[PLANES];
      split(s[0][2 * i], s[0][2 * i + 1], planes);
      #pragma unroll
      for (int plane = 0; plane < PLANES; ++plane) probabilities[i / 4][plane][i % 4] = planes[plane];
    }
    #pragma unroll
    for (int part = 0; part < V_COLUMNS; part += V_PART) {
      float sums[PLANES][V_PART / 2] = {};
      #pragma unroll
      for (int k = 0; k < BLOCK_N / 16; ++k)
        #pragma unroll
        for (int n = 0; n < V_PART / 16; ++n)
          #pragma unroll
          for (int right = 0; right < PLANES; ++right) {
            u32 b[4];
            ptx::ldmatrix_x4_trans(b, advance<BLOCK_N>(value, 16 * k, part / 16 + n) + right * V_PLANE);
            #pragma unroll
            for (int left = 0; left < PLANES - right; ++left) {
              ptx::mma_f16(sums[left + right] + 8 * n, probabilities[k][left], b[0], b[1]);
              ptx::mma_f16(sums[left + right] + 8 * n + 4, probabilities[k][left], b[2], b[3]);
            }
          }
      if (PLANES > 1)
        #pragma unroll
        for (int i = 0; i < V_PART / 2; ++i) sums[0][i] += sums[PLANES - 1][i];
      add_tile(o + part / 2, sums[0], rescale, weight);
    }
  }

  __device__ __forceinline__ void write() const {
    store_rows(o, rows, p, variant, work, q_idx);
    if (lane == 0) p.lost[query_tile(p, work) * WARPS + warp_row / 16] = !held;
  }

  // The key tile below, or -1.
  __device__ __forceinline__ int before(int tile) const {
    int found = -1;
    #pragma unroll
    for (int run = 0; run < Work::RUNS; ++run)
      if (work.begin[run] < min(tile, work.end[run])) found = min(tile, work.end[run]) - 1;
    return found;
  }

  template <bool WHOLE> __device__ __forceinline__ void load_next(int to) {
    if (next >= 0) {
      load_keys<WHOLE>(next, to);
      next = before(next);
    }
    ptx::copy_commit();
  }

  // One key tile: its values load during the first product, the next keys during softmax and the second; two barriers, half the memory.
  template <bool MASKED> __device__ __forceinline__ void step(int tile) {
    ptx::copy_wait<0>();
    __syncthreads();                                  // the keys are here for every thread, and nobody reads the values before them any more
    load_values<!MASKED>(tile, 0);
    ptx::copy_commit();
    float s[ROW_TILES][BLOCK_N / 2];
    scores(s);
    ptx::copy_wait<0>();
    __syncthreads();                                  // the values are here, and nobody reads the keys any more
    load_next<true>(0);
    attend<MASKED>(s, tile);
    output(s);
  }

  // Every key tile, from the last to the first; only the first that loads can reach beyond kv_len.
  __device__ __forceinline__ void run() {
    next = work.last();
    if (next >= 0) {
      load_query_tile();
      ptx::copy_commit();
      load_next<false>(0);
      ptx::copy_wait<(STAGES > 2 ? STAGES - 1 : 1)>();
      __syncthreads();
      #pragma unroll
      for (int k = 0; k < QK_COLUMNS / 16; ++k) load_queries(queries[k], k);
      for (int tile = work.end[1] - 1; tile >= work.begin[1]; --tile) step<true>(tile);
      for (int tile = work.end[0] - 1; tile >= work.begin[0]; --tile) step<false>(tile);
    }
    write();
  }

};

// --------------------------------------------------------------------------------------------------------------- kernel

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Attend(p, (u32)__cvta_generic_to_shared(memory)).run();
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
                              [&](int kv_idx) { return kv_idx < sequence.kv_len() && true; });
    __syncthreads();
    output(s, rescale, unit);
  }

  __device__ __forceinline__ void run() {
    load_rows<BLOCK_M, QK_DIM>(shared, sequence.rows(p.q, p.q_strides, work.head), p.q_strides, work.block * BLOCK_M,
                               [&](int q_idx) { return q_idx < sequence.q_len(); });
    for (int tile = work.end[1] - 1; tile >= work.begin[1]; --tile) step<true>(tile);
    for (int tile = work.end[0] - 1; tile >= work.begin[0]; --tile) step<false>(tile);
    store_rows(o, rows, p, variant, work, work.block * BLOCK_M + warp_row + lane / 4);
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
