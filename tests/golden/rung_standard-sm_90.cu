// flashgen 0.1.0 | spec standard | arch sm_90 | plan a3cb2c52 | generated, do not edit
//
//   o = softmax(score(softmax_scale * q k^T) where mask) v
//
//   arrays    q, o [B, Sq, Hq, 64] float16    k, v [B, Sk, Hq / group, 64]
//   score     s
//   mask      True
//   tile      128 queries x 64 keys    4 warps compute 32 query rows each and share the loads
//   keys      of a query tile: all tiles, the mask tested in each
//   order     head by head, a block a query tile
//   softmax   scores in memory, log2 units; nothing rescaled, exponentials divided before their product with v; no key: o = 0, lse = -inf
//   shared    Q 16384 | K 2 x 8192 | P 2 x 16384 | V 2 x 8192 | O 16384 | 2 stages    49152 of 232448 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Strides { long long batch, head, row, column; };   // in elements

struct Params {
  const u16* q;
  const u16* k;
  const u16* v;
  u16* o;
  float* s;                              // [B, Hq, rows of whole tiles, columns of whole tiles]
  u16* p;                                // like s
  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
  Strides o_strides;
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
constexpr int BLOCK_N = 64;              // keys of a tile
constexpr int QK_COLUMNS = 64, V_COLUMNS = 64;   // head dims in products of 16 columns, zero beyond 64 and 64
constexpr int QK_STORED = 64, V_STORED = 64;   // columns of a tile in shared memory
constexpr int STAGES = 2;                // key and value tiles in flight
constexpr float LN_2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)

constexpr int QK_DIM = 64, V_DIM = 64;   // columns of the arrays, of v and o those that a block has
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int ROW_TILES = BLOCK_M / (16 * WARPS);   // of 16 query rows, a warp's

constexpr int COPY_BYTES = 16;           // that one copy moves: what every row is aligned to
constexpr int K_BYTES = BLOCK_N * QK_STORED * 2, V_BYTES = BLOCK_N * V_STORED * 2;

// Shared memory, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 16384
constexpr u32 K = 16384;                 // 2 x 8192
constexpr u32 P = 0;                     // 2 x 16384
constexpr u32 V = 32768;                 // 2 x 8192
constexpr u32 O = 0;                     // 1 x 16384

