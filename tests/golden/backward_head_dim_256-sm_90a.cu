// flashgen 0.1.0 | spec causal | arch sm_90a | plan 0c8137d0 | generated, do not edit
//
//   p = exp(score(softmax_scale * q k^T) - lse) where mask
//   ds = p * (do v^T - delta) * (d score / d s) where mask
//   dv = p^T do    dk = softmax_scale * ds^T q    dq = softmax_scale * ds k
//
//   arrays    q, o [B, Sq, Hq, 256] bfloat16    k, v [B, Sk, Hq / group, 256]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   tile      64 queries x 128 keys    in each of 2 blocks of a cluster 2 warpgroups compute 64 keys each, 1 loads
//   queries   of a key tile, for every query head that shares it: 3 ranges of tiles in closed form (masked, unmasked, masked)
//   order     a cluster a key tile, the first key tiles first, in sections of heads that share the L2
//   sums      dk and dv in registers of a block each; dq in float32 in memory, added to by the blocks of all key tiles in any order
//   shared    K or V 65536 | Q or do 4 x 32768 | ds 2 x 16384 | lse or delta 4 x 256 | step 4 x 4 | 4 stages    230552 of 232448 bytes

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
constexpr int QK_COLUMNS = 256, V_COLUMNS = 256;   // head dims in products of 16 columns, zero beyond 256 and 256
constexpr int QK_STORED = 256, V_STORED = 256;   // columns of a tile in shared memory
constexpr int QK_DIM = 256, V_DIM = 256;   // columns of the arrays
constexpr int STAGES = 4;                // stages of tiles of q and do in shared memory
constexpr int COPY_BYTES = 16;           // that one copy moves: what every row is aligned to
constexpr float LOG2_E = 1.4426950408889634f;
using Element = u16;                     // that products multiply: bfloat16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
#define INF __int_as_float(0x7f800000)

constexpr int WARPGROUPS = 2, WARPGROUP_KEYS = 64;   // of a block that compute, and the keys of each
constexpr int LOAD_WARPGROUPS = 1, THREADS = 128 * (LOAD_WARPGROUPS + WARPGROUPS);   // of a block
constexpr int LOAD_REGISTERS = 24, COMPUTE_REGISTERS = 240;   // a thread
constexpr int RING_BYTES = 32768, BARRIER_BYTES = 8;   // of a tile of q or do, of an mbarrier
constexpr int DS_BYTES = BLOCK_M * BLOCK_N * ELEMENT_BYTES;
constexpr int WEIGHT_BYTES = DS_BYTES / WARPGROUPS;   // of a warpgroup's weights, which lie where ds does, before it
constexpr int STEPS = 4, ROWS_BYTES = BLOCK_M * 4;   // that are known ahead, and of each what belongs to its rows
constexpr int STEP_BYTES = 4;            // of what a step has to know: its query tile, and whether the mask is tested
constexpr int VALUES_PARTS = (QK_STORED / 64 + 1) / 2;   // of 64 columns of dq, that the block of dv multiplies; the other one has the rest

// Shared memory of either block, bytes from its start.
constexpr u32 KEPT = 0;                  // 1 x 65536
constexpr u32 RING = 65536;              // 4 x 32768
constexpr u32 DS = 196608;               // 2 x 16384
constexpr u32 ROWS = 229376;             // 4 x 256
constexpr u32 STEP = 230400;             // 4 x 4
constexpr u32 KEPT_FULL = 230416;        // 1 x 8
constexpr u32 RING_FULL = 230424;        // 4 x 8
constexpr u32 RING_EMPTY = 230456;       // 4 x 8
constexpr u32 DS_FULL = 230488;          // 2 x 8
constexpr u32 DS_EMPTY = 230504;         // 2 x 8
constexpr u32 WEIGHTS_FULL = 230520;     // 4 x 8

