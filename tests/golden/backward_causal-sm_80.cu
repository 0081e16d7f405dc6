// flashgen 0.1.0 | spec causal | arch sm_80 | plan 02979dc3 | generated, do not edit
//
//   p = exp(score(softmax_scale * q k^T) - lse) where mask
//   ds = p * (do v^T - delta) * (d score / d s) where mask
//   dv = p^T do    dk = softmax_scale * ds^T q    dq = softmax_scale * ds k
//
//   arrays    q, o [B, Sq, Hq, 128] bfloat16    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   tile      64 queries x 64 keys    4 warps compute 16 query rows each and share the loads
//   queries   of a key tile, for every query head that shares it: 3 ranges of tiles in closed form (masked, unmasked, masked)
//   order     a block a key tile, head by head
//   sums      dk, dv in registers; dq in float32 in memory, added to by the blocks of all key tiles in any order
//   shared    Q 16384 | do 16384 | K 16384 | V 16384 | p 8192 | ds 8192 | 1 stage    81920 of 166912 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Strides { long long batch, head, row, column; };   // in elements

struct Params {
  const u16* q;
  const u16* k;
  const u16* v;
  const u16* o;
  const u16* dout;                       // do: the gradient of o, of its layout
  const float* lse;                      // [B, Hq, Sq], natural log
  const float* dlse;                     // the gradient of lse, of its layout; null: 0
  u16* dq;
  u16* dk;
  u16* dv;
  float* row_lse;                        // [B, Hq, rows of whole tiles], log2; inf: a row that gives nothing
  float* row_delta;                      // like row_lse: what is subtracted from dp
  float* dq_sum;                         // of each query tile its dq before the scale
  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
  Strides o_strides;
  Strides dout_strides;
  Strides dq_strides;
  Strides dk_strides;
  Strides dv_strides;
  float softmax_scale;
  int q_len;
  int kv_len;
  int heads;
  int batch;
  int group;                             // query heads a key/value head
};

// ----------------------------------------------------------------------------------------------------------------- plan

constexpr int BLOCK_M = 64;              // queries of a tile
constexpr int BLOCK_N = 64;              // keys of a tile
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int QK_DIM = 128, V_DIM = 128;   // columns of the arrays
constexpr int STAGES = 1;                // query tiles in shared memory, each with its do
constexpr int COPY_BYTES = 16;           // that one copy moves: what every row is aligned to
constexpr float LOG2_E = 1.4426950408889634f;
using Element = u16;                     // that products multiply: bfloat16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
#define INF __int_as_float(0x7f800000)

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int ROW_TILES = BLOCK_M / (16 * WARPS);   // of 16 query rows, a warp's

constexpr int COLUMN_WARPS = 2;          // that share the same keys of dk and dv, each with its part of the columns
constexpr int KEY_TILES = BLOCK_N * COLUMN_WARPS / (16 * WARPS);   // of 16 keys, a warp's
constexpr int Q_BYTES = BLOCK_M * QK_STORED * ELEMENT_BYTES, DO_BYTES = BLOCK_M * V_STORED * ELEMENT_BYTES;

// Shared memory, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 16384
constexpr u32 DO = 16384;                // 1 x 16384
constexpr u32 K = 32768;                 // 1 x 16384
constexpr u32 V = 49152;                 // 1 x 16384
constexpr u32 P = 65536;                 // 1 x 8192
constexpr u32 DS = 73728;                // 1 x 8192

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// cp_async.cuh: copy_async_16, copy_commit, copy_wait
// global.cuh: store_floats, add_global
// ldmatrix.cuh: ldmatrix_x4, ldmatrix_x4_trans
// math.cuh: exp2, bf16x2, low_bf16, high_bf16
// mma_sync.cuh: mma_bf16
// shared.cuh: store_shared

}  // namespace ptx

// ---------------------------------------------------------------------------------------------------------------- tiles

constexpr int CHUNK_BYTES = 16, CHUNK = CHUNK_BYTES / ELEMENT_BYTES;   // of a row, and its columns, that are moved at once
template <int COLUMNS> constexpr int ROW_BYTES = COLUMNS * ELEMENT_BYTES;

