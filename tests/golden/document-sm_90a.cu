// flashgen 0.1.0 | spec document | arch sm_90a | plan 2d3809a7 | generated, do not edit
//
//   o = softmax(score(softmax_scale * q k^T) where mask) v
//
//   arrays    q, o [B, Sq, Hq, 128] bfloat16    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      (kv_idx <= q_idx + kv_len - q_len) & (ids[b, kv_idx] == ids[b, q_idx + kv_len - q_len])
//   tile      128 queries x 128 keys    2 warpgroups compute 64 query rows each, in turns, 1 loads
//   keys      of a query tile: 3 ranges of tiles by extents of ids[b, kv_idx] == ids[b, kv_len + q_idx - q_len] (masked, unmasked, masked), taken downwards
//   order     longest query tiles first, in sections of heads that share the L2, dealt by a counter
//   softmax   one pass, log2 units; o and l rescaled where a maximum grew by more than 8, divided once at the end; no key: o = 0, lse = -inf
//   shared    Q 32768 | K 2 x 32768 | V 2 x 32768 | O 32768 | tile 3 x 128 | 2 stages    197088 of 232448 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct __align__(64) TensorMap { unsigned char bytes[128]; };

template <class T> struct __align__(2 * sizeof(T)) Two { T left, right; };

template <class T, int RANK> struct Array {   // an array that the expressions read
  const T* data;
  long long strides[RANK];               // in elements
  template <class... Index> __device__ __forceinline__ const T* address(Index... index) const {
    long long at = 0, axis = 0;
    ((at += index * strides[axis++]), ...);
    return data + at;
  }
  template <class... Index> __device__ __forceinline__ T operator()(Index... index) const { return *address(index...); }

  // Whether elements beside each other along the last axis, of `extent`, can be read two at a time.
  __device__ __forceinline__ bool paired(int extent) const {
    u64 odd = u64(data) / sizeof(T) | extent;
    for (int axis = 0; axis < RANK - 1; ++axis) odd |= strides[axis];
    return strides[RANK - 1] == 1 && odd % 2 == 0;
  }
  // The two elements from `column` on, counted from an address; one by one, nothing from `end` on.
  template <bool PAIRED> __device__ __forceinline__ Two<T> two(const T* from, int column, int end) const {
    if (PAIRED) return *reinterpret_cast<const Two<T>*>(from + column);
    const T* const left = from + column * strides[RANK - 1];
    return {column < end ? *left : T(), column + 1 < end ? left[strides[RANK - 1]] : T()};
  }
};

struct Params {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap o;
  float* lse;                            // [B, Hq, Sq], natural log
  const int* halves;                     // of the L2, the nearer one of each of 256 multiprocessors; zeros will do
  int* counter;                          // query tiles dealt of each half of the heads; blocks that are done. Zero at launch, zero again after
  Array<int, 2> arg_ids;                 // [b, kv_len]
  float softmax_scale;
  int q_len;
  int kv_len;
  int heads;
  int batch;
  int group;                             // query heads a key/value head
  int section;                           // heads whose keys and values stay in the L2 together
  longlong2* extents_seen_0;             // the least and the greatest over each key tile
  int4* seen_0;                          // keys that each query tile, and then each of its warpgroups, may see, and must see
  int4* runs_seen_0;                     // of each key tile: its first and last number, the key where the last begins, 1 if there is no other
  int2* rows_seen_0;                     // of each row: begin and end of the keys that hold its number
};

// ----------------------------------------------------------------------------------------------------------------- plan

constexpr int BLOCK_M = 128;             // queries of a tile
constexpr int BLOCK_N = 128;             // keys of a tile
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int STAGES = 2;                // key and value tiles in flight
constexpr float LN_2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)

constexpr int WARPGROUPS = 2, WARPGROUP_ROWS = 64;   // that compute, and the query rows of each
constexpr int LOAD_WARPGROUPS = 1, THREADS = 128 * (LOAD_WARPGROUPS + WARPGROUPS);   // of a block
constexpr int LOAD_REGISTERS = 40, COMPUTE_REGISTERS = 232;   // a thread
constexpr int TILE_BYTES = 128, BARRIER_BYTES = 8;   // of a query tile's Work, of an mbarrier

using Element = u16;                     // that products multiply: bfloat16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
constexpr int Q_BYTES = BLOCK_M * QK_STORED * ELEMENT_BYTES;
constexpr int K_BYTES = BLOCK_N * QK_STORED * ELEMENT_BYTES, V_BYTES = BLOCK_N * V_STORED * ELEMENT_BYTES;
constexpr int QUERY_STAGES = 1;          // query tiles in shared memory

// Shared memory, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 32768
constexpr u32 K = 32768;                 // 2 x 32768
constexpr u32 V = 98304;                 // 2 x 32768
constexpr u32 O = 163840;                // 1 x 32768
constexpr u32 TILE = 196608;             // 3 x 128
constexpr u32 Q_FULL = 196992;           // 1 x 8
constexpr u32 Q_EMPTY = 197000;          // 1 x 8
constexpr u32 K_FULL = 197008;           // 2 x 8
constexpr u32 K_EMPTY = 197024;          // 2 x 8
constexpr u32 V_FULL = 197040;           // 2 x 8
constexpr u32 V_EMPTY = 197056;          // 2 x 8
constexpr u32 TILE_FULL = 197072;        // 1 x 8
constexpr u32 TILE_EMPTY = 197080;       // 1 x 8

