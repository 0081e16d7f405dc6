// flashgen 0.1.0 | spec causal | arch sm_90a | plan 721ad699 | generated, do not edit
//
//   p = exp(score(softmax_scale * q k^T) - lse) where mask
//   ds = p * (do v^T - delta) * (d score / d s) where mask
//   dv = p^T do    dk = softmax_scale * ds^T q    dq = softmax_scale * ds k
//
//   arrays    q, o [B, Sq, Hq, 128] bfloat16    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   tile      64 queries x 128 keys    2 warpgroups compute 64 keys each, 1 loads
//   queries   of a key tile, for every query head that shares it: 3 ranges of tiles in closed form (masked, unmasked, masked)
//   order     key tiles dealt by a counter, the first key tiles first, in sections of heads that share the L2
//   sums      dk, dv in registers; dq in float32 in memory, added to by the blocks of all key tiles in any order
//   shared    K 2 x 32768 | V 2 x 32768 | Q 2 x 16384 | do 2 x 16384 | ds 2 x 16384 | lse 2 x 256 | delta 2 x 256 | tile 2 x 8 | step 2 x 4 | 2 stages
//             230552 of 232448 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct __align__(64) TensorMap { unsigned char bytes[128]; };

struct Strides { long long batch, head, row, column; };   // in elements

struct Params {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap dout_map;
  TensorMap dk;
  TensorMap dv;
  const u16* o;
  const u16* dout;                       // do: the gradient of o, of its layout
  const float* lse;                      // [B, Hq, Sq], natural log
  const float* dlse;                     // the gradient of lse, of its layout; null: 0
  u16* dq;
  Strides o_strides;
  Strides dout_strides;
  Strides dq_strides;
  int* counter;                          // key tiles dealt beyond the first of each block; blocks that are done. Zero at launch, zero again after
  float* row_lse;                        // [B, Hq, rows of whole tiles], log2; inf: a row that gives nothing
  float* row_delta;                      // like row_lse: what is subtracted from dp
  float* dq_sum;                         // of each query tile its dq before the scale
  float softmax_scale;
  int q_len;
  int kv_len;
  int heads;
  int batch;
  int group;                             // query heads a key/value head
  int section;                           // key/value heads whose queries stay in the L2 together
};

// ----------------------------------------------------------------------------------------------------------------- plan

constexpr int BLOCK_M = 64;              // queries of a tile
constexpr int BLOCK_N = 128;             // keys of a tile
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int QK_DIM = 128, V_DIM = 128;   // columns of the arrays
constexpr int STAGES = 2;                // query tiles in shared memory, each with its do
constexpr int COPY_BYTES = 16;           // that one copy moves: what every row is aligned to
constexpr float LOG2_E = 1.4426950408889634f;
using Element = u16;                     // that products multiply: bfloat16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
#define INF __int_as_float(0x7f800000)

constexpr int KEY_STAGES = 2;            // key tiles in shared memory
constexpr int WARPGROUPS = 2, WARPGROUP_KEYS = 64;   // that compute, and the keys of each
constexpr int LOAD_WARPGROUPS = 1, THREADS = 128 * (LOAD_WARPGROUPS + WARPGROUPS);   // of a block
constexpr int LOAD_REGISTERS = 24, COMPUTE_REGISTERS = 240;   // a thread
constexpr int Q_BYTES = BLOCK_M * QK_STORED * ELEMENT_BYTES, DO_BYTES = BLOCK_M * V_STORED * ELEMENT_BYTES, ROWS_BYTES = BLOCK_M * 4;
constexpr int K_BYTES = BLOCK_N * QK_STORED * ELEMENT_BYTES, V_BYTES = BLOCK_N * V_STORED * ELEMENT_BYTES, DS_BYTES = BLOCK_M * BLOCK_N * ELEMENT_BYTES;
constexpr int TILE_BYTES = 8, BARRIER_BYTES = 8;   // of the number of a key tile, of an mbarrier
constexpr int STEP_BYTES = 4;            // of what a step has to know: its query tile, and whether the mask is tested

// Shared memory, bytes from its start.
constexpr u32 K = 0;                     // 2 x 32768
constexpr u32 V = 65536;                 // 2 x 32768
constexpr u32 Q = 131072;                // 2 x 16384
constexpr u32 DO = 163840;               // 2 x 16384
constexpr u32 DS = 196608;               // 2 x 16384
constexpr u32 LSE = 229376;              // 2 x 256
constexpr u32 DELTA = 229888;            // 2 x 256
constexpr u32 TILE = 230400;             // 2 x 8
constexpr u32 STEP = 230416;             // 2 x 4
constexpr u32 K_FULL = 230424;           // 2 x 8
constexpr u32 K_EMPTY = 230440;          // 2 x 8
constexpr u32 Q_FULL = 230456;           // 2 x 8
constexpr u32 Q_EMPTY = 230472;          // 2 x 8
constexpr u32 DO_FULL = 230488;          // 2 x 8
constexpr u32 DO_EMPTY = 230504;         // 2 x 8
constexpr u32 DS_FULL = 230520;          // 2 x 8
constexpr u32 DS_EMPTY = 230536;         // 2 x 8