// Named barriers.
constexpr int ALL_MEETING = 1;           // both warpgroups that compute are there
constexpr int MEETING = 2;               // + warpgroup: its four warps are there
constexpr int ROW_BYTES = 128, SWIZZLE_COLUMNS = ROW_BYTES / ELEMENT_BYTES;   // of a block: a tile lies as blocks of so many columns, swizzled in each row

// Where a column, the first of a product's, begins in a tile of ROWS rows.
template <int ROWS> __device__ __forceinline__ constexpr u32 column_at(int column) {
  return column / SWIZZLE_COLUMNS * ROWS * ROW_BYTES + column % SWIZZLE_COLUMNS * ELEMENT_BYTES;
}

enum Role { VALUES, KEYS };              // of a block, its rank in the cluster: whose gradient it has

template <Role ROLE> struct Part {       // what a block has of the work
  static constexpr int SCORED = ROLE == VALUES ? QK_COLUMNS : V_COLUMNS;   // columns that its scores are summed over
  static constexpr int COLUMNS = ROLE == VALUES ? V_COLUMNS : QK_COLUMNS;   // of its gradient
  static constexpr int KEPT_STORED = ROLE == VALUES ? QK_STORED : V_STORED;   // of k or v, which stays
  // Parts of 64 columns of dq, one a warpgroup, and the first of them. The columns of k for a part: of the tile that it keeps; or beside v, and where that
  // leaves no room in the first stage of the ring.
  static constexpr int PARTS = ROLE == VALUES ? VALUES_PARTS : QK_STORED / 64 - VALUES_PARTS, FIRST_PART = ROLE == VALUES ? 0 : VALUES_PARTS;
  static constexpr int BESIDE = ROLE == VALUES ? PARTS : QK_STORED > V_STORED ? (QK_STORED - V_STORED) / 64 : 0, K_STAGES = PARTS > BESIDE;
  static __device__ __forceinline__ u32 k_columns(int part) {
    return part < BESIDE ? KEPT + column_at<BLOCK_N>((ROLE == VALUES ? 0 : V_STORED) + 64 * part) : RING + column_at<BLOCK_N>(64 * (part - BESIDE));
  }
  static constexpr int RING_STAGES = STAGES - K_STAGES;   // of q and do, one after the other
  static constexpr u32 TILES = RING + K_STAGES * RING_BYTES;
};

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// barrier.cuh: mbarrier_init, mbarrier_init_fence, mbarrier_expect, mbarrier_arrive, mbarrier_wait, bar_sync
// cluster.cuh: address_in, cluster_arrive, cluster_wait, mbarrier_arrive_there, send_x4, send_bulk
// global.cuh: store_floats, add_floats
// grid.cuh: next_kernel_start
// math.cuh: exp2, bf16x2, low_bf16, high_bf16
// shared.cuh: load_shared, store_shared, stmatrix_x4, stmatrix_x4_trans, load_shared_floats, load_shared_x4, store_shared_x4
// tma.cuh: tma_load, passing, tma_store_as, tma_store_commit, tma_store_wait, async_proxy_fence, bulk_load
// wgmma.cuh: wgmma_fence, wgmma_commit, held, read_until_here, wgmma_wait, fewer_registers, more_registers

// d[64 x 64] (+)= a b^T with a in shared memory, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_qk(float* d, u32 a, u32 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
    ".reg .b64 whole_a; mov.b64 whole_a, {%32, 0x40000040}; .reg .b64 whole_b; mov.b64 whole_b, {%33, 0x40000040}; "
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, whole_a, whole_b, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "r"(a), "r"(b), "r"(accumulate));
}

// d[64 x 256] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_dv(float* d, const u32* a, u32 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; .reg .b64 whole_b; mov.b64 whole_b, {%132, 0x40000040}; "
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
    "}, { %128, %129, %130, %131 }, whole_b, p, 1, 1, 1; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
      "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
      "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
      "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
      "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
      "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
      "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
      "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
      "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate));
}