// Named barriers.
constexpr int TURN = 1;                  // + warpgroup: whose products go to the tensor cores next
constexpr int MEETING = 4;               // + warpgroup: its four warps are there

constexpr int ROW_BYTES = 128, SWIZZLE_COLUMNS = ROW_BYTES / ELEMENT_BYTES;   // of a block: a tile lies as blocks of so many columns, swizzled in each row

// Where a column, the first of a product's, begins in a tile of ROWS rows.
template <int ROWS> __device__ __forceinline__ constexpr u32 column_at(int column) {
  return column / SWIZZLE_COLUMNS * ROWS * ROW_BYTES + column % SWIZZLE_COLUMNS * ELEMENT_BYTES;
}

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// barrier.cuh: mbarrier_init, mbarrier_init_fence, mbarrier_expect, mbarrier_arrive, mbarrier_wait, bar_sync, bar_arrive
// grid.cuh: previous_kernel_wait, next_kernel_start, multiprocessor
// math.cuh: exp2, log2, reciprocal, ones, bf16x2
// shared.cuh: load_shared, store_shared, stmatrix_x4
// tma.cuh: tma_load, passing, tma_load_as, tma_store_as, tma_store_commit, tma_store_wait_read, tma_store_wait, async_proxy_fence
// wgmma.cuh: wgmma_fence, wgmma_commit, wgmma_wait, fewer_registers, more_registers

// d[64 x 128] (+)= a b^T with a in shared memory, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_qk(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
    "}, %64, %65, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
    : "l"(a), "l"(b), "r"(accumulate));
}

// d[64 x 128] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_pv(float* d, const u32* a, u64 b, int accumulate) {
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

}  // namespace ptx

// Shared-memory descriptors of wgmma (PTX ISA 9.0, 9.7.15.5.1): address, leading and stride offset in units of 16 bytes, 128-byte swizzle.
constexpr u64 SWIZZLE_128 = 1ull << 62, STRIDE = u64(8 * ROW_BYTES >> 4) << 32;   // from 8 rows to the next 8
__device__ __forceinline__ u64 address(u32 at) { return (at & 0x3FFFF) >> 4; }
// Rows contiguous along k; or along n, with blocks of SWIZZLE_COLUMNS so many bytes apart.
__device__ __forceinline__ u64 k_major(u32 at) { return address(at) | 1ull << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 n_major(u32 at, u32 block_bytes) { return address(at) | u64(block_bytes >> 4) << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 advance(u64 descriptor, u32 bytes) { return (descriptor & ~0xFFFFFFFFull) | u32(u32(descriptor) + (bytes >> 4)); }

// ------------------------------------------------------------------------------------------------- holes, from the spec

// How many of a thread's columns, two of each eight, are below one; and those of them between two, a bit each.
__device__ __forceinline__ u32 columns_before(int end) {
  const u32 inside = max(end, 0);
  return inside / 8 * 2 + min(inside % 8, 2);
}
__device__ __forceinline__ u32 columns_between(int begin, int end) {
  const u32 from = columns_before(begin);
  return ptx::ones(from, max(columns_before(end), from) - from);
}

struct Variant {                         // what score and mask need, folded once a query tile
  const Params& p;
  float factor;                          // log2 units of one unit of the score
  int offset_2;
  int offset;
  int b;
  int last_key;
  bool paired;                           // tensors can be read two elements at a time
  const int2* held_by_rows;              // begin and end of the keys that hold a row's number
  __device__ __forceinline__ Variant(const Params& p, int batch, int head, int kv_head)
    : p(p) {
    factor = p.softmax_scale * 1.442695f;
    offset_2 = p.kv_len - p.q_len;
    offset = offset_2 + 1;
    b = batch;
    last_key = p.kv_len - 1;
    paired = p.arg_ids.paired(p.kv_len);
    held_by_rows = p.rows_seen_0 + (long long)batch * p.q_len;
  }
  __device__ __forceinline__ float to_log2() const { return factor; }   // log2 units of one unit of the score below

  struct Row {                           // of one query row and one key tile
    int end;                             // of the keys seen, from kv_begin
    int ids_value;
    const int* ids_row;
    int keys;                            // from kv_begin to kv_len
    u32 seen;                            // a bit for each of a thread's keys, which `see` finds
  };
  __device__ __forceinline__ Row row(int q_idx, int kv_begin) const {
    Row row;
    row.end = min(q_idx + offset, p.kv_len) - kv_begin;
    row.ids_value = p.arg_ids(b, max(min(q_idx + offset_2, last_key), 0));
    row.ids_row = p.arg_ids.address(b, kv_begin);
    row.keys = p.kv_len - kv_begin;
    row.seen = 0;
    return row;
  }
  // Of two rows begin and end of the keys that hold their number; end -1: others are in between.
  int2 held[2];
  __device__ __forceinline__ void hold(int q_idx) {
    #pragma unroll
    for (int r = 0; r < 2; ++r) held[r] = held_by_rows[min(q_idx + 8 * r, p.q_len - 1)];
  }
  // Finds which of a thread's keys two rows see.
  __device__ __forceinline__ void see(Row (&rows)[2], int kv_begin) const {
    const auto keys = [&](const Row& row) { return row.keys; };
    if (held[0].y >= 0 && held[1].y >= 0)
      #pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Row& row = rows[r];
        rows[r].seen = columns_between(max(0, held[r].x - kv_begin), min(row.end, held[r].y - kv_begin));
      }
    else if (paired && keys(rows[0]) >= BLOCK_N - 6)   // no column of the thread lies beyond
      look<true, 16>(rows);
    else
      look<false, 2>(rows);
  }
  // The same, key by key.
  template <bool PAIRED, int TOGETHER> __device__ __forceinline__ void look(Row (&rows)[2]) const {
    const auto number = [&](const Row& row) { return row.ids_value; };
    const auto keys = [&](const Row& row) { return row.keys; };
    const auto columns = [&](const Row& row) { return columns_between(0, row.end); };
    u32 seen[2] = {};
    #pragma unroll TOGETHER
    for (int column = 0; column < BLOCK_N; column += 8) {
      const Two<int> key = p.arg_ids.template two<PAIRED>(rows[0].ids_row, column, keys(rows[0]));
      #pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (key.left == number(rows[r])) seen[r] |= 1u << column / 4;
        if (key.right == number(rows[r])) seen[r] |= 2u << column / 4;
      }
    }
    #pragma unroll
    for (int r = 0; r < 2; ++r) rows[r].seen = seen[r] & columns(rows[r]);
  }

  // (kv_idx <= q_idx + kv_len - q_len) & (ids[b, kv_idx] == ids[b, q_idx + kv_len - q_len])
  __device__ __forceinline__ bool keep(const Row& row, int column) const {
    return row.seen >> (column / 4 + column % 2) & 1;
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
  // The index of a query row among those of all heads and sequences.
  __device__ __forceinline__ long long row(int head, int q_idx) const { return (long long)(batch * p.heads + head) * q_len() + q_idx; }
};

// -------------------------------------------------------------------------------------------------------------- softmax

constexpr float RESCALE_THRESHOLD = 8.0f;   // log2 units that the maximum may grow before o and l are rescaled
struct Rows {                            // the running state of a thread's two rows
  float max[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f};
};

// Accumulator element i of a thread: row (i / 2) % 2 of its two, and this column from the thread's first on.
__device__ __forceinline__ constexpr int column(int i) { return i / 4 * 8 + (i & 1); }
__device__ __forceinline__ int first_column() { return (threadIdx.x & 3) * 2; }
struct Elements {                        // of a key tile: what score and mask need besides the products
  Variant::Row row[2];
};
template <bool MASKED> __device__ __forceinline__ void read(Elements& elements, const Variant& variant, int q_idx, int kv_begin) {
  #pragma unroll
  for (int r = 0; r < 2; ++r) elements.row[r] = variant.row(q_idx + 8 * r, kv_begin + first_column());
  if (MASKED) variant.see(elements.row, kv_begin + first_column());
}

__device__ __forceinline__ float row_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }
__device__ __forceinline__ float row_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