// Named barriers.
constexpr int ALL_MEETING = 1;           // both warpgroups that compute are there
constexpr int MEETING = 2;               // + warpgroup: its four warps are there
constexpr int ROW_BYTES = 128, SWIZZLE_COLUMNS = ROW_BYTES / ELEMENT_BYTES;   // of a block: a tile lies as blocks of so many columns, swizzled in each row

// Where a column, the first of a product's, begins in a tile of ROWS rows.
template <int ROWS> __device__ __forceinline__ constexpr u32 column_at(int column) {
  return column / SWIZZLE_COLUMNS * ROWS * ROW_BYTES + column % SWIZZLE_COLUMNS * ELEMENT_BYTES;
}

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// barrier.cuh: mbarrier_init, mbarrier_init_fence, mbarrier_expect, mbarrier_arrive, mbarrier_wait, bar_sync
// global.cuh: store_floats, add_floats
// grid.cuh: next_kernel_start
// math.cuh: exp2, bf16x2, low_bf16, high_bf16
// shared.cuh: load_shared, store_shared, stmatrix_x4, stmatrix_x4_trans, load_shared_floats, store_shared_x4
// tma.cuh: tma_load, passing, tma_store_as, tma_store_commit, tma_store_wait_read, tma_store_wait, async_proxy_fence, bulk_load
// wgmma.cuh: wgmma_fence, wgmma_commit, held, wgmma_wait, fewer_registers, more_registers

// d[64 x 64] (+)= a b^T with a in shared memory, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_qk(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, %32, %33, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "l"(a), "l"(b), "r"(accumulate));
}

// d[64 x 128] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_dv(float* d, const u32* a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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

// d[64 x 128] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_dk(float* d, const u32* a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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

// d[64 x 64] (+)= a^T b^T with a in shared memory, contiguous along its columns, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_dq(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, %32, %33, p, 1, 1, 1, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "l"(a), "l"(b), "r"(accumulate));
}

}  // namespace ptx