// A row's chunks change places within groups of up to eight, so that one chunk of 8 rows covers all banks.
template <int COLUMNS> constexpr int GROUP = COLUMNS % 64 == 0 ? 8 : COLUMNS % 32 == 0 ? 4 : 2;
template <int COLUMNS> __device__ __forceinline__ u32 place(u32 row, u32 chunk) {
  return row * ROW_BYTES<COLUMNS> + (chunk ^ row / (8 / GROUP<COLUMNS>) % GROUP<COLUMNS>) * CHUNK_BYTES;
}

// From where chunk 0 or 1 of a row lies: the columns of product number k, and `rows` further down, a multiple of 8.
template <int COLUMNS> __device__ __forceinline__ u32 advance(u32 at, int rows, int k) {
  constexpr int WIDTH = GROUP<COLUMNS>;
  return (at ^ 2 * k % WIDTH * CHUNK_BYTES) + 2 * k / WIDTH * WIDTH * CHUNK_BYTES + rows * ROW_BYTES<COLUMNS>;
}

// A chunk of a row, whose columns are so far from each other, to shared memory, or zeros.
__device__ __forceinline__ void copy(u32 to, const Element* from, long long column, bool exists) {
  #pragma unroll
  for (int i = 0; i < CHUNK_BYTES; i += COPY_BYTES) ptx::copy_async_16(to + i, from + i / ELEMENT_BYTES * column, exists);
}

// Copies the tile of ROWS rows that begins with row `first` of an array of DIM columns, zeros around it and for rows that do not exist.
template <int ROWS, int COLUMNS, int DIM, class Exists>
__device__ __forceinline__ void load_tile(u32 to, const Element* from, const Strides& strides, int first, Exists exists) {
  constexpr int WIDTH = GROUP<COLUMNS>, PASS = THREADS / WIDTH;   // neighbouring threads take neighbouring chunks
  const int row = threadIdx.x / WIDTH, chunk = threadIdx.x % WIDTH;
  const long long column = COPY_BYTES == ELEMENT_BYTES ? strides.column : 1;
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

// Accumulator element i of a thread: row (i / 2) % 2 of its two, and this column from the thread's first on.
__device__ __forceinline__ constexpr int column(int i) { return i / 4 * 8 + (i & 1); }
__device__ __forceinline__ int first_column() { return (threadIdx.x & 3) * 2; }

// Raw products, s = q k^T and dp = do v^T, become p and ds in place. Rows that give nothing and keys that the mask hides get 0 by choice, as their
// exponentials may be anything.
template <bool MASKED>
__device__ __forceinline__ void weights(float (&s)[BLOCK_N / 2], float (&dp)[BLOCK_N / 2], const float (&lse)[2], const float (&delta)[2],
                                        const Variant& variant, int q_idx, int kv_begin) {
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Variant::Row row = variant.row(q_idx + 8 * r, kv_begin + first_column());
    #pragma unroll
    for (int i = 2 * r; i < BLOCK_N / 2; i += 4)
      #pragma unroll
      for (int j = i; j < i + 2; ++j) {
        const bool seen = !MASKED || (lse[r] != INF && variant.keep(row, column(j)));
        const float raw = s[j], score = raw;
        const float p = seen ? ptx::exp2(fmaf(score, variant.to_log2(), -lse[r])) : 0.0f;
        const float d = seen ? p * (dp[j] - delta[r]) : 0.0f;
        s[j] = p;
        dp[j] = d;
      }
  }
}

// ----------------------------------------------------------------------------------------------------------------- work

// Where the sum of a row and a column lies in those of a query tile: what a warp adds at once, one number a lane, lies side by side.
__device__ __forceinline__ constexpr int sum_at(int row, int column) {
  return ((row / 16 * (QK_STORED / 8) + column / 8) * 4 + row / 8 % 2 * 2 + column % 2) * 32 + row % 8 * 4 + column % 8 / 2;
}
__device__ __forceinline__ constexpr int row_place(int row) { return row; }   // of a row's lse and delta

struct KeyTile {                         // a key tile of a key/value head
  int tile, batch, kv_head;
  __device__ __forceinline__ KeyTile(int t, const Params& p) {
    const int tiles = Sequence{p, 0}.key_tiles(), kv_heads = p.heads / p.group;   // of every sequence
    tile = t % tiles, kv_head = t / tiles % kv_heads, batch = t / tiles / kv_heads;
  }
};

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