constexpr int P_BYTES = BLOCK_M * BLOCK_N * 2;
constexpr int SLICE = 8;                 // rows of a block of probabilities, shared out among its warps
constexpr int RUN = 256;                 // keys of a block of scores, whole tiles, for which it loads q once

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
__device__ __forceinline__ void store_floats(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float log2(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float reciprocal(float x) { float y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ u32 f16x2(float low, float high) { u32 x; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }
__device__ __forceinline__ void mma_f16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void store_shared(u32 at, u32 x) { asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }
__device__ __forceinline__ void load_shared_x4(u32 (&r)[4], u32 at) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

}  // namespace ptx

// ---------------------------------------------------------------------------------------------------------------- tiles

constexpr int CHUNK = 8, CHUNK_BYTES = 16;   // columns of a row that are moved at once
template <int COLUMNS> constexpr int ROW_BYTES = COLUMNS * 2;

// A row's chunks change places within groups of up to eight, so that one chunk of 8 rows covers all banks.
template <int COLUMNS> constexpr int GROUP = COLUMNS % 64 == 0 ? 8 : COLUMNS % 32 == 0 ? 4 : 2;
template <int COLUMNS> __device__ __forceinline__ u32 place(u32 row, u32 chunk) {
  return row * ROW_BYTES<COLUMNS> + (chunk ^ row / (8 / GROUP<COLUMNS>) % GROUP<COLUMNS>) * CHUNK_BYTES;
}

// From where chunk 0 or 1 of a row lies: 16 columns number k, and `rows` further down, a multiple of 8.
template <int COLUMNS> __device__ __forceinline__ u32 advance(u32 at, int rows, int k) {
  constexpr int WIDTH = GROUP<COLUMNS>;
  return (at ^ 2 * k % WIDTH * CHUNK_BYTES) + 2 * k / WIDTH * WIDTH * CHUNK_BYTES + rows * ROW_BYTES<COLUMNS>;
}

// A chunk of a row, whose columns are so far from each other, to shared memory, or zeros.
__device__ __forceinline__ void copy(u32 to, const u16* from, long long column, bool exists) {
  #pragma unroll
  for (int i = 0; i < CHUNK_BYTES; i += COPY_BYTES) ptx::copy_async_16(to + i, from + i / 2 * column, exists);
}

// Copies the tile of ROWS rows that begins with row `first` of an array of DIM columns, zeros around it and for rows that do not exist.
template <int ROWS, int COLUMNS, int DIM, class Exists>
__device__ __forceinline__ void load_tile(u32 to, const u16* from, const Strides& strides, int first, Exists exists) {
  constexpr int WIDTH = GROUP<COLUMNS>, PASS = THREADS / WIDTH;   // neighbouring threads take neighbouring chunks
  const int row = threadIdx.x / WIDTH, chunk = threadIdx.x % WIDTH;
  const long long column = COPY_BYTES == 2 ? strides.column : 1;
  from += (first + row) * strides.row + chunk * CHUNK * column;
  #pragma unroll
  for (int i = 0; i < ROWS; i += PASS, from += PASS * strides.row)
    if (ROWS % PASS == 0 || row + i < ROWS)
      #pragma unroll
      for (int c = 0; c < COLUMNS / CHUNK; c += WIDTH)
        copy(to + place<COLUMNS>(row + i, chunk) + c * CHUNK_BYTES, from + c * CHUNK * column, column,
             exists(first + row + i) && (COLUMNS == DIM || (c + chunk) * CHUNK < DIM));
}

// ------------------------------------------------------------------------------------------------- holes, from the spec

struct Variant {                         // what score and mask need, folded once a query tile
  const Params& p;
  float factor;                          // log2 units of one unit of the score
  __device__ __forceinline__ Variant(const Params& p, int batch, int head, int kv_head) : p(p) {
    factor = p.softmax_scale * 1.442695f;
  }
  __device__ __forceinline__ float to_log2() const { return factor; }   // log2 units of one unit of the score below

  struct Row {                           // of one query row and one key tile
    int end;                             // of the keys seen, from kv_begin
  };
  __device__ __forceinline__ Row row(int q_idx, int kv_begin) const {
    Row row;
    row.end = p.kv_len - kv_begin;
    return row;
  }

  // True
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

constexpr float LARGE = 65536.0f;        // log2 units; from there on differences of scores are taken before they are multiplied
// Of one row, s less a number that comes near its largest.
__device__ __forceinline__ void subtract(float (&s)[BLOCK_N / 2], int r, float near) {
  #pragma unroll
  for (int i = 2 * r; i < BLOCK_N / 2; i += 4) s[i] -= near, s[i + 1] -= near;
}

// Raw products become scores in place, -inf where the mask hides the key.
template <bool MASKED> __device__ __forceinline__ void score(float (&s)[BLOCK_N / 2], const Variant& variant, int q_idx, int kv_begin) {
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Variant::Row row = variant.row(q_idx + 8 * r, kv_begin + first_column());
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4)
      #pragma unroll
      for (int j = i; j < i + 2; ++j) {
        if (MASKED && !variant.keep(row, column(j))) s[j] = -INF;
      }
  }
}

// The maximum takes in these scores, and l comes to it. Returns in `rescale` the factors that did.
__device__ __forceinline__ void raise(const float (&s)[BLOCK_N / 2], Rows& rows, float (&rescale)[2], const Variant& variant) {
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float before = rows.max[r];
    float top = before;
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    rows.max[r] = row_max(top);
    rescale[r] = ptx::exp2((before - base_of(rows.max[r])) * variant.to_log2());   // exactly 1 where the maximum stays
    rows.sum[r] *= rescale[r];
  }
}