__device__ __forceinline__ float base_of(float max) { return max == -INF ? 0.0f : max; }   // no key yet: exp2(-inf - 0) = 0, not NaN

constexpr float LARGE = 65536.0f;        // log2 units; from there on differences of scores are taken before they are multiplied
// Of one row, s less a number that comes near its largest.
__device__ __forceinline__ void subtract(float (&s)[BLOCK_N / 2], int r, float near) {
  #pragma unroll
  for (int i = 2 * r; i < BLOCK_N / 2; i += 4) s[i] -= near, s[i + 1] -= near;
}

// If a row of the warp is so large; each rounds as it would alone, whatever those beside it hold.
__device__ __forceinline__ void subtract_large(float (&s)[BLOCK_N / 2], int r, float near, float magnitude, float& reference) {
  const bool large = magnitude >= LARGE;
  if (!__any_sync(~0u, large)) return;   // nearly always
  subtract(s, r, large ? near : 0.0f);
  if (large) reference = 0.0f;
}

// The maximum of row r takes in the largest of a thread's scores. `rescale` becomes what brings o and l to it. Returns it, or 0 before the first key.
__device__ __forceinline__ float raise(int r, float top, Rows& rows, float& rescale, const Variant& variant) {
  float largest = fmaxf(rows.max[r], row_max(top));
  if ((largest - rows.max[r]) * variant.to_log2() <= RESCALE_THRESHOLD) largest = rows.max[r];   // any reference near the maximum will do
  const float base = base_of(largest);
  rescale = ptx::exp2((rows.max[r] - base) * variant.to_log2());   // exactly 1 where the maximum stays
  rows.max[r] = largest;
  return base;
}

// Scores of row r become exponentials, and l takes them in.
__device__ __forceinline__ void exponentials(float (&s)[BLOCK_N / 2], int r, float reference, Rows& rows, float rescale, const Variant& variant) {
  float sum = 0.0f;
  #pragma unroll
  for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
    s[i] = ptx::exp2(fmaf(s[i], variant.to_log2(), -reference));
    s[i + 1] = ptx::exp2(fmaf(s[i + 1], variant.to_log2(), -reference));
    sum += s[i] + s[i + 1];
  }
  rows.sum[r] = rows.sum[r] * rescale + sum;
}