// ------------------------------------------------------------------------------------------------------------ gradients

// Two columns beside each other, rounded.
__device__ __forceinline__ void store_pair(Element* to, float x, float y, long long column) {
  const u32 both = ptx::bf16x2(x, y);
  *reinterpret_cast<u32*>(to) = both;
}

struct Gradients {                       // one block: a key tile against the query tiles of all query heads that share its head
  const Params& p;
  const u32 shared;
  const KeyTile work;
  const Sequence sequence = {p, work.batch};
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * ROW_TILES;   // of the tile, the warp's first
  const int warp_key = threadIdx.x / 32 / COLUMN_WARPS * 16 * KEY_TILES, part = threadIdx.x / 32 % COLUMN_WARPS;   // of dk and dv
  float dk[KEY_TILES][QK_COLUMNS / COLUMN_WARPS / 2] = {}, dv[KEY_TILES][V_COLUMNS / COLUMN_WARPS / 2] = {};
  const int end_head = (work.kv_head + 1) * p.group;
  int next_head = work.kv_head * p.group, next_tile;   // the query tile to load next, -1: none
  int stage = 0;                         // where the one to multiply next lies

  __device__ __forceinline__ Gradients(const Params& p, u32 shared) : p(p), shared(shared), work(blockIdx.x, p) {}

  // A query tile, and its do.
  __device__ __forceinline__ void load_queries(int head, int tile, int to) const {
    const auto exists = [&](int q_idx) { return q_idx < sequence.q_len(); };
    const int first = tile * BLOCK_M;
    load_tile<BLOCK_M, QK_COLUMNS, QK_DIM>(shared + Q + to * Q_BYTES, sequence.rows(p.q, p.q_strides, head), p.q_strides, first, exists);
    load_tile<BLOCK_M, V_COLUMNS, V_DIM>(shared + DO + to * DO_BYTES, sequence.rows(p.dout, p.dout_strides, head), p.dout_strides, first, exists);
  }

  __device__ __forceinline__ void load_keys_and_values() const {
    const auto exists = [&](int kv_idx) { return kv_idx < sequence.kv_len(); };
    load_tile<BLOCK_N, QK_COLUMNS, QK_DIM>(shared + K, sequence.rows(p.k, p.k_strides, work.kv_head), p.k_strides, work.tile * BLOCK_N, exists);
    load_tile<BLOCK_N, V_COLUMNS, V_DIM>(shared + V, sequence.rows(p.v, p.v_strides, work.kv_head), p.v_strides, work.tile * BLOCK_N, exists);
  }

  __device__ __forceinline__ QueryTiles tiles_of(int head) const { return QueryTiles(p, work.batch, head, work.kv_head, work.tile * BLOCK_N); }
  // What to load next: of its head the first tile from this one on, else the first of a head behind it.
  __device__ __forceinline__ void seek(int tile) {
    next_tile = tiles_of(next_head).from(tile);       // no registers hold its ranges
    while (next_tile < 0 && ++next_head < end_head) next_tile = tiles_of(next_head).from(0);
  }
  __device__ __forceinline__ void load_next(int to) {
    if (next_tile >= 0) {
      load_queries(next_head, next_tile, to);
      seek(next_tile + 1);
    }
    ptx::copy_commit();
  }