// Scores become exponentials in place.
__device__ __forceinline__ void exponentials(float (&s)[BLOCK_N / 2], const Rows& rows, const Variant& variant) {
  float reference[2];
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    reference[r] = base_of(rows.max[r]) * variant.to_log2();
    if (fabsf(reference[r]) >= LARGE) {
      subtract(s, r, base_of(rows.max[r]));
      reference[r] = 0.0f;
    }
  }
  #pragma unroll
  for (int i = 0; i < BLOCK_N / 2; ++i) s[i] = ptx::exp2(fmaf(s[i], variant.to_log2(), -reference[i / 2 % 2]));
}

// l += the exponentials.
__device__ __forceinline__ void add(const float (&s)[BLOCK_N / 2], Rows& rows) {
  #pragma unroll
  for (int i = 0; i < BLOCK_N / 2; ++i) rows.sum[i / 2 % 2] += s[i];
}

// o times the factors of its rows.
template <int N> __device__ __forceinline__ void rescale_rows(float (&o)[N], const float (&factor)[2]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) o[i] *= factor[i / 2 % 2];
}

// The end of a row: 1 / l, the log-sum-exp and the maximum, natural log. No key: o = 0, lse = -inf, max = -inf.
struct End { float inverse, lse, max; };
__device__ __forceinline__ End finalize(const Rows& rows, int r, const Variant& variant) {
  const float natural = variant.to_log2() * LN_2, largest = rows.max[r] * natural;
  const float sum = row_sum(rows.sum[r]);
  if (sum == 0.0f) return {0.0f, -INF, -INF};
  return {ptx::reciprocal(sum), fmaf(ptx::log2(sum), LN_2, largest), largest};
}

// ----------------------------------------------------------------------------------------------------------------- work

struct Work {                            // the t-th query tile
  int block, batch, head, kv_head;
  static constexpr int v_split = 0;      // a block has all columns of v and o

  __device__ __forceinline__ Work(int t, const Params& p) {
    const int blocks = Sequence{p, 0}.query_tiles();   // of every sequence
    block = t % blocks;
    head = t / blocks % p.heads;
    batch = t / blocks / p.heads;
    kv_head = head / p.group;
  }
};

__device__ __forceinline__ int runs(const Sequence& sequence) { return (sequence.kv_len() + RUN - 1) / RUN; }   // of key tiles

// Where a query row begins in s and p: their rows are whole tiles. In s a thread's four of each 16 columns lie side by side.
__device__ __forceinline__ int row_width(const Sequence& sequence) { return sequence.key_tiles() * BLOCK_N; }
__device__ __forceinline__ long long row_of(const Work& work, int q_idx, const Sequence& sequence) {
  const int rows = sequence.query_tiles() * BLOCK_M;
  return ((long long)(work.batch * sequence.p.heads + work.head) * rows + q_idx) * row_width(sequence);
}

// ----------------------------------------------------------------------------------------------------- s = score(q k^T)

struct Scores {                          // one block: a run of key tiles of s; Q and K are its shared memory
  const Params& p;
  const u32 shared;
  const Work work;
  const Sequence sequence = {p, work.batch};
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * ROW_TILES;   // of the tile, the warp's first
  const int q_idx = work.block * BLOCK_M + warp_row + lane / 4;
  const Variant variant = Variant(p, work.batch, work.head, work.kv_head);
  const u16* const keys = sequence.rows(p.k, p.k_strides, work.kv_head);
  // Its key tiles.
  const int begin = blockIdx.x % runs(sequence) * (RUN / BLOCK_N), end = min(begin + RUN / BLOCK_N, sequence.key_tiles());
  int stage = 0;