// d[64 x 256] (+)= a b with a in registers, b in shared memory, contiguous along its columns.
__device__ __forceinline__ void product_dk(float* d, const u32* a, u32 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; .reg .b64 whole_b; mov.b64 whole_b, {%132, 0x40000040}; "
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
    "}, { %128, %129, %130, %131 }, whole_b, p, 1, 1, 1; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
      "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
      "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
      "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
      "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
      "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
      "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
      "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
      "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate));
}

// d[64 x 64] (+)= a^T b^T with a in shared memory, contiguous along its columns, b in shared memory, contiguous along k.
__device__ __forceinline__ void product_dq(float* d, u32 a, u32 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
    ".reg .b64 whole_a; mov.b64 whole_a, {%32, 0x40000040}; .reg .b64 whole_b; mov.b64 whole_b, {%33, 0x40000040}; "
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, whole_a, whole_b, p, 1, 1, 1, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "r"(a), "r"(b), "r"(accumulate));
}

}  // namespace ptx

// Shared-memory descriptors of wgmma (PTX ISA 9.0, 9.7.15.5.1): address, leading and stride offset in units of 16 bytes, 128-byte swizzle.
constexpr u64 SWIZZLE_128 = 1ull << 62, STRIDE = u64(8 * ROW_BYTES >> 4) << 32;   // from 8 rows to the next 8
__device__ __forceinline__ u64 address(u32 at) { return (at & 0x3FFFF) >> 4; }
// Rows contiguous along k; or along n, with blocks of SWIZZLE_COLUMNS so many bytes apart.
__device__ __forceinline__ u64 k_major(u32 at) { return address(at) | 1ull << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 n_major(u32 at, u32 block_bytes) { return address(at) | u64(block_bytes >> 4) << 16 | STRIDE | SWIZZLE_128; }
__device__ __forceinline__ u64 advance(u64 descriptor, u32 bytes) { return (descriptor & ~0xFFFFFFFFull) | u32(u32(descriptor) + (bytes >> 4)); }

// Products are given a descriptor's low word: the high one is the same in all.
__device__ __forceinline__ u32 low_word(u64 descriptor) { return u32(descriptor); }
static_assert((STRIDE | SWIZZLE_128) >> 32 == 0x40000040, "the high word in products");
__device__ __forceinline__ constexpr u32 units(u32 bytes) { return bytes >> 4; }

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

struct RowValues {                       // lse or delta of a thread's queries
  const u32 at;
  __device__ __forceinline__ explicit RowValues(u32 at) : at(at) {}
  // Of 16 queries the thread's four.
  __device__ __forceinline__ void take(float (&four)[4], int k) const { ptx::load_shared_floats(four, at + 64 * k); }
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

// dq^T = k^T ds^T goes to memory as its products leave it, 64 columns of q by BLOCK_M queries a warpgroup. A warp adds what lies side by side.
constexpr int DQ_FLOATS = BLOCK_M * QK_STORED, WARP_FLOATS = 4 * 32;   // of a query tile, of what a warp adds at once
static_assert(QK_STORED <= 2 * WARPGROUPS * 64, "a warpgroup has 64 columns");

// Where an element of dq lies in its tile: of a row of the tile and a column.
__device__ __forceinline__ int sum_at(int row, int column) {
  return column / 16 * (BLOCK_M * 16) + row / 8 * WARP_FLOATS + (column % 8 * 4 + row % 8 / 2) * 4 + column % 16 / 8 * 2 + row % 2;
}
// Where lse and delta of a row lie: in each 16 rows those of a thread lie together, two and the two that are 8 further on.
__device__ __forceinline__ int row_place(int row) { return (row & ~15) | (row & 6) << 1 | (row >> 2 & 2) | (row & 1); }

// ---------------------------------------------------------------------------------------------------------------- roles

// Two blocks of a cluster share a key tile. Each has the scores of one kind, one gradient, and its part of the columns of dq:
//   VALUES    s^T = k q^T      p, which the other gets      dv += p^T do    dq, the first columns
//   KEYS      dp^T = v do^T    ds, which the other gets     dk += ds^T q    dq, the others
template <Role ROLE> struct Copies {      // that a warp starts; all of its lanes compute, so that it stays in uniform registers, the first one acts
  using Of = Part<ROLE>;
  const Params& p;
  const u32 shared;
  const Work work = Work(blockIdx.x / 2, p);
  const bool acts = threadIdx.x == 0;
  int stage = 0, parity = 1, step = 0;

  // k or v of the key tile, and with v the columns of k for its part of dq.
  __device__ __forceinline__ void keys() const {
    constexpr int BYTES = BLOCK_N * ELEMENT_BYTES * (Of::KEPT_STORED + (ROLE == KEYS ? 64 * Of::PARTS : 0));
    ptx::mbarrier_expect(shared + KEPT_FULL, BYTES);
    const auto columns = [&](u32 to, const TensorMap& of, int c) {
      ptx::tma_load(to, of, shared + KEPT_FULL, c, work.block * BLOCK_N, work.kv_head, work.batch);
    };
    for (int c = 0; c < Of::KEPT_STORED; c += SWIZZLE_COLUMNS) columns(shared + KEPT + column_at<BLOCK_N>(c), ROLE == VALUES ? p.k : p.v, c);
    for (int part = 0; ROLE == KEYS && part < Of::PARTS; ++part) columns(shared + Of::k_columns(part), p.k, 64 * (Of::FIRST_PART + part));
  }

  // The next stage of the ring: once it is free, q or do of a query tile goes there; with it so many bytes more are announced.
  __device__ __forceinline__ void await_stage() const { ptx::mbarrier_wait(shared + RING_EMPTY + BARRIER_BYTES * stage, parity), __syncwarp(); }
  template <bool OF_Q> __device__ __forceinline__ void fill(int head, int tile, int more) const {
    constexpr int STORED = OF_Q ? QK_STORED : V_STORED;
    const u32 full = shared + RING_FULL + BARRIER_BYTES * stage, to = shared + Of::TILES + stage * RING_BYTES;
    ptx::mbarrier_expect(full, BLOCK_M * STORED * ELEMENT_BYTES + more);
    for (int c = 0; c < STORED; c += SWIZZLE_COLUMNS)
      ptx::tma_load(to + column_at<BLOCK_M>(c), OF_Q ? p.q : p.dout_map, full, c, tile * BLOCK_M, head, work.batch);
  }
  __device__ __forceinline__ void pass() {
    if (++stage == Of::RING_STAGES) stage = 0, parity ^= 1;
  }

  // What the scores of a step are made of, and what is known of its rows; `row`: the first one among those of all heads, each in whole tiles.
  __device__ __forceinline__ void scored(int head, int tile, bool masked, long long row) {
    await_stage();
    if (acts) {
      const int at = step % STEPS;
      ptx::store_shared(shared + STEP + STEP_BYTES * at, tile << 1 | masked);
      fill<ROLE == VALUES>(head, tile, ROWS_BYTES);
      ptx::bulk_load(shared + ROWS + ROWS_BYTES * at, (ROLE == VALUES ? p.row_lse : p.row_delta) + row, ROWS_BYTES, shared + RING_FULL + BARRIER_BYTES * stage);
    }
    pass();
  }
  // The other one, for its gradient.
  __device__ __forceinline__ void multiplied(int head, int tile) {
    await_stage();
    if (acts) fill<ROLE == KEYS>(head, tile, 0);
    pass();
  }

  // Scores are a step ahead of gradients.
  __device__ __forceinline__ void run() {
    if (acts) keys();
    int head_before = 0, tile_before = 0;
    #pragma unroll 1
    for (int head = work.kv_head * p.group; head < (work.kv_head + 1) * p.group; ++head) {
      const QueryTiles tiles(p, work.batch, head, work.kv_head, work.block * BLOCK_N);
      const int before = work.query_tiles_before(p, head);
      #pragma unroll 1
      for (int tile = tiles.from(0); tile >= 0; tile = tiles.from(tile + 1)) {
        scored(head, tile, masked(tiles, tile), (long long)(before + tile) * BLOCK_M);
        if (step++) multiplied(head_before, tile_before);
        head_before = head, tile_before = tile;
      }
    }
    if (step) multiplied(head_before, tile_before);
  }
};

template <Role ROLE, bool ADDS> struct Gradients {   // one warpgroup: 64 keys against all queries that see them; ADDS: it has a part of dq
  using Of = Part<ROLE>;
  const Params& p;
  const u32 shared, other;               // the memory of this block, and that of the other one in the window of the cluster
  const int warpgroup, warp = threadIdx.x / 32 & 3, lane = threadIdx.x & 31;
  const bool leader = (threadIdx.x & 127) == 0;
  const u32 kept_rows = low_word(k_major(shared + KEPT + warpgroup * WARPGROUP_KEYS * ROW_BYTES)), ds_rows = low_word(k_major(shared + DS));
  const u32 ring_rows = low_word(k_major(shared + Of::TILES)), ring_columns = low_word(n_major(shared + Of::TILES, BLOCK_M * ROW_BYTES));
  const u32 k_columns = low_word(n_major(shared + Of::k_columns(warpgroup), BLOCK_N * ROW_BYTES));   // 64, of its part of dq
  int step = 0, last = -1, before = -1;  // steps whose scores are done; the query tile of the last one, and that of the one before it
  int stage = 0, parity = 0;             // the next stage of the ring

  __device__ __forceinline__ void await() const { ptx::mbarrier_wait(shared + RING_FULL + BARRIER_BYTES * stage, parity); }
  __device__ __forceinline__ void pass() {
    if (++stage == Of::RING_STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void leave(int stage) const { if (lane == 0) ptx::mbarrier_arrive(shared + RING_EMPTY + BARRIER_BYTES * stage); }
  // Of the step that comes: ds of two before is there; the other block needs no more of what lies in its place of this buffer.
  __device__ __forceinline__ void await_ds() const { ptx::mbarrier_wait(shared + DS_FULL + BARRIER_BYTES * (step & 1), step / 2 & 1 ^ 1); }
  __device__ __forceinline__ void await_other(int buffer) const {
    ptx::mbarrier_wait(shared + DS_EMPTY + BARRIER_BYTES * buffer, (step + 1) / 2 & 1 ^ 1);
  }
  // What the loading warp tells of it: its query tile, and whether the mask is tested.
  __device__ __forceinline__ int this_step() const { return __shfl_sync(~0u, ptx::load_shared(shared + STEP + STEP_BYTES * (step % STEPS)), 0); }
  // lse or delta of a thread's queries; its weights on their way.
  __device__ __forceinline__ u32 rows_at() const { return shared + ROWS + step % STEPS * ROWS_BYTES + lane % 4 * 16; }
  __device__ __forceinline__ u32 weights_at(int buffer) const {
    const int thread = ptx::held(threadIdx.x) & 127;   // else the address is kept over the loop, in a register that there is not
    return DS + buffer * DS_BYTES + warpgroup * WEIGHT_BYTES + thread * 16;
  }

  // s^T = k q^T, or dp^T = v do^T, goes to the tensor cores.
  __device__ __forceinline__ void start_scores(float (&s)[BLOCK_M / 2]) const {
    await();
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < Of::SCORED / K_STEP; ++k)
      ptx::product_qk(s, kept_rows + units(column_at<BLOCK_N>(K_STEP * k)), ring_rows + units(stage * RING_BYTES + column_at<BLOCK_M>(K_STEP * k)), k > 0);
    ptx::wgmma_commit();
  }
  // dv += p^T do, or dk += ds^T q, likewise.
  __device__ __forceinline__ void start_gradient(float (&sum)[Of::COLUMNS / 2], const u32 (&weights)[BLOCK_M / 4]) const {
    await();
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_M / K_STEP; ++k) {
      const u32 b = ring_columns + units(stage * RING_BYTES + K_STEP * k * ROW_BYTES);
      if constexpr (ROLE == VALUES) ptx::product_dv(sum, weights + 4 * k, b, 1);
      else ptx::product_dk(sum, weights + 4 * k, b, 1);
    }
    ptx::wgmma_commit();
  }

  // Of scores: p, the operand of dv. It goes to the thread of the other block that has the same elements of dp, and ds of both comes back.
  __device__ __forceinline__ void send_weights(float (&s)[BLOCK_M / 2], u32 (&weights)[BLOCK_M / 4], const Variant& variant, int q_idx, int kv_idx,
                                               bool masked, const RowValues& lse) const {
    const int buffer = step & 1;
    if (masked) weigh<true>(s, weights, variant, q_idx, kv_idx, lse);
    else weigh<false>(s, weights, variant, q_idx, kv_idx, lse);
    if (leader && warpgroup == 0) ptx::mbarrier_expect(shared + DS_FULL + BARRIER_BYTES * buffer, DS_BYTES);
    await_other(buffer);
    const u32 to = other + weights_at(buffer), there = other + WEIGHTS_FULL + BARRIER_BYTES * (WARPGROUPS * buffer + warpgroup);
    #pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k) {
      const auto word = [&](int i) { return weights[i]; };
      ptx::send_x4(to + 128 * 16 * k, word(4 * k), word(4 * k + 1), word(4 * k + 2), word(4 * k + 3), there);
    }
  }
  // Of dp and the weights that have come: ds, the operand of dk. It takes their place in shared memory, and goes to the other block.
  __device__ __forceinline__ void send_ds(const float (&dp)[BLOCK_M / 2], u32 (&ds)[BLOCK_M / 4], const RowValues& delta) const {
    const int buffer = step & 1;
    const u32 here = shared + WEIGHTS_FULL + BARRIER_BYTES * (WARPGROUPS * buffer + warpgroup), sent = DS + buffer * DS_BYTES + warpgroup * WEIGHT_BYTES;
    if (leader) ptx::mbarrier_expect(here, WEIGHT_BYTES);
    ptx::mbarrier_wait(here, step / 2 & 1);
    u32 weights[BLOCK_M / 4];
    #pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k) {
      u32 four[4];
      ptx::load_shared_x4(four, shared + weights_at(buffer) + 128 * 16 * k);
      #pragma unroll
      for (int i = 0; i < 4; ++i) weights[4 * k + i] = four[i];
    }
    score_gradients(dp, weights, ds, delta);
    ptx::bar_sync(MEETING + warpgroup, 128);   // all have read their weights
    const u32 at = shared + DS + buffer * DS_BYTES + column_at<BLOCK_M>(64 * warpgroup) + (lane % 8 + lane / 16 * 8) * ROW_BYTES
                   + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    #pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k) ptx::stmatrix_x4_trans(at + 16 * k * ROW_BYTES, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
    ptx::async_proxy_fence();
    ptx::bar_sync(MEETING + warpgroup, 128);
    if (leader) {
      ptx::mbarrier_arrive(shared + DS_FULL + BARRIER_BYTES * buffer);
      await_other(buffer);
      ptx::send_bulk(other + sent, shared + sent, WEIGHT_BYTES, other + DS_FULL + BARRIER_BYTES * buffer);
    }
    __syncwarp();
  }

  // dq^T goes to the tensor cores, of a step whose ds all warpgroups have given.
  __device__ __forceinline__ void start_queries(float (&dq)[BLOCK_M / 2], int buffer) const {
    if constexpr (!ADDS) return;
    ptx::wgmma_fence();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k)
      ptx::product_dq(dq, k_columns + units(K_STEP * k * ROW_BYTES), ds_rows + units(buffer * DS_BYTES + column_at<BLOCK_M>(K_STEP * k)), k > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void add_queries(const float (&dq)[BLOCK_M / 2], int tile) const {
    const int columns = 4 * (Of::FIRST_PART + warpgroup) + warp;   // of 16
    float* const to = p.dq_sum + (long long)tile * DQ_FLOATS + columns * (BLOCK_M * 16) + ptx::held(lane) * 4;
    if (ADDS && 16 * columns < QK_COLUMNS)   // they exist
      #pragma unroll
      for (int i = 0; i < BLOCK_M / 2; i += 4) ptx::add_floats(to + 32 * i, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
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

  __device__ __forceinline__ void write(const float (&sum)[Of::COLUMNS / 2], const Work& work) const {
    const u32 place = shared + KEPT + warpgroup * WARPGROUP_KEYS * ROW_BYTES;
    ptx::bar_sync(ALL_MEETING, 128 * WARPGROUPS);   // the products with it are done in both
    put<Of::COLUMNS>(sum, ROLE == VALUES ? 1.0f : p.softmax_scale, place);
    ptx::async_proxy_fence();
    ptx::bar_sync(MEETING + warpgroup, 128);
    if (leader) {
      const int row = work.block * BLOCK_N + warpgroup * WARPGROUP_KEYS;
      for (int c = 0; c < Of::COLUMNS; c += SWIZZLE_COLUMNS)
        ptx::tma_store_as(ptx::passing(), ROLE == VALUES ? p.dv : p.dk, place + column_at<BLOCK_N>(c), c, row, work.kv_head, work.batch);
      ptx::tma_store_commit();
      ptx::tma_store_wait();
    }
  }

  // The scores of a step become the operand of its gradient; `first`: the number of the first query tile of its head among those of all heads.
  __device__ __forceinline__ void weigh_scores(float (&s)[BLOCK_M / 2], u32 (&operand)[BLOCK_M / 4], const Variant& variant, int kv_idx, int first,
                                               int told, const RowValues& rows) {
    if constexpr (ROLE == VALUES) send_weights(s, operand, variant, (told >> 1) * BLOCK_M + first_query(), kv_idx, told & 1, rows);
    else send_ds(s, operand, rows);
    before = last, last = first + (told >> 1);
    ++step;
  }

  // The first step: its scores alone.
  __device__ __forceinline__ void begin(u32 (&operand)[BLOCK_M / 4], const Variant& variant, int kv_idx, int first) {
    float s[BLOCK_M / 2];
    start_scores(s);
    const int told = this_step();
    const RowValues rows(rows_at());
    ptx::wgmma_wait<0>();
    leave(stage);
    pass();
    weigh_scores(s, operand, variant, kv_idx, first, told, rows);
  }

  // One more. What crosses the cluster has a step to arrive: at once run dq of two steps before, the scores of this one, the gradient of the one before.
  __device__ __forceinline__ void advance(float (&sum)[Of::COLUMNS / 2], u32 (&operand)[BLOCK_M / 4], const Variant& variant, int kv_idx, int first) {
    const int buffer = step & 1, scored = stage;
    float s[BLOCK_M / 2], dq[BLOCK_M / 2];
    u32 next[BLOCK_M / 4];
    await_ds();
    start_queries(dq, buffer);           // of the second step zeros
    start_scores(s);
    const int told = this_step();        // here, as after the additions it would wait behind them
    const RowValues rows(rows_at());
    pass();
    start_gradient(sum, operand);
    ptx::wgmma_wait<2>();
    if (leader) ptx::mbarrier_arrive_there(other + DS_EMPTY + BARRIER_BYTES * buffer);
    if (before >= 0) add_queries(dq, before);
    ptx::wgmma_wait<1>();
    leave(scored);
    weigh_scores(s, next, variant, kv_idx, first, told, rows);
    ptx::wgmma_wait<0>();
    ptx::read_until_here(operand);
    leave(stage);
    pass();
    #pragma unroll
    for (int i = 0; i < BLOCK_M / 4; ++i) operand[i] = next[i];
  }

  // The gradient of the last step, dq of the last two.
  __device__ __forceinline__ void finish(float (&sum)[Of::COLUMNS / 2], const u32 (&operand)[BLOCK_M / 4]) {
    float dq[BLOCK_M / 2];
    await_ds();
    start_queries(dq, step & 1);
    start_gradient(sum, operand);
    ptx::wgmma_wait<1>();
    if (before >= 0) add_queries(dq, before);
    ptx::wgmma_wait<0>();
    ++step;
    await_ds();
    start_queries(dq, step & 1);
    ptx::wgmma_wait<0>();
    add_queries(dq, last);
  }

  __device__ __forceinline__ void run() {
    const Work work(blockIdx.x / 2, p);
    const int kv_idx = work.block * BLOCK_N + warpgroup * WARPGROUP_KEYS + warp * 16 + lane / 4;
    float sum[Of::COLUMNS / 2] = {};
    u32 operand[BLOCK_M / 4];
    ptx::mbarrier_wait(shared + KEPT_FULL, 0);
    for (int head = work.kv_head * p.group; head < (work.kv_head + 1) * p.group; ++head) {
      const Variant variant(p, work.batch, head, work.kv_head);
      const int tiles = count(QueryTiles(p, work.batch, head, work.kv_head, work.block * BLOCK_N)), first = work.query_tiles_before(p, head);
      #pragma unroll 1
      for (int i = 0; i < tiles; ++i)
        if (step == 0) begin(operand, variant, kv_idx, first);
        else advance(sum, operand, variant, kv_idx, first);
    }
    if (step) finish(sum, operand);
    write(sum, work);
  }
};
template <Role ROLE> __device__ __forceinline__ void compute(const Params& p, u32 shared, u32 other, int warpgroup) {
  if (warpgroup < Part<ROLE>::PARTS) Gradients<ROLE, true>{p, shared, other, warpgroup}.run();
  else if constexpr (Part<ROLE>::PARTS < WARPGROUPS) Gradients<ROLE, false>{p, shared, other, warpgroup}.run();
}

// --------------------------------------------------------------------------------------------------------------- kernel

// Barriers side by side, each of which so many arrivals complete.
__device__ __forceinline__ void init(u32 barriers, int count, int arrivals) {
  for (int i = 0; i < count; ++i) ptx::mbarrier_init(barriers + BARRIER_BYTES * i, arrivals);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1) backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);   // uniform over a warp, so descriptors stay in uniform registers
  ptx::next_kernel_start();              // as soon as multiprocessors are free; it waits before it touches memory, as this one does
  if (threadIdx.x == 0) {
    init(shared + KEPT_FULL, 1, 1);
    init(shared + RING_FULL, STAGES, 1);
    init(shared + RING_EMPTY, STAGES, 4 * WARPGROUPS);   // warps, which read lse and delta themselves
    init(shared + DS_FULL, 2, blockIdx.x % 2 == VALUES ? 1 : WARPGROUPS);
    init(shared + DS_EMPTY, 2, WARPGROUPS);
    init(shared + WEIGHTS_FULL, 2 * WARPGROUPS, 1);
    ptx::mbarrier_init_fence();
  }
  // The second step multiplies the ds of a step before the first one, which is none: zeros.
  for (u32 at = threadIdx.x * 16; at < DS_BYTES; at += THREADS * 16) ptx::store_shared_x4(shared + DS + DS_BYTES + at, 0, 0, 0, 0);
  ptx::async_proxy_fence();
  ptx::cluster_arrive();
  ptx::cluster_wait();                   // the barriers of the other block are there
  if (warpgroup < LOAD_WARPGROUPS) {
    ptx::fewer_registers<LOAD_REGISTERS>();
    if (threadIdx.x / 32 == 0 && blockIdx.x % 2 == VALUES) Copies<VALUES>{p, shared}.run();
    if (threadIdx.x / 32 == 0 && blockIdx.x % 2 == KEYS) Copies<KEYS>{p, shared}.run();
  } else {
    ptx::more_registers<COMPUTE_REGISTERS>();
    const u32 other = ptx::address_in(shared, blockIdx.x % 2 ^ 1);
    if (blockIdx.x % 2 == VALUES) compute<VALUES>(p, shared, other, warpgroup - LOAD_WARPGROUPS);
    else compute<KEYS>(p, shared, other, warpgroup - LOAD_WARPGROUPS);
  }
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();                   // nothing is on its way into the memory of either block
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