// Raw products become exponentials in place. Returns in `rescale` the factors that bring o and l to the new maximum.
template <bool MASKED>
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], Rows& rows, float (&rescale)[2], const Variant& variant, const Elements& elements) {
  float top[2], base[2], reference[2];   // reference: what exponents are relative to
  bool raised = false;                   // a maximum rises, or what scores are compared with is large
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Variant::Row& row = elements.row[r];
    top[r] = -INF;
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
      #pragma unroll
      for (int j = i; j < i + 2; ++j) {
        if (MASKED && !variant.keep(row, column(j))) s[j] = -INF;
      }
      top[r] = fmaxf(top[r], fmaxf(s[i], s[i + 1]));
    }
    if (MASKED) {                        // row by row, so that the mask of the second runs beside the exponentials of the first
      base[r] = raise(r, top[r], rows, rescale[r], variant);
      reference[r] = base[r] * variant.to_log2();
      subtract_large(s, r, base[r], fabsf(base[r]) * variant.to_log2(), reference[r]);
      exponentials(s, r, reference[r], rows, rescale[r], variant);
    } else {
      rescale[r] = 1.0f;
      base[r] = base_of(rows.max[r]);
      reference[r] = base[r] * variant.to_log2();
      raised |= (top[r] - rows.max[r]) * variant.to_log2() > RESCALE_THRESHOLD || fabsf(base[r]) * variant.to_log2() >= LARGE;
    }
  }
  if (MASKED) return;
  if (__any_sync(~0u, raised)) {         // seldom
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = raise(r, top[r], rows, rescale[r], variant);
      reference[r] = base[r] * variant.to_log2();
      subtract_large(s, r, base[r], fabsf(base[r]) * variant.to_log2(), reference[r]);
    }
  }
  #pragma unroll
  for (int r = 0; r < 2; ++r) exponentials(s, r, reference[r], rows, rescale[r], variant);
}

// o times the factors of its rows.
template <int N> __device__ __forceinline__ void rescale_rows(float (&o)[N], const float (&factor)[2]) {
  if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
  #pragma unroll
  for (int i = 0; i < N; ++i) o[i] *= factor[i / 2 % 2];
}

// The end of a row: 1 / l, the log-sum-exp and the maximum, natural log. No key: o = 0, lse = -inf, max = -inf.
struct End { float inverse, lse, max; };
__device__ __forceinline__ End finalize(const Rows& rows, int r, const Variant& variant) {
  const float largest = rows.max[r] * (variant.to_log2() * LN_2);
  const float sum = row_sum(rows.sum[r]);
  if (sum == 0.0f) return {0.0f, -INF, -INF};
  return {ptx::reciprocal(sum), fmaf(ptx::log2(sum), LN_2, largest), largest};
}

// ----------------------------------------------------------------------------------------------------------------- work