  __device__ __forceinline__ Scores(const Params& p, u32 shared) : p(p), shared(shared), work(blockIdx.x / runs({p, 0}), p) {}

  __device__ __forceinline__ void load_query_tile() const {
    load_tile<BLOCK_M, QK_COLUMNS, QK_DIM>(shared + Q, sequence.rows(p.q, p.q_strides, work.head), p.q_strides, work.block * BLOCK_M,
                                           [&](int q_idx) { return q_idx < sequence.q_len(); });
  }

  template <bool WHOLE> __device__ __forceinline__ void load_keys(int tile, int to) const {
    load_tile<BLOCK_N, QK_COLUMNS, QK_DIM>(shared + K + to * K_BYTES, keys, p.k_strides, tile * BLOCK_N,
                                           [&](int kv_idx) { return WHOLE || kv_idx < sequence.kv_len(); });
  }

  // s = q k^T
  __device__ __forceinline__ void scores(float (&s)[ROW_TILES][BLOCK_N / 2]) {
    const u32 key = shared + K + stage * K_BYTES + place<QK_COLUMNS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);   // an operand's halves in neighbouring registers
    const u32 query = shared + Q + place<QK_COLUMNS>(warp_row + lane % 16, lane / 16);
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[m][i] = 0.0f;
    #pragma unroll
    for (int k = 0; k < QK_COLUMNS / 16; ++k) {
      u32 a[ROW_TILES][4];
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) ptx::ldmatrix_x4(a[m], advance<QK_COLUMNS>(query, 16 * m, k));
      #pragma unroll
      for (int n = 0; n < BLOCK_N / 16; ++n) {
        u32 b[4];
        ptx::ldmatrix_x4(b, advance<QK_COLUMNS>(key, 16 * n, k));
        #pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
          ptx::mma_f16(s[m] + 8 * n, a[m], b[0], b[1]);
          ptx::mma_f16(s[m] + 8 * n + 4, a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void load(int tile, int to) const {
    if (tile < end) load_keys<false>(tile, to);
    ptx::copy_commit();
  }

  // Products become scores, and go to s.
  __device__ __forceinline__ void write(float (&s)[ROW_TILES][BLOCK_N / 2], int tile) const {
    float* const to = p.s + row_of(work, q_idx, sequence) + tile * BLOCK_N + lane % 4 * 4;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
      score<true>(s[m], variant, q_idx + 16 * m, tile * BLOCK_N);
      #pragma unroll
      for (int r = 0; r < 2; ++r)
        #pragma unroll
        for (int i = 2 * r; i < BLOCK_N / 2; i += 8)
          ptx::store_floats(to + (16 * m + 8 * r) * row_width(sequence) + i / 8 * 16, s[m][i], s[m][i + 1], s[m][i + 4], s[m][i + 5]);
    }
  }

  __device__ __forceinline__ void run() {
    load_query_tile();                                // in one group with the first keys
    #pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) load(begin + ahead, ahead);
    for (int tile = begin; tile < end; ++tile) {
      ptx::copy_wait<STAGES - 2>();
      __syncthreads();                                // the tile is here for every thread, and nobody reads the one before it any more
      load(tile + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
      float s[ROW_TILES][BLOCK_N / 2];
      scores(s);
      write(s, tile);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
  }

};

extern "C" __global__ void __launch_bounds__(THREADS, 2) scores(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Scores(p, (u32)__cvta_generic_to_shared(memory)).run();
}

// ------------------------------------------------------------------------------------------------------- p = softmax(s)

// A warp: a row of s becomes a row of p; maximum and sum in a first pass over it.
__device__ __forceinline__ void normalize_row(const Params& p, const Work& work, int q_idx) {
  const Sequence sequence{p, work.batch};
  const int lane = threadIdx.x & 31, width = row_width(sequence);
  const Variant variant(p, work.batch, work.head, work.kv_head);
  const float* const s = p.s + row_of(work, q_idx, sequence);
  u16* const to = p.p + row_of(work, q_idx, sequence);
  float x[16];                           // of a lane, as they lie in s
  Rows rows;
  float& top = rows.max[0];
  float& sum = rows.sum[0];
  const auto exponential = [&](float x) { return ptx::exp2((x - base_of(top)) * variant.to_log2()); };
  for (int i = lane * 16; i < width; i += 32 * 16) {
    #pragma unroll
    for (int j = 0; j < 16; j += 4) ptx::load_global_x4(x + j, s + i + j);
    const float before = top;
    #pragma unroll
    for (int j = 0; j < 16; ++j) top = fmaxf(top, x[j]);
    sum *= exponential(before);
    #pragma unroll
    for (int j = 0; j < 16; ++j) x[j] = exponential(x[j]);
    #pragma unroll
    for (int j = 0; j < 16; ++j) sum += x[j];
  }
  const float before = top;
  #pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
  sum *= exponential(before);
  #pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);   // finalize adds four lanes up
  const End end = finalize(rows, 0, variant);
  for (int i = lane * 16; i < width; i += 32 * 16) {
    #pragma unroll
    for (int j = 0; j < 16; j += 4) ptx::load_global_x4(x + j, s + i + j);
    #pragma unroll
    for (int j = 0; j < 16; ++j) x[j] = exponential(x[j]) * end.inverse;
    u32 pairs[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) pairs[j] = ptx::f16x2(x[j % 4 * 4 + j / 4 * 2], x[j % 4 * 4 + j / 4 * 2 + 1]);   // columns 2 j and 2 j + 1
    ptx::store_global_x4(to + i, pairs[0], pairs[1], pairs[2], pairs[3]);
    ptx::store_global_x4(to + i + 8, pairs[4], pairs[5], pairs[6], pairs[7]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) probabilities(const __grid_constant__ Params p) {
  const Sequence any{p, 0};              // all are as long
  const int slices = (any.q_len() + SLICE - 1) / SLICE, first = blockIdx.x % slices * SLICE + threadIdx.x / 32;
  const Work work(blockIdx.x / slices * any.query_tiles(), p);
  for (int q_idx = first; q_idx < min(first + SLICE, any.q_len()); q_idx += WARPS) normalize_row(p, work, q_idx);
}

// -------------------------------------------------------------------------------------------------------------- o = p v

struct Output {                          // one block: a tile of o; P and V are its shared memory, in the end O
  const Params& p;
  const u32 shared;
  const Work work;
  const Sequence sequence = {p, work.batch};
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * ROW_TILES;   // of the tile, the warp's first
  const int q_idx = work.block * BLOCK_M + warp_row + lane / 4;
  const u16* const values = sequence.rows(p.v, p.v_strides, work.kv_head) + work.v_split * V_DIM * p.v_strides.column;
  float o[ROW_TILES][V_COLUMNS / 2] = {};
  int stage = 0;

  __device__ __forceinline__ Output(const Params& p, u32 shared) : p(p), shared(shared), work(blockIdx.x, p) {}

  template <bool WHOLE> __device__ __forceinline__ void load_values(int tile, int to) const {
    load_tile<BLOCK_N, V_COLUMNS, V_DIM>(shared + V + to * V_BYTES, values, p.v_strides, tile * BLOCK_N,
                                         [&](int kv_idx) { return (WHOLE || kv_idx < sequence.kv_len()); });
  }

  // o += p v over 16 keys: number k of the tile whose values lie at `value`.
  __device__ __forceinline__ void add_values(const u32 (&probabilities)[ROW_TILES][4], u32 value, int k) {
    #pragma unroll
    for (int n = 0; n < V_COLUMNS / 16; ++n) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(b, advance<V_COLUMNS>(value, 16 * k, n));
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        ptx::mma_f16(o[m] + 8 * n, probabilities[m], b[0], b[1]);
        ptx::mma_f16(o[m] + 8 * n + 4, probabilities[m], b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ u32 values_of_lane() const { return shared + V + stage * V_BYTES + place<V_COLUMNS>(lane % 16, lane / 16); }

  // o as it is in the registers.
  __device__ __forceinline__ void store() {
    u16* const to = sequence.rows(p.o, p.o_strides, work.head) + work.v_split * V_DIM * p.o_strides.column;
    struct __align__(COPY_BYTES) Piece { u32 words[COPY_BYTES / 4]; };
    __syncthreads();                                  // nobody reads what lies there any more: o takes its place, each warp its own rows
    const u32 staged = shared + O + place<V_COLUMNS>(warp_row + lane / 4, 0) + lane % 4 * 4;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < V_COLUMNS / 2; i += 2)
        ptx::store_shared(advance<V_COLUMNS>(staged, 16 * m + i / 2 % 2 * 8, i / 8) ^ i / 4 % 2 * CHUNK_BYTES,
                          ptx::f16x2(o[m][i], o[m][i + 1]));
    __syncwarp();
    constexpr int WIDTH = GROUP<V_COLUMNS>, PASS = 32 / WIDTH;
    const int chunk = lane % WIDTH;
    #pragma unroll
    for (int row = warp_row + lane / WIDTH; row < warp_row + 16 * ROW_TILES; row += PASS)
      #pragma unroll
      for (int c = 0; c < V_COLUMNS / CHUNK; c += WIDTH) {
        u32 x[4];
        ptx::load_shared_x4(x, shared + O + place<V_COLUMNS>(row, chunk) + c * CHUNK_BYTES);
        const int q_row = work.block * BLOCK_M + row;
        if (q_row < sequence.q_len() && (V_COLUMNS == V_DIM || (c + chunk) * CHUNK < V_DIM)) {
          Piece* const pieces = reinterpret_cast<Piece*>(to + q_row * p.o_strides.row + (c + chunk) * CHUNK);
          #pragma unroll
          for (int i = 0; i < CHUNK_BYTES / COPY_BYTES; ++i) {
            Piece piece;
            #pragma unroll
            for (int j = 0; j < COPY_BYTES / 4; ++j) piece.words[j] = x[i * COPY_BYTES / 4 + j];
            pieces[i] = piece;
          }
        }
      }
  }

  __device__ __forceinline__ void load(int tile, int to) const {
    if (tile < sequence.key_tiles()) {
      load_tile<BLOCK_M, BLOCK_N, BLOCK_N>(shared + P + to * P_BYTES, p.p + row_of(work, 0, sequence) + tile * BLOCK_N,
                                           Strides{0, 0, row_width(sequence), 1}, work.block * BLOCK_M,
                                           [&](int q_idx) { return q_idx < sequence.q_len(); });
      load_values<false>(tile, to);
    }
    ptx::copy_commit();
  }

  __device__ __forceinline__ void run() {
    #pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) load(ahead, ahead);
    for (int tile = 0; tile < sequence.key_tiles(); ++tile) {
      ptx::copy_wait<STAGES - 2>();
      __syncthreads();                                // the tile is here for every thread, and nobody reads the one before it any more
      load(tile + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
      const u32 row = shared + P + stage * P_BYTES + place<BLOCK_N>(warp_row + lane % 16, lane / 16);
      const u32 value = values_of_lane();
      #pragma unroll
      for (int k = 0; k < BLOCK_N / 16; ++k) {
        u32 a[ROW_TILES][4];
        #pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) ptx::ldmatrix_x4(a[m], advance<BLOCK_N>(row, 16 * m, k));
        add_values(a, value, k);
      }
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    store();
  }

};

extern "C" __global__ void __launch_bounds__(THREADS, 2) output(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Output(p, (u32)__cvta_generic_to_shared(memory)).run();
}