  // s = a b^T: the warp's rows of a tile and all rows of another, of COLUMNS columns each.
  template <int COLUMNS> __device__ __forceinline__ void multiply(float (&s)[ROW_TILES][BLOCK_N / 2], u32 a, u32 b) const {
    const u32 row = a + place<COLUMNS>(warp_row + lane % 16, lane / 16), key = b + place<COLUMNS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[m][i] = 0.0f;
    #pragma unroll
    for (int k = 0; k < COLUMNS / K_STEP; ++k) {
      u32 x[ROW_TILES][4];
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) ptx::ldmatrix_x4(x[m], advance<COLUMNS>(row, 16 * m, k));
      #pragma unroll
      for (int n = 0; n < BLOCK_N / 16; ++n) {
        u32 y[4];
        ptx::ldmatrix_x4(y, advance<COLUMNS>(key, 16 * n, k));
        #pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
          ptx::mma_bf16(s[m] + 8 * n, x[m], y[0], y[1]);
          ptx::mma_bf16(s[m] + 8 * n + 4, x[m], y[2], y[3]);
        }
      }
    }
  }

  // Rows of whole query tiles before this tile.
  __device__ __forceinline__ long long rows_before(int head, int tile) const {
    return (long long)((work.batch * p.heads + head) * sequence.query_tiles() + tile) * BLOCK_M;
  }

  // p and ds of the warp's rows and a key tile, rounded.
  template <bool MASKED> __device__ __forceinline__ void weigh(u32 (&weight)[ROW_TILES][BLOCK_N / 4], u32 (&ds)[ROW_TILES][BLOCK_N / 4],
                                                              const Variant& variant, int head, int tile, int key_tile) {
    float s[ROW_TILES][BLOCK_N / 2], dp[ROW_TILES][BLOCK_N / 2];
    multiply<QK_COLUMNS>(s, shared + Q + stage * Q_BYTES, shared + K);
    multiply<V_COLUMNS>(dp, shared + DO + stage * DO_BYTES, shared + V);
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
      const int row = warp_row + 16 * m + lane / 4;
      const long long at = rows_before(head, tile) + row;
      const float lse[2] = {p.row_lse[at], p.row_lse[at + 8]}, delta[2] = {p.row_delta[at], p.row_delta[at + 8]};
      weights<MASKED>(s[m], dp[m], lse, delta, variant, tile * BLOCK_M + row, key_tile * BLOCK_N);
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 4; ++i) {
        weight[m][i] = ptx::bf16x2(s[m][2 * i], s[m][2 * i + 1]);
        ds[m][i] = ptx::bf16x2(dp[m][2 * i], dp[m][2 * i + 1]);
      }
    }
  }

  // The warp's rows of p or ds, rounded, to shared memory, where all warps read them by keys.
  __device__ __forceinline__ void hand_on(const u32 (&x)[ROW_TILES][BLOCK_N / 4], u32 to) const {
    const u32 at = to + place<BLOCK_N>(warp_row + lane / 4, 0) + lane % 4 * 4;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < BLOCK_N / 4; ++i)
        ptx::store_shared(advance<BLOCK_N>(at, 16 * m + i % 2 * 8, i / 4) ^ i / 2 % 2 * CHUNK_BYTES, x[m][i]);
  }

  // dv += p^T do, or dk += ds^T q: the warp's keys and its part of the columns, over all queries of the tile.
  template <int COLUMNS> __device__ __forceinline__ void add_to_keys(float (&sum)[KEY_TILES][COLUMNS / COLUMN_WARPS / 2], u32 weights, u32 rows) const {
    const u32 weight = weights + place<BLOCK_N>(lane % 8 + lane / 16 * 8, lane / 8 % 2), row = rows + place<COLUMNS>(lane % 16, lane / 16);
    #pragma unroll
    for (int k = 0; k < BLOCK_M / K_STEP; ++k) {
      u32 x[KEY_TILES][4];
      #pragma unroll
      for (int m = 0; m < KEY_TILES; ++m) ptx::ldmatrix_x4_trans(x[m], advance<BLOCK_N>(weight, K_STEP * k, warp_key / 16 + m));
      #pragma unroll
      for (int n = 0; n < COLUMNS / COLUMN_WARPS / 16; ++n) {
        u32 y[4];
        ptx::ldmatrix_x4_trans(y, advance<COLUMNS>(row, K_STEP * k, part * (COLUMNS / COLUMN_WARPS / 16) + n));
        #pragma unroll
        for (int m = 0; m < KEY_TILES; ++m) {
          ptx::mma_bf16(sum[m] + 8 * n, x[m], y[0], y[1]);
          ptx::mma_bf16(sum[m] + 8 * n + 4, x[m], y[2], y[3]);
        }
      }
    }
  }

  // dq += ds k in memory, where the blocks of all key tiles add: the warp's rows, 16 columns at a time.
  __device__ __forceinline__ void add_to_queries(const u32 (&ds)[ROW_TILES][BLOCK_N / 4], int head, int tile) const {
    const u32 key = shared + K + place<QK_COLUMNS>(lane % 16, lane / 16);
    float* const to = p.dq_sum + rows_before(head, tile) * QK_STORED + sum_at(warp_row + lane / 4, lane % 4 * 2);
    #pragma unroll
    for (int n = 0; n < QK_COLUMNS / 16; ++n) {
      float sum[ROW_TILES][8] = {};
      #pragma unroll
      for (int k = 0; k < BLOCK_N / K_STEP; ++k) {
        u32 y[4];
        ptx::ldmatrix_x4_trans(y, advance<QK_COLUMNS>(key, K_STEP * k, n));
        #pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
          const u32 x[4] = {ds[m][4 * k], ds[m][4 * k + 1], ds[m][4 * k + 2], ds[m][4 * k + 3]};
          ptx::mma_bf16(sum[m], x, y[0], y[1]);
          ptx::mma_bf16(sum[m] + 4, x, y[2], y[3]);
        }
      }
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
        #pragma unroll
        for (int i = 0; i < 8; ++i) ptx::add_global(to + sum_at(16 * m + i / 2 % 2 * 8, 16 * n + column(i)), sum[m][i]);
    }
  }

  // One query tile of a head.
  template <bool MASKED> __device__ __forceinline__ void step(const Variant& variant, int head, int tile) {
    ptx::copy_wait<0>();
    __syncthreads();                                  // the tile is here for every thread, and nobody reads the one before it any more
    u32 weight[ROW_TILES][BLOCK_N / 4], ds[ROW_TILES][BLOCK_N / 4];
    weigh<MASKED>(weight, ds, variant, head, tile, work.tile);
    hand_on(weight, shared + P);
    hand_on(ds, shared + DS);
    __syncthreads();                                  // p and ds are here for every warp
    add_to_keys<V_COLUMNS>(dv, shared + P, shared + DO + stage * DO_BYTES);
    add_to_keys<QK_COLUMNS>(dk, shared + DS, shared + Q + stage * Q_BYTES);
    __syncthreads();                                  // nobody reads the tile any more
    load_next(stage);
    add_to_queries(ds, head, tile);
  }

  __device__ __forceinline__ void run() {
    load_keys_and_values();
    seek(0);
    load_next(0);
    for (int head = work.kv_head * p.group; head < end_head; ++head) {
      const Variant variant(p, work.batch, head, work.kv_head);
      const QueryTiles tiles = tiles_of(head);
      for (int tile = tiles.begin[0]; tile < tiles.end[0]; ++tile) step<true>(variant, head, tile);
      for (int tile = tiles.begin[1]; tile < tiles.end[1]; ++tile) step<false>(variant, head, tile);
      for (int tile = tiles.begin[2]; tile < tiles.end[2]; ++tile) step<true>(variant, head, tile);
    }
    ptx::copy_wait<0>();
    store<QK_COLUMNS, QK_DIM>(dk, p.softmax_scale, sequence.rows(p.dk, p.dk_strides, work.kv_head), p.dk_strides);
    store<V_COLUMNS, V_DIM>(dv, 1.0f, sequence.rows(p.dv, p.dv_strides, work.kv_head), p.dv_strides);
  }

  // The warp's keys and columns of dk or dv, times a factor, rounded.
  template <int COLUMNS, int DIM> __device__ __forceinline__ void store(const float (&sum)[KEY_TILES][COLUMNS / COLUMN_WARPS / 2], float factor,
                                                                       Element* to, const Strides& strides) const {
    #pragma unroll
    for (int m = 0; m < KEY_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < COLUMNS / COLUMN_WARPS / 2; i += 2) {
        const int kv_idx = work.tile * BLOCK_N + warp_key + 16 * m + i / 2 % 2 * 8 + lane / 4;
        const int first = part * (COLUMNS / COLUMN_WARPS) + first_column() + column(i);
        if (kv_idx < sequence.kv_len() && (COLUMNS == DIM || first < DIM))
          store_pair(to + kv_idx * strides.row + first * strides.column, sum[m][i] * factor, sum[m][i + 1] * factor, strides.column);
      }
  }
};

// --------------------------------------------------------------------------------------------------------------- kernel

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

extern "C" __global__ void __launch_bounds__(THREADS, 2) backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Gradients(p, (u32)__cvta_generic_to_shared(memory)).run();
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