struct Work {                            // a query tile and its key tiles
  static constexpr int RANGES = 3;
  int block, batch, head, kv_head;
  int begin[RANGES], end[RANGES];        // of each range
  int above, below;                      // of a warpgroup: key tiles of the query tile that it does not take
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
    const int blocks = Sequence{p, batch}.query_tiles();
    const int piece = rows < BLOCK_M ? 1 + q_begin % BLOCK_M / WARPGROUP_ROWS : 0;
    const int4 seen_0 = p.seen_0[(batch * blocks + block) * (1 + WARPGROUPS) + piece];
    const int q_last = min(q_begin + rows, p.q_len) - 1;
    const int keys_end = max(0, min(p.kv_len - p.q_len + q_last + 1, seen_0.y));
    const int full_end = max(0, min(p.kv_len - p.q_len + q_begin + 1, seen_0.w));
    const int first = seen_0.x / BLOCK_N;
    const int last = keys_end <= seen_0.x ? first : (keys_end + BLOCK_N - 1) / BLOCK_N;
    const int body = min(last, max((seen_0.z + BLOCK_N - 1) / BLOCK_N, first));
    const int tail = min(last, max(body, full_end / BLOCK_N));
    begin[0] = first, end[0] = body; // the mask is tested in these
    begin[1] = body, end[1] = tail;
    begin[2] = tail, end[2] = last; // the mask is tested in these
  }

  // For a warpgroup: of these key tiles those from the first to the last that its own rows see.
  __device__ __forceinline__ Work narrowed(const Params& p, int warpgroup) const {
    const int q_begin = block * BLOCK_M + warpgroup * WARPGROUP_ROWS;
    const bool exists = q_begin < Sequence{p, batch}.q_len();
    Work own = *this;
    own.find_keys(p, q_begin, WARPGROUP_ROWS);
    #pragma unroll
    for (int range = 0; range < RANGES; ++range) own.end[range] = exists ? own.end[range] : 0;
    own.above = last() - max(own.last(), first() - 1), own.below = max(0, own.first() - first());
    return own;
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

struct Dealer {                          // query tiles by halves of the L2: blocks near one take the heads of one half of all heads, then others
  static constexpr int COUNTERS = 2;
  const Params& p;
  int half = p.halves[ptx::multiprocessor()], halves = 2;   // whose heads this block takes, and how many may have query tiles left
  int t;

  __device__ __forceinline__ int heads_of(int half) const { return (p.heads * p.batch + 1 - half) / 2; }
  __device__ __forceinline__ bool next(int) {
    t = take(p.counter + half);
    while (halves && t >= count_query_tiles(p, heads_of(half))) {
      half ^= 1;
      if (--halves) t = take(p.counter + half);
    }
    return halves > 0;
  }
  __device__ __forceinline__ Work work() const { return Work(t, p, half ? heads_of(0) : 0, heads_of(half)); }
};

// One warp: deals query tiles, the next while one is worked on, so that nobody waits for the counter, or while key tiles are found.
// Each lane finds those of one reader: the loading thread, which needs what any row sees, and the warpgroups.
__device__ __forceinline__ void deal(const Params& p, u32 shared) {
  const int lane = threadIdx.x & 31, reader = min(lane, WARPGROUPS);
  const u32 place = shared + TILE + TILE_BYTES * reader;
  Dealer dealer{p};
  ptx::previous_kernel_wait();           // what is counted begins at zero
  for (int dealt = 0;; ++dealt) {
    ptx::mbarrier_wait(shared + TILE_EMPTY, (dealt & 1) ^ 1);
    const bool more = dealer.next(dealt);
    if (more) {
      const Work work = dealer.work();
      const Work own = reader ? work.narrowed(p, reader - 1) : work;
      if (lane == reader) post(place, own);
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
  __device__ __forceinline__ void queries(u32 dealt) const {
    const u32 stage = dealt % QUERY_STAGES, full = shared + Q_FULL + BARRIER_BYTES * stage;
    ptx::mbarrier_wait(shared + Q_EMPTY + BARRIER_BYTES * stage, (dealt / QUERY_STAGES & 1) ^ 1);
    ptx::mbarrier_expect(full, Q_BYTES);
    for (int c = 0; c < QK_STORED; c += SWIZZLE_COLUMNS) {
      const u32 at = shared + Q + stage * Q_BYTES + column_at<BLOCK_M>(c);
      ptx::tma_load_as(ptx::passing(), at, p.q, full, c, work.block * BLOCK_M, work.head, work.batch);
    }
  }
  __device__ __forceinline__ void keys(int tile, int stage) const {
    const u32 full = shared + K_FULL + BARRIER_BYTES * stage;
    ptx::mbarrier_expect(full, K_BYTES);
    for (int c = 0; c < QK_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + K + stage * K_BYTES + column_at<BLOCK_N>(c), p.k, full, c, tile * BLOCK_N, work.kv_head, work.batch);
  }
  __device__ __forceinline__ void values(int tile, int stage) const {
    const u32 full = shared + V_FULL + BARRIER_BYTES * stage, first = work.v_slice * V_COLUMNS;
    ptx::mbarrier_expect(full, V_BYTES);
    for (int c = 0; c < V_STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(shared + V + stage * V_BYTES + column_at<BLOCK_N>(c), p.v, full, first + c, tile * BLOCK_N, work.kv_head, work.batch);
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
    copies.queries(dealt);
    for (int tile = work.last(); tile >= work.first(); --tile) {
      ptx::mbarrier_wait(shared + K_EMPTY + BARRIER_BYTES * stage, parity);
      copies.keys(tile, stage);
      ptx::mbarrier_wait(shared + V_EMPTY + BARRIER_BYTES * stage, parity);
      copies.values(tile, stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

struct Attend {                          // one warpgroup: 64 query rows against all their keys
  const Params& p;
  const u32 shared;
  const int warpgroup, warp = threadIdx.x / 32 & 3, lane = threadIdx.x & 31;
  const u64 q_rows = k_major(shared + Q + warpgroup * WARPGROUP_ROWS * ROW_BYTES);
  const u64 k_tile = k_major(shared + K), v_tile = n_major(shared + V, BLOCK_N * ROW_BYTES);
  const bool leader = (threadIdx.x & 127) == 0;
  int step = 0;                          // places of key tiles taken so far, over all query tiles
  u32 dealt = 0;                         // query tiles taken so far

  // The place of a key tile, and what tells that it has come or gone.
  __device__ __forceinline__ int stage(int at) const { return at % STAGES; }
  __device__ __forceinline__ void await(u32 barriers, int at) const { ptx::mbarrier_wait(shared + barriers + BARRIER_BYTES * stage(at), at / STAGES & 1); }
  __device__ __forceinline__ void release(u32 barriers, int nth) const { if (leader) ptx::mbarrier_arrive(shared + barriers + BARRIER_BYTES * nth); }
  __device__ __forceinline__ void meet() const { ptx::bar_sync(MEETING + warpgroup, 128); }
  __device__ __forceinline__ u32 query_stage() const { return dealt % QUERY_STAGES; }
  __device__ __forceinline__ int first_row(const Work& work) const {
    return work.block * BLOCK_M + warpgroup * WARPGROUP_ROWS + warp * 16 + lane / 4;
  }

  // The warpgroups take turns at the tensor cores, so that some multiply while others compute exponentials.
  __device__ __forceinline__ void first_turn() const { if (warpgroup == WARPGROUPS - 1) pass_turn(); }
  __device__ __forceinline__ void take_turn() const { ptx::bar_sync(TURN + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const { ptx::bar_arrive(TURN + (warpgroup + 1) % WARPGROUPS, 256); }

  __device__ __forceinline__ Work next_tile(int nth) const {   // block -1: there are no more
    ptx::mbarrier_wait(shared + TILE_FULL, nth & 1);
    const Work work = fetch(shared + TILE + TILE_BYTES * (1 + warpgroup));
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + TILE_EMPTY);
    return work;
  }

  // s = q k^T and o += p v go to the tensor cores; both are read after a wait.
  __device__ __forceinline__ void start_scores(float (&s)[BLOCK_N / 2], int at) const {
    const u32 q = query_stage() * Q_BYTES, keys = stage(at) * K_BYTES;
    await(K_FULL, at);
    take_turn();
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < QK_COLUMNS / K_STEP; ++k)   // one step to each address: a second would wait for the first
      ptx::product_qk(s, advance(q_rows, q + column_at<BLOCK_M>(K_STEP * k)), advance(k_tile, keys + column_at<BLOCK_N>(K_STEP * k)),
                      k > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_output(float (&o)[V_COLUMNS / 2], const u32 (&probabilities)[BLOCK_N / 4], int at) const {
    const u32 values = stage(at) * V_BYTES;
    await(V_FULL, at);
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k) ptx::product_pv(o, probabilities + 4 * k, advance(v_tile, values + K_STEP * k * ROW_BYTES), 1);
    ptx::wgmma_commit();
  }

  // Key tiles of which only other warpgroups see some: turns and places go on.
  __device__ __forceinline__ void pass(int tiles) {
    #pragma unroll 1
    for (; tiles > 0; --tiles, ++step) {
      await(K_FULL, step);
      take_turn();
      pass_turn();
      release(K_EMPTY, stage(step));
      await(V_FULL, step);
      meet();                            // all four warps have seen it
      release(V_EMPTY, stage(step));
    }
  }

  static __device__ __forceinline__ void pack(const float (&s)[BLOCK_N / 2], u32 (&probabilities)[BLOCK_N / 4]) {
    #pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) probabilities[i] = ptx::bf16x2(s[2 * i], s[2 * i + 1]);
  }

  // One key tile: its scores and the previous tile's output run on the tensor cores while another warpgroup computes exponentials.
  template <bool MASKED>
  __device__ __forceinline__ void advance_tile(float (&o)[V_COLUMNS / 2], float (&s)[BLOCK_N / 2], u32 (&probabilities)[BLOCK_N / 4], Rows& rows,
                                               const Variant& variant, int q_idx, int tile, bool final) {
    float rescale[2];
    start_scores(s, step + 1);
    start_output(o, probabilities, step);
    pass_turn();
    Elements elements;
    read<MASKED>(elements, variant, q_idx, tile * BLOCK_N);
    ptx::wgmma_wait<1>();
    release(K_EMPTY, stage(step + 1));
    if (final) queries_read();
    softmax<MASKED>(s, rows, rescale, variant, elements);
    ptx::wgmma_wait<0>();
    release(V_EMPTY, stage(step));
    pack(s, probabilities);
    rescale_rows(o, rescale);
    ++step;
  }

  // The last product with q is done; q's place is free.
  __device__ __forceinline__ void queries_read() const { release(Q_EMPTY, query_stage()); }

  // o / l through shared memory to o, the other outputs of a row straight from the registers.
  __device__ __forceinline__ void write(float (&o)[V_COLUMNS / 2], const Rows& rows, const Variant& variant, const Work& work) {
    const Sequence sequence{p, work.batch};
    float inverse[2];
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
      const End end = finalize(rows, r, variant);
      inverse[r] = end.inverse;
      const int row = first_row(work) + 8 * r;
      if (work.v_slice == 0 && lane % 4 == 0 && row < sequence.q_len()) {
        p.lse[sequence.row(work.head, row)] = end.lse;
      }
    }
    #pragma unroll
    for (int i = 0; i < V_COLUMNS / 2; ++i) o[i] *= inverse[i / 2 % 2];
    const u32 place = shared + O + warpgroup * WARPGROUP_ROWS * ROW_BYTES;
    if (leader) ptx::tma_store_wait_read();           // the previous tile has left it
    meet();
    const int row = warp * 16 + lane % 16;
    #pragma unroll
    for (int k = 0; k < V_COLUMNS / 16; ++k) {
      const u32 block = place + k / 4 * BLOCK_M * ROW_BYTES, at = block + row * ROW_BYTES + ((k % 4 * 32 + lane / 16 * 16) ^ (row % 8 << 4));
      const auto pair = [&](int i) { return ptx::bf16x2(o[8 * k + 2 * i], o[8 * k + 2 * i + 1]); };
      ptx::stmatrix_x4(at, pair(0), pair(1), pair(2), pair(3));
    }
    ptx::async_proxy_fence();
    meet();
    if (leader) {
      for (int c = 0; c < V_STORED; c += SWIZZLE_COLUMNS)
        ptx::tma_store_as(ptx::passing(), p.o, place + column_at<BLOCK_M>(c), work.v_slice * V_COLUMNS + c,
                          work.block * BLOCK_M + warpgroup * WARPGROUP_ROWS, work.head, work.batch);
      ptx::tma_store_commit();
    }
  }

  __device__ __forceinline__ void run() {
    first_turn();
    for (;; ++dealt) {
      const Work work = next_tile(dealt);
      if (work.block < 0) break;
      Variant variant(p, work.batch, work.head, work.kv_head);
      const int q_idx = first_row(work);
      variant.hold(q_idx);
      const int first = work.first(), last = work.last();
      float o[V_COLUMNS / 2] = {}, s[BLOCK_N / 2], rescale[2];
      u32 probabilities[BLOCK_N / 4];
      Rows rows;
      ptx::mbarrier_wait(shared + Q_FULL + BARRIER_BYTES * query_stage(), dealt / QUERY_STAGES & 1);
      pass(work.above);
      if (last >= 0) {
        start_scores(s, step);
        pass_turn();
        Elements elements;
        read<true>(elements, variant, q_idx, last * BLOCK_N);
        ptx::wgmma_wait<0>();
        release(K_EMPTY, stage(step));
        if (first == last) queries_read();
        softmax<true>(s, rows, rescale, variant, elements);
        pack(s, probabilities);
        for (int tile = min(work.end[2], last) - 1; tile >= work.begin[2]; --tile)
          advance_tile<true>(o, s, probabilities, rows, variant, q_idx, tile, tile == first);
        for (int tile = min(work.end[1], last) - 1; tile >= work.begin[1]; --tile)
          advance_tile<false>(o, s, probabilities, rows, variant, q_idx, tile, tile == first);
        for (int tile = min(work.end[0], last) - 1; tile >= work.begin[0]; --tile)
          advance_tile<true>(o, s, probabilities, rows, variant, q_idx, tile, tile == first);
        start_output(o, probabilities, step);
        ptx::wgmma_wait<0>();
        release(V_EMPTY, stage(step++));
      } else {
        meet();                          // all four warps have seen q full; no product holds them together here
        queries_read();
      }
      pass(work.below);
      write(o, rows, variant, work);
    }
    if (leader) ptx::tma_store_wait();
  }
};

// --------------------------------------------------------------------------------------------------------------- before

__device__ __forceinline__ void widen(longlong2& extent, long long x) { extent = {min(extent.x, x), max(extent.y, x)}; }
__device__ __forceinline__ longlong2 over_warp(longlong2 extent) {
  #pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const long long low = __shfl_xor_sync(~0u, extent.x, lanes), high = __shfl_xor_sync(~0u, extent.y, lanes);
    extent = {min(extent.x, low), max(extent.y, high)};
  }
  return extent;
}
__device__ __forceinline__ longlong2 nothing() { return {0x7FFFFFFFFFFFFFFF, -0x7FFFFFFFFFFFFFFF - 1}; }

// ids[b, kv_idx] == ids[b, kv_len + q_idx - q_len]: the least and the greatest left side over each key tile.
extern "C" __global__ void __launch_bounds__(32) key_extents_seen_0(const __grid_constant__ Params p) {
  ptx::next_kernel_start();
  ptx::previous_kernel_wait();           // nobody reads the ranges of the call before any more; what this kernel reads is there
  const Sequence sequence{p, 0};         // all are as long
  const int tiles = sequence.key_tiles();
  const int tile = blockIdx.x % tiles, lane = threadIdx.x % 32;
  const int batch = blockIdx.x / tiles;
  const int last = min((tile + 1) * BLOCK_N, sequence.kv_len()) - 1;
  longlong2 extent = nothing();
  #pragma unroll
  for (int i = 0; i < BLOCK_N; i += 32) {
    const int kv_idx = min(tile * BLOCK_N + i + lane, last);   // the last one again changes nothing
    widen(extent, p.arg_ids(batch, kv_idx));
  }
  extent = over_warp(extent);
  if (lane == 0) p.extents_seen_0[batch * tiles + tile] = extent;
  const auto number = [&](int kv_idx) { return p.arg_ids(batch, kv_idx); };
  const int begin = tile * BLOCK_N;
  int border = begin, borders = 0;
  #pragma unroll
  for (int i = 0; i < BLOCK_N; i += 32) {
    const int kv_idx = min(begin + i + lane, last);
    const u32 changes = __ballot_sync(~0u, number(kv_idx) != number(max(kv_idx - 1, begin)) && begin + i + lane <= last);
    if (changes) border = begin + i + __ffs(changes) - 1;
    borders += __popc(changes);
  }
  if (lane == 0) p.runs_seen_0[batch * tiles + tile] = make_int4(number(begin), number(last), border, borders < 2);
}

// The keys for which that may hold for some row of a query tile, or of a part of one that has ranges of its own: their begin and end; and
// begin and end of the first of them for which it must hold for every row.
extern "C" __global__ void __launch_bounds__(32 * (1 + WARPGROUPS)) key_ranges_seen_0(const __grid_constant__ Params p) {
  ptx::next_kernel_start();
  ptx::previous_kernel_wait();           // nobody reads the ranges of the call before any more; what this kernel reads is there
  const Sequence sequence{p, 0};         // all are as long
  const int blocks = sequence.query_tiles(), tiles = sequence.key_tiles();
  const int tile = blockIdx.x % blocks, lane = threadIdx.x % 32;
  const int batch = blockIdx.x / blocks;
  const int piece = threadIdx.x / 32;    // 0: the query tile itself, then the warpgroups'
  const int q_begin = tile * BLOCK_M + max(0, piece - 1) * WARPGROUP_ROWS, count = piece ? WARPGROUP_ROWS : BLOCK_M;
  const int last = min(q_begin + count, sequence.q_len()) - 1;
  longlong2 rows = nothing();
  if (tiles)                             // without keys a tensor may be empty
    #pragma unroll
    for (int i = 0; i < count; i += 32) {
      const int q_idx = min(q_begin + i + lane, last);
      widen(rows, p.arg_ids(batch, max(0, int(min((long long)p.kv_len + q_idx - p.q_len, (long long)(p.kv_len - 1))))));
    }
  rows = over_warp(rows);
  const long long low = rows.x, high = rows.y;
  int begin = -1, end = 0, full_begin = -1, full_end = -1;   // in tiles; -1: not found yet
  #pragma unroll 4
  for (int first = 0; first < tiles; first += 32) {
    const bool exists = first + lane < tiles;
    const longlong2 key = exists ? p.extents_seen_0[batch * tiles + first + lane] : nothing();
    const u32 may = __ballot_sync(~0u, exists && (key.x <= high && low <= key.y));
    const u32 must = __ballot_sync(~0u, exists && (key.x == key.y && low == high && key.x == low));
    if (may && begin < 0) begin = first + __ffs(may) - 1;
    if (may) end = first + 32 - __clz(may);
    if (must && full_begin < 0) full_begin = first + __ffs(must) - 1;
    const u32 gaps = ~must & ~0u << max(0, full_begin - first);   // after the first run's begin
    if (full_begin >= 0 && full_end < 0 && gaps) full_end = first + __ffs(gaps) - 1;
  }
  if (full_end < 0) full_end = tiles;
  if (full_begin < 0) full_begin = full_end = 0;
  const auto keys = [&](int tile) { return min(tile * BLOCK_N, sequence.kv_len()); };
  if (lane == 0) p.seen_0[(batch * blocks + tile) * (1 + WARPGROUPS) + piece] = make_int4(keys(max(begin, 0)), keys(end), keys(full_begin), keys(full_end));
  if (!piece) return;
  constexpr int ROWS = WARPGROUP_ROWS / 32;   // of a lane
  const auto number_of = [&](int q_idx) { return p.arg_ids(batch, max(0, int(min((long long)p.kv_len + q_idx - p.q_len, (long long)(p.kv_len - 1))))); };
  decltype(number_of(0)) number[ROWS];
  bool open[ROWS];                       // whose keys are not known yet
  #pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    open[i] = end > 0 && q_begin + 32 * i + lane <= last;
    if (open[i]) number[i] = number_of(q_begin + 32 * i + lane);   // without keys a tensor may be empty
  }
  int2* const held = p.rows_seen_0 + (long long)batch * sequence.q_len() + q_begin + lane;
  if (!end)                              // no row sees a key
    for (int i = 0; i < ROWS; ++i) if (q_begin + 32 * i + lane <= last) held[32 * i] = {};
  int looks = 64;                        // at tiles of more than two runs; where these do not suffice, rows look for themselves
  for (;;) {
    u32 those = 0;
    decltype(number_of(0)) next;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i)
      if (!those && (those = __ballot_sync(~0u, open[i]))) next = __shfl_sync(~0u, number[i], __ffs(those) - 1);
    if (!those) break;
    int from = sequence.kv_len(), to = 0, count = 0;   // of the keys that hold it: the first, behind the last, how many
    const auto hold = [&](int left, int right) { if (left < right) from = min(from, left), to = max(to, right), count += right - left; };
    for (int at = max(begin, 0); at < end; at += 32) {
      const bool exists = at + lane < end;
      const int4 run = exists ? p.runs_seen_0[batch * tiles + at + lane] : int4();
      const int first = (at + lane) * BLOCK_N, beyond = min(first + BLOCK_N, sequence.kv_len());
      if (run.w) hold(next == run.x ? first : run.z, next == run.y ? beyond : run.z);
      for (u32 others = __ballot_sync(~0u, exists && !run.w); others && looks; others &= others - 1, --looks)
        #pragma unroll
        for (int i = 0; i < BLOCK_N; i += 32) {
          const int key = (at + __ffs(others) - 1) * BLOCK_N + i + lane, kv_idx = min(key, sequence.kv_len() - 1);
          hold(key, key + (i + lane < BLOCK_N && key == kv_idx && p.arg_ids(batch, kv_idx) == next));
        }
    }
    #pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      from = min(from, __shfl_xor_sync(~0u, from, lanes)), to = max(to, __shfl_xor_sync(~0u, to, lanes));
      count += __shfl_xor_sync(~0u, count, lanes);
    }
    #pragma unroll
    for (int i = 0; i < ROWS; ++i)
      if (open[i] && number[i] == next) held[32 * i] = looks && to - from <= count ? make_int2(from, to) : make_int2(0, -1), open[i] = false;
  }
}

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
    init(shared + Q_FULL, QUERY_STAGES, 1);
    init(shared + Q_EMPTY, QUERY_STAGES, WARPGROUPS);
    init(shared + K_FULL, STAGES, 1);
    init(shared + K_EMPTY, STAGES, WARPGROUPS);
    init(shared + V_FULL, STAGES, 1);
    init(shared + V_EMPTY, STAGES, WARPGROUPS);
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