// Shared-memory descriptors of wgmma (PTX ISA 9.0, 9.7.15.5.1): address, leading and stride offset in units of 16 bytes, 128-byte swizzle.
constexpr u64 SWIZZLE_128 = 1ull << 62, STRIDE = u64(8 * ROW_BYTES >> 4) << 32;   // from 8 rows to the next 8
__device__ __forceinline__ u64 address(u32 at) { return (at & 0x3FFFF) >> 4; }
// Rows contiguous along k; or along n, with blocks of SWIZZLE_COLUMNS so many bytes apart.
__device__ __forceinline__ u64 k_major(u32 at) { return address(at) | 1ull << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 n_major(u32 at, u32 block_bytes) { return address(at) | u64(block_bytes >> 4) << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 advance(u64 descriptor, u32 bytes) { return (descriptor & ~0xFFFFFFFFull) | u32(u32(descriptor) + (bytes >> 4)); }

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

struct RowValues {                       // lse or delta of a thread's queries, held from here on: a read behind additions would wait for those
  float x[BLOCK_M / 4];
  RowValues() = default;
  __device__ __forceinline__ explicit RowValues(u32 at) {
    #pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k) {
      float four[4];
      ptx::load_shared_floats(four, at + 64 * k);
      #pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * k + i] = four[i];
    }
  }
  // Of 16 queries the thread's four.
  __device__ __forceinline__ void take(float (&four)[4], int k) const {
    #pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = x[4 * k + i];
  }
};

// Accumulator element i of a thread: key i / 2 % 2 of its two, which are 8 apart, and this query from the thread's first on.
__device__ __forceinline__ constexpr int query(int i) { return i / 4 * 8 + (i & 1); }
__device__ __forceinline__ constexpr int key(int i) { return i / 2 % 2 * 8; }
__device__ __forceinline__ int first_query() { return (threadIdx.x & 3) * 2; }
// Of 16 queries, of which a thread has four: which of them an element is of.
__device__ __forceinline__ constexpr int of_four(int i) { return i / 4 % 2 * 2 + (i & 1); }

// Raw products become weights by lse, in log2 units: packed as an operand.
template <bool MASKED>
__device__ __forceinline__ void weigh(float (&s)[BLOCK_M / 2], u32 (&weights)[BLOCK_M / 4],
                                      const Variant& variant, int q_idx, int kv_idx, const RowValues& lse_of) {
  #pragma unroll
  for (int k = 0; k < BLOCK_M / 16; ++k) {
    float lse[4], x[8];
    lse_of.take(lse, k);
    #pragma unroll
    for (int i = 8 * k; i < 8 * k + 8; ++i) {
      const Variant::Row row = variant.row(q_idx + query(i), kv_idx);
      const bool seen = !MASKED || (variant.keep(row, key(i)) & (q_idx + query(i) < variant.p.q_len));
      const float score = s[i];
      x[i % 8] = seen ? ptx::exp2(fmaf(score, variant.to_log2(), -lse[of_four(i)])) : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) weights[4 * k + i] = ptx::bf16x2(x[2 * i], x[2 * i + 1]);
  }
}

// ds = p * (dp - delta), packed as an operand.
__device__ __forceinline__ void score_gradients(const float (&dp)[BLOCK_M / 2], const u32 (&weights)[BLOCK_M / 4],
                                                u32 (&ds)[BLOCK_M / 4], const RowValues& delta_of) {
  #pragma unroll
  for (int k = 0; k < BLOCK_M / 16; ++k) {
    float delta[4];
    delta_of.take(delta, k);
    #pragma unroll
    for (int i = 4 * k; i < 4 * k + 4; ++i) {
      const float left = ptx::low_bf16(weights[i]), right = ptx::high_bf16(weights[i]);
      ds[i] = ptx::bf16x2(left * (dp[2 * i] - delta[of_four(2 * i)]), right * (dp[2 * i + 1] - delta[of_four(2 * i + 1)]));
    }
  }
}

// ----------------------------------------------------------------------------------------------------------------- work

struct QueryTiles {                      // of a head, those that meet a key tile
  static constexpr int RANGES = 3;
  int begin[RANGES], end[RANGES];        // of each range
  __device__ __forceinline__ QueryTiles(const Params& p, int batch, int head, int kv_head, int k_begin) {
    const int k_last = min(k_begin + BLOCK_N, p.kv_len) - 1;
    const int rows_begin = max(0, k_begin - p.kv_len + p.q_len);
    const int full_begin = max(0, k_last - p.kv_len + p.q_len);
    const int full_end = k_begin + BLOCK_N <= p.kv_len ? p.q_len : 0;
    const int first = rows_begin / BLOCK_M;
    const int last = (p.q_len + BLOCK_M - 1) / BLOCK_M;
    const int body = (full_begin + BLOCK_M - 1) / BLOCK_M;
    const int tail = max(body, full_end / BLOCK_M);
    begin[0] = first, end[0] = body; // the mask is tested in these
    begin[1] = body, end[1] = tail;
    begin[2] = tail, end[2] = last; // the mask is tested in these
  }
  // The first from a tile on, or -1.
  __device__ __forceinline__ int from(int tile) const {
    int found = -1;
    #pragma unroll
    for (int range = RANGES - 1; range >= 0; --range)
      if (max(begin[range], tile) < end[range]) found = max(begin[range], tile);
    return found;
  }
};

struct Work {                            // a key tile of a key/value head
  int block, batch, kv_head;

  // The t-th of all: section by section of key/value heads, whose queries share the L2, in each the first key tiles of all heads first.
  __device__ __forceinline__ Work(int t, const Params& p) {
    const int blocks = Sequence{p, 0}.key_tiles(), kv_heads = p.heads / p.group, heads = kv_heads * p.batch;
    const int section = t / (p.section * blocks), width = min(p.section, heads - section * p.section), within = t - section * p.section * blocks;
    block = within / width;
    kv_head = section * p.section + within % width;
    batch = kv_head / kv_heads;
    kv_head -= batch * kv_heads;
  }
  // Query tiles of all heads before this one.
  __device__ __forceinline__ int query_tiles_before(const Params& p, int head) const {
    return (batch * p.heads + head) * Sequence{p, batch}.query_tiles();
  }
  static __device__ __forceinline__ int count(const Params& p) { return Sequence{p, 0}.key_tiles() * (p.heads / p.group) * p.batch; }
};

// Of the query tiles of a head that meet a key tile: how many there are, and whether the mask is tested in one.
__device__ __forceinline__ int count(const QueryTiles& tiles) {
  int tiles_of_ranges = 0;
  #pragma unroll
  for (int range = 0; range < QueryTiles::RANGES; ++range) tiles_of_ranges += max(0, tiles.end[range] - tiles.begin[range]);
  return tiles_of_ranges;
}
__device__ __forceinline__ bool masked(const QueryTiles& tiles, int tile) {
  return false | (tiles.begin[0] <= tile & tile < tiles.end[0]) | (tiles.begin[2] <= tile & tile < tiles.end[2]);
}

// dq^T = k^T ds^T goes to memory as its products leave it, 64 columns of q by DQ_QUERIES queries a warpgroup: either takes its own columns, or where
// there are no more than 64, its own half of the queries. A warp adds what lies side by side.
constexpr int DQ_QUERIES = QK_STORED > 64 ? BLOCK_M : BLOCK_M / 2;   // of a warpgroup's share
constexpr int DQ_FLOATS = BLOCK_M * QK_STORED, WARP_FLOATS = 4 * 32;   // of a query tile, of what a warp adds at once
static_assert(QK_STORED <= 128 && WARPGROUPS == 2, "two shares");

// Where an element of dq lies in its tile: of a row of the tile and a column.
__device__ __forceinline__ int sum_at(int row, int column) {
  const int share = QK_STORED > 64 ? column / 64 : row / DQ_QUERIES, query = row % DQ_QUERIES;
  return (share * 4 + column % 64 / 16) * (DQ_QUERIES * 16) + query / 8 * WARP_FLOATS + (column % 8 * 4 + query % 8 / 2) * 4 + column % 16 / 8 * 2 + query % 2;
}
// Where lse and delta of a row lie: in each 16 rows those of a thread lie together, two and the two that are 8 further on.
__device__ __forceinline__ int row_place(int row) { return (row & ~15) | (row & 6) << 1 | (row >> 2 & 2) | (row & 1); }

// ---------------------------------------------------------------------------------------------------------------- roles

// The last block leaves the counters as it found them, and the one behind them, of blocks that are done.
__device__ __forceinline__ void leave(int* counter, int counters) {
  __threadfence();
  if (atomicAdd(counter + counters, 1) == int(gridDim.x) - 1)
    for (int i = 0; i <= counters; ++i) counter[i] = 0;
}

struct Copies {                          // that one thread starts
  const Params& p;
  const u32 shared;
  const Work& work;

  __device__ __forceinline__ void keys(int slot) const {
    const u32 full = shared + K_FULL + BARRIER_BYTES * slot;
    ptx::mbarrier_expect(full, K_BYTES + V_BYTES);
    for (int c = 0; c < QK_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + K + slot * K_BYTES + column_at<BLOCK_N>(c), p.k, full, c, work.block * BLOCK_N, work.kv_head, work.batch);
    for (int c = 0; c < V_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + V + slot * V_BYTES + column_at<BLOCK_N>(c), p.v, full, c, work.block * BLOCK_N, work.kv_head, work.batch);
  }
  // q with lse, do with delta, and what a step has to know; `row`: of the tile's first row among those of all heads, each in whole tiles.
  __device__ __forceinline__ void queries(int head, int tile, bool masked, long long row, int stage) const {
    const u32 full = shared + Q_FULL + BARRIER_BYTES * stage;
    ptx::store_shared(shared + STEP + STEP_BYTES * stage, tile << 1 | masked);
    ptx::mbarrier_expect(full, Q_BYTES + ROWS_BYTES);
    for (int c = 0; c < QK_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + Q + stage * Q_BYTES + column_at<BLOCK_M>(c), p.q, full, c, tile * BLOCK_M, head, work.batch);
    ptx::bulk_load(shared + LSE + stage * ROWS_BYTES, p.row_lse + row, ROWS_BYTES, full);
  }
  __device__ __forceinline__ void output_gradients(int head, int tile, long long row, int stage) const {
    const u32 full = shared + DO_FULL + BARRIER_BYTES * stage;
    ptx::mbarrier_expect(full, DO_BYTES + ROWS_BYTES);
    for (int c = 0; c < V_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + DO + stage * DO_BYTES + column_at<BLOCK_M>(c), p.dout_map, full, c, tile * BLOCK_M, head, work.batch);
    ptx::bulk_load(shared + DELTA + stage * ROWS_BYTES, p.row_delta + row, ROWS_BYTES, full);
  }
};

// One warp. All of its lanes compute, so that what they compute stays in uniform registers; the first one acts.
__device__ __forceinline__ void load(const Params& p, u32 shared) {
  const bool first = threadIdx.x == 0;
  const auto wait = [](u32 barrier, int parity) { ptx::mbarrier_wait(barrier, parity), __syncwarp(); };
  const auto next = [&]() -> int { return gridDim.x + __shfl_sync(~0u, first ? atomicAdd(p.counter, 1) : 0, 0); };
  const int count = Work::count(p);
  int stage = 0, parity = 1, t = blockIdx.x;
  #pragma unroll 1
  for (int dealt = 0;; ++dealt) {
    const int slot = dealt % KEY_STAGES;
    wait(shared + K_EMPTY + BARRIER_BYTES * slot, (dealt / KEY_STAGES & 1) ^ 1);
    if (first) ptx::store_shared(shared + TILE + TILE_BYTES * slot, t < count ? t : -1);
    if (t >= count) {
      if (first) ptx::mbarrier_arrive(shared + K_FULL + BARRIER_BYTES * slot);
      break;
    }
    const Work work(t, p);
    const Copies copies{p, shared, work};
    if (first) copies.keys(slot);
    #pragma unroll 1
    for (int head = work.kv_head * p.group; head < (work.kv_head + 1) * p.group; ++head) {
      const QueryTiles tiles(p, work.batch, head, work.kv_head, work.block * BLOCK_N);
      const int before = work.query_tiles_before(p, head);
      #pragma unroll 1
      for (int tile = tiles.from(0); tile >= 0; tile = tiles.from(tile + 1)) {
        const long long row = (long long)(before + tile) * BLOCK_M;
        wait(shared + Q_EMPTY + BARRIER_BYTES * stage, parity);
        if (first) copies.queries(head, tile, masked(tiles, tile), row, stage);
        wait(shared + DO_EMPTY + BARRIER_BYTES * stage, parity);
        if (first) copies.output_gradients(head, tile, row, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
    }
    t = next();                          // no sooner, so that who is done first takes the longest
  }
  if (first) leave(p.counter, 1);
}

struct Gradients {                       // one warpgroup: 64 keys against all queries that see them
  const Params& p;
  const u32 shared;
  const int warpgroup, warp = threadIdx.x / 32 & 3, lane = threadIdx.x & 31;
  const bool leader = (threadIdx.x & 127) == 0;
  const u64 k_rows = k_major(shared + K + warpgroup * WARPGROUP_KEYS * ROW_BYTES), v_rows = k_major(shared + V + warpgroup * WARPGROUP_KEYS * ROW_BYTES);
  const u64 q_rows = k_major(shared + Q), q_columns = n_major(shared + Q, BLOCK_M * ROW_BYTES);
  const u64 do_rows = k_major(shared + DO), do_columns = n_major(shared + DO, BLOCK_M * ROW_BYTES);
  const u64 k_columns = n_major(shared + K + (QK_STORED > 64 ? column_at<BLOCK_N>(64 * warpgroup) : 0), BLOCK_N * ROW_BYTES);
  const u64 ds_rows = k_major(shared + DS + (QK_STORED > 64 ? 0 : warpgroup * DQ_QUERIES * ROW_BYTES));
  const bool adds = QK_COLUMNS == QK_STORED || QK_STORED / 128 * warpgroup * 64 + warp * 16 < QK_COLUMNS;   // its columns exist
  int step = 0;                          // query tiles taken so far, over all key tiles

  // The place of a query tile, and what tells that it has come or gone.
  __device__ __forceinline__ int stage() const { return step % STAGES; }
  __device__ __forceinline__ void await(u32 barriers, int of) const {
    ptx::mbarrier_wait(shared + barriers + BARRIER_BYTES * (of % STAGES), of / STAGES & 1);
  }
  __device__ __forceinline__ void leave(u32 barriers) const { if (lane == 0) ptx::mbarrier_arrive(shared + barriers + BARRIER_BYTES * stage()); }
  __device__ __forceinline__ void release(u32 barriers, int nth) const { if (leader) ptx::mbarrier_arrive(shared + barriers + BARRIER_BYTES * nth); }

  // Of a step: what the loading warp tells of it, its query tile and whether the mask is tested; lse and delta of the thread's queries. By the
  // parentheses an address is a register and one that the warp shares, which is 2 % faster than a register alone.
  __device__ __forceinline__ int told_of(int of) const { return __shfl_sync(~0u, ptx::load_shared(shared + STEP + STEP_BYTES * (of % STAGES)), 0); }
  __device__ __forceinline__ RowValues lse_of(int of) const { return RowValues(shared + LSE + (of % STAGES * ROWS_BYTES + lane % 4 * 16)); }
  __device__ __forceinline__ RowValues delta_of(int of) const { return RowValues(shared + DELTA + (of % STAGES * ROWS_BYTES + lane % 4 * 16)); }
  // All that a warpgroup has to know of a step, once its q and do have come.
  struct Known { int told; RowValues lse, delta; };
  __device__ __forceinline__ Known known_of(int of) const {
    await(Q_FULL, of);
    await(DO_FULL, of);
    return {told_of(of), lse_of(of), delta_of(of)};
  }

  // s^T = k q^T and dp^T = v do^T go to the tensor cores.
  __device__ __forceinline__ void start_scores(float (&s)[BLOCK_M / 2], int slot) const {
    const u32 queries = stage() * Q_BYTES, keys = slot * K_BYTES;
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < QK_COLUMNS / K_STEP; ++k)
      ptx::product_qk(s, advance(k_rows, keys + column_at<BLOCK_N>(K_STEP * k)), advance(q_rows, queries + column_at<BLOCK_M>(K_STEP * k)), k > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_weight_gradients(float (&dp)[BLOCK_M / 2], int slot) const {
    const u32 gradients = stage() * DO_BYTES, values = slot * V_BYTES;
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < V_COLUMNS / K_STEP; ++k)
      ptx::product_qk(dp, advance(v_rows, values + column_at<BLOCK_N>(K_STEP * k)), advance(do_rows, gradients + column_at<BLOCK_M>(K_STEP * k)), k > 0);
    ptx::wgmma_commit();
  }

  // dv += p^T do and dk += ds^T q go to the tensor cores.
  __device__ __forceinline__ void start_values(float (&dv)[V_COLUMNS / 2], const u32 (&weights)[BLOCK_M / 4]) const {
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_M / K_STEP; ++k) ptx::product_dv(dv, weights + 4 * k, advance(do_columns, stage() * DO_BYTES + K_STEP * k * ROW_BYTES), 1);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_keys(float (&dk)[QK_COLUMNS / 2], const u32 (&ds)[BLOCK_M / 4]) const {
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_M / K_STEP; ++k) ptx::product_dk(dk, ds + 4 * k, advance(q_columns, stage() * Q_BYTES + K_STEP * k * ROW_BYTES), 1);
    ptx::wgmma_commit();
  }

  // ds to shared memory, a row a query, for the product of either warpgroup.
  __device__ __forceinline__ void put_ds(const u32 (&ds)[BLOCK_M / 4], int buffer) const {
    ptx::mbarrier_wait(shared + DS_EMPTY + BARRIER_BYTES * buffer, ((step + 1) / 2 & 1) ^ 1);
    const u32 at = shared + DS + buffer * DS_BYTES + column_at<BLOCK_M>(64 * warpgroup) + (lane % 8 + lane / 16 * 8) * ROW_BYTES
                   + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    #pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k) ptx::stmatrix_x4_trans(at + 16 * k * ROW_BYTES, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + DS_FULL + BARRIER_BYTES * buffer);
  }

  // The very first step multiplies the ds of a step before it, which is none: zeros.
  __device__ __forceinline__ void begin_queries() const {
    for (u32 at = (threadIdx.x - 128 * LOAD_WARPGROUPS) * 16; at < DS_BYTES; at += 128 * WARPGROUPS * 16)
      ptx::store_shared_x4(shared + DS + DS_BYTES + at, 0, 0, 0, 0);
    ptx::async_proxy_fence();
    ptx::bar_sync(ALL_MEETING, 128 * WARPGROUPS);
  }

  // dq^T goes to the tensor cores, of the step before, whose ds both warpgroups have written.
  __device__ __forceinline__ void start_queries(float (&dq)[DQ_QUERIES / 2], int slot, int buffer) const {
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k)
      ptx::product_dq(dq, advance(k_columns, slot * K_BYTES + K_STEP * k * ROW_BYTES),
                      advance(ds_rows, buffer * DS_BYTES + column_at<BLOCK_M>(K_STEP * k)), k > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void add_queries(const float (&dq)[DQ_QUERIES / 2], int tile) const {
    const int thread = ptx::held(threadIdx.x - 128 * LOAD_WARPGROUPS);   // else its address is kept over the loop, in registers that there are not
    float* const to = p.dq_sum + (long long)tile * DQ_FLOATS + thread / 32 * (DQ_QUERIES * 16) + thread % 32 * 4;
    if (adds)
      #pragma unroll
      for (int i = 0; i < DQ_QUERIES / 2; i += 4) ptx::add_floats(to + 32 * i, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
  }

  // A warpgroup's 64 rows of a gradient, rounded, to a tile of the place that keys or values had.
  template <int COLUMNS> __device__ __forceinline__ void put(const float (&x)[COLUMNS / 2], float factor, u32 place) const {
    const int row = warp * 16 + lane % 16;
    #pragma unroll
    for (int k = 0; k < COLUMNS / 16; ++k) {
      const u32 at = place + column_at<BLOCK_N>(64 * (k / 4)) + row * ROW_BYTES + ((k % 4 * 32 + lane / 16 * 16) ^ (row % 8 << 4));
      const auto pair = [&](int i) { return ptx::bf16x2(x[8 * k + 2 * i] * factor, x[8 * k + 2 * i + 1] * factor); };
      ptx::stmatrix_x4(at, pair(0), pair(1), pair(2), pair(3));
    }
  }

  __device__ __forceinline__ void write(const float (&dk)[QK_COLUMNS / 2], const float (&dv)[V_COLUMNS / 2], const Work& work, int slot) const {
    const u32 keys = shared + K + slot * K_BYTES + warpgroup * WARPGROUP_KEYS * ROW_BYTES;
    const u32 values = shared + V + slot * V_BYTES + warpgroup * WARPGROUP_KEYS * ROW_BYTES;
    ptx::bar_sync(ALL_MEETING, 128 * WARPGROUPS);   // the products with k are done in both
    put<V_COLUMNS>(dv, 1.0f, values);
    put<QK_COLUMNS>(dk, p.softmax_scale, keys);
    ptx::async_proxy_fence();
    ptx::bar_sync(MEETING + warpgroup, 128);
    if (leader) {
      const int row = work.block * BLOCK_N + warpgroup * WARPGROUP_KEYS;
      for (int c = 0; c < V_STORED; c += SWIZZLE_COLUMNS)
        ptx::tma_store_as(ptx::passing(), p.dv, values + column_at<BLOCK_N>(c), c, row, work.kv_head, work.batch);
      for (int c = 0; c < QK_STORED; c += SWIZZLE_COLUMNS)
        ptx::tma_store_as(ptx::passing(), p.dk, keys + column_at<BLOCK_N>(c), c, row, work.kv_head, work.batch);
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
      release(K_EMPTY, slot);
    }
  }

  // One query tile. dq is a step late, so that nobody waits for the other warpgroup's ds: that of the query tile `before`, by its number among those of
  // all heads. Returns the number of this one, where those of its head begin with `first`.
  __device__ __forceinline__ int advance_tile(float (&dk)[QK_COLUMNS / 2], float (&dv)[V_COLUMNS / 2], const Variant& variant, int kv_idx, int slot,
                                              int first, int before, Known& known, bool more) {
    const int buffer = step & 1;
    float s[BLOCK_M / 2], dp[BLOCK_M / 2], dq[DQ_QUERIES / 2];
    u32 weights[BLOCK_M / 4], ds[BLOCK_M / 4];
    start_scores(s, slot);
    const int told = known.told;
    const bool masked = told & 1;
    const int tile = told >> 1, q_idx = tile * BLOCK_M + first_query();
    start_weight_gradients(dp, slot);
    const RowValues lse = known.lse, delta = known.delta;
    ptx::wgmma_wait<1>();
    if (masked) weigh<true>(s, weights, variant, q_idx, kv_idx, lse);
    else weigh<false>(s, weights, variant, q_idx, kv_idx, lse);
    start_values(dv, weights);
    ptx::wgmma_wait<1>();
    score_gradients(dp, weights, ds, delta);
    put_ds(ds, buffer);
    ptx::mbarrier_wait(shared + DS_FULL + BARRIER_BYTES * (buffer ^ 1), (step + 1) / 2 & 1 ^ 1);
    start_queries(dq, slot, buffer ^ 1); // of a key tile's first step nothing that anybody needs
    start_keys(dk, ds);
    ptx::wgmma_wait<1>();
    leave(DO_EMPTY);
    release(DS_EMPTY, buffer ^ 1);
    if (more) known = known_of(step + 1);
    if (before >= 0) add_queries(dq, before);
    ptx::wgmma_wait<0>();
    leave(Q_EMPTY);
    ++step;
    return first + tile;
  }

  // dq of a key tile's last step. Its ds stays as it is: the next key tile's first step lets it go.
  __device__ __forceinline__ void finish_queries(int slot, int before) const {
    const int buffer = (step & 1) ^ 1;
    float dq[DQ_QUERIES / 2];
    ptx::mbarrier_wait(shared + DS_FULL + BARRIER_BYTES * buffer, (step + 1) / 2 & 1 ^ 1);
    start_queries(dq, slot, buffer);
    ptx::wgmma_wait<0>();
    add_queries(dq, before);
  }

  __device__ __forceinline__ void run() {
    begin_queries();
    for (int dealt = 0;; ++dealt) {
      const int slot = dealt % KEY_STAGES;
      ptx::mbarrier_wait(shared + K_FULL + BARRIER_BYTES * slot, dealt / KEY_STAGES & 1);
      const int t = __shfl_sync(~0u, ptx::load_shared(shared + TILE + TILE_BYTES * slot), 0);
      if (t < 0) break;
      const Work work(t, p);
      const int kv_idx = work.block * BLOCK_N + warpgroup * WARPGROUP_KEYS + warp * 16 + lane / 4;
      float dk[QK_COLUMNS / 2] = {}, dv[V_COLUMNS / 2] = {};
      int before = -1;                   // the query tile of the step before, none yet
      for (int head = work.kv_head * p.group; head < (work.kv_head + 1) * p.group; ++head) {
        const Variant variant(p, work.batch, head, work.kv_head);
        const int tiles = count(QueryTiles(p, work.batch, head, work.kv_head, work.block * BLOCK_N)), first = work.query_tiles_before(p, head);
        Known known;
        if (tiles) known = known_of(step);
        #pragma unroll 1
        for (int i = 0; i < tiles; ++i) before = advance_tile(dk, dv, variant, kv_idx, slot, first, before, known, i + 1 < tiles);
      }
      if (before >= 0) finish_queries(slot, before);
      write(dk, dv, work, slot);
    }
    if (leader) ptx::tma_store_wait();
  }
};

// --------------------------------------------------------------------------------------------------------------- kernel

// Barriers side by side, each of which so many arrivals complete.
__device__ __forceinline__ void init(u32 barriers, int count, int arrivals) {
  for (int i = 0; i < count; ++i) ptx::mbarrier_init(barriers + BARRIER_BYTES * i, arrivals);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);   // uniform over a warp, so descriptors stay in uniform registers
  ptx::next_kernel_start();              // as soon as multiprocessors are free; it waits before it touches memory, as this one does
  if (threadIdx.x == 0) {
    init(shared + K_FULL, KEY_STAGES, 1);
    init(shared + K_EMPTY, KEY_STAGES, WARPGROUPS);
    init(shared + Q_FULL, STAGES, 1);
    init(shared + Q_EMPTY, STAGES, 4 * WARPGROUPS);   // warps, which read lse and delta themselves
    init(shared + DO_FULL, STAGES, 1);
    init(shared + DO_EMPTY, STAGES, 4 * WARPGROUPS);
    init(shared + DS_FULL, 2, 4 * WARPGROUPS);
    init(shared + DS_EMPTY, 2, WARPGROUPS);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup < LOAD_WARPGROUPS) {
    ptx::fewer_registers<LOAD_REGISTERS>();
    if (threadIdx.x / 32 == 0) load(p, shared);
  } else {
    ptx::more_registers<COMPUTE_REGISTERS>();
    Gradients{p, shared, warpgroup - LOAD_WARPGROUPS}.run();
  }
}

struct __align__(COPY_BYTES) Piece { u32 words[COPY_BYTES / 4]; };   // of a row
__device__ __forceinline__ void load_columns(float (&x)[8], const Element* from, long long) {
  #pragma unroll
  for (int i = 0; i < 8 * ELEMENT_BYTES / COPY_BYTES; ++i) {
    const Piece piece = reinterpret_cast<const Piece*>(from)[i];
    #pragma unroll
    for (int j = 0; j < COPY_BYTES / 4; ++j) {
      const int word = i * COPY_BYTES / 4 + j;
      x[2 * word] = ptx::low_bf16(piece.words[j]), x[2 * word + 1] = ptx::high_bf16(piece.words[j]);
    }
  }
}
__device__ __forceinline__ void store_columns(Element* to, const float (&x)[8], long long) {
  #pragma unroll
  for (int i = 0; i < 8 * ELEMENT_BYTES / COPY_BYTES; ++i) {
    Piece piece;
    #pragma unroll
    for (int j = 0; j < COPY_BYTES / 4; ++j) {
      const int word = i * COPY_BYTES / 4 + j;
      piece.words[j] = ptx::bf16x2(x[2 * word], x[2 * word + 1]);
    }
    reinterpret_cast<Piece*>(to)[i] = piece;
  }
}
struct QueryTile {                       // the query tile of a block, and where its rows lie among those of whole tiles
  const u32 index = gridDim.x - 1 - blockIdx.x;   // the last one first: heads that the kernel between begins and ends with then meet in the L2
  const int tiles, block, head;
  const Sequence sequence;
  const long long first = (long long)index * BLOCK_M;
  __device__ __forceinline__ QueryTile(const Params& p)
    : tiles(Sequence{p, 0}.query_tiles()), block(index % tiles), head(index / tiles % p.heads), sequence{p, int(index / tiles / p.heads)} {}
};

// A block: a query tile.
extern "C" __global__ void __launch_bounds__(256) delta(const __grid_constant__ Params p) {
  const QueryTile tile(p);
  constexpr int LANES = 8;               // that share a row
  const Element* const o = tile.sequence.rows(p.o, p.o_strides, tile.head);
  const Element* const dout = tile.sequence.rows(p.dout, p.dout_strides, tile.head);
  for (int row = threadIdx.x / LANES; row < BLOCK_M; row += blockDim.x / LANES) {
    const int q_idx = tile.block * BLOCK_M + row;
    const bool exists = q_idx < tile.sequence.q_len();
    float sum = 0.0f;
    for (int column = threadIdx.x % LANES * 8; exists && column < V_DIM; column += LANES * 8) {
      float x[8], y[8];
      load_columns(x, o + q_idx * p.o_strides.row + column * p.o_strides.column, p.o_strides.column);
      load_columns(y, dout + q_idx * p.dout_strides.row + column * p.dout_strides.column, p.dout_strides.column);
      #pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
    }
    #pragma unroll
    for (int lanes = 1; lanes < LANES; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x % LANES) continue;
    const long long index = exists ? tile.sequence.row(tile.head, q_idx) : 0, at = tile.first + row_place(row);
    const float lse = exists ? p.lse[index] : -INF;
    const bool known = !(fabsf(lse) >= 0x1p24f);   // else float32 does not tell what a score is less it: such a row has no part, as one without keys
    p.row_lse[at] = known ? lse * LOG2_E : INF;    // exp2 of a score less it is 0, and never NaN
    const float delta = exists ? sum - (p.dlse ? p.dlse[index] : 0.0f) : 0.0f;
    p.row_delta[at] = delta;
  }
  float* const sums = p.dq_sum + tile.first * QK_STORED;
  for (int i = 4 * threadIdx.x; i < BLOCK_M * QK_STORED; i += 4 * blockDim.x) ptx::store_floats(sums + i, 0.0f, 0.0f, 0.0f, 0.0f);
}

// A block: a query tile. A thread takes eight columns of a row.
extern "C" __global__ void __launch_bounds__(256) finish_queries(const __grid_constant__ Params p) {
  const QueryTile tile(p);
  Element* const dq = tile.sequence.rows(p.dq, p.dq_strides, tile.head);
  const float* const sums = p.dq_sum + tile.first * QK_STORED;
  for (int i = threadIdx.x; i < BLOCK_M * (QK_DIM / 8); i += blockDim.x) {
    const int row = i / (QK_DIM / 8), column = i % (QK_DIM / 8) * 8, q_idx = tile.block * BLOCK_M + row;
    if (q_idx >= tile.sequence.q_len()) break;
    float x[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = sums[sum_at(row, column + j)] * (p.softmax_scale);
    store_columns(dq + q_idx * p.dq_strides.row + column * p.dq_strides.column, x, p.dq_strides.column);
  }
}
