// flashgen 0.1.0 | spec causal | arch sm_80 | plan ec88f4bc | generated, do not edit
//
//   o = softmax(score(softmax_scale * q k^T) where mask) v
//
//   arrays    q, o [B, Sq, Hq, 128] bfloat16    k, v [B, Sk, Hq / group, 128]    lse [B, Hq, Sq] float32, natural log
//   score     s
//   mask      kv_idx <= q_idx + kv_len - q_len
//   tile      128 queries x 64 keys    4 warps compute 32 query rows each and share the loads
//   keys      of a query tile: 2 ranges of tiles in closed form (unmasked, masked), taken downwards
//   order     longest query tiles first, in sections of heads that share the L2, a block a query tile
//   softmax   one pass, log2 units; o and l rescaled where a maximum grew by more than 8, divided once at the end; no key: o = 0, lse = -inf
//   shared    Q 32768 | K 16384 | V 16384 | O 32768 | 1 stage    65536 of 166912 bytes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Strides { long long batch, head, row, column; };   // in elements

struct Params {
  const u16* q;
  const u16* k;
  const u16* v;
  u16* o;
  float* lse;                            // [B, Hq, Sq], natural log
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
constexpr int QK_COLUMNS = 128, V_COLUMNS = 128;   // head dims in products of 16 columns, zero beyond 128 and 128
constexpr int QK_STORED = 128, V_STORED = 128;   // columns of a tile in shared memory
constexpr int STAGES = 1;                // key and value tiles in flight
constexpr float LN_2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)

constexpr int QK_DIM = 128, V_DIM = 128;   // columns of the arrays, of v and o those that a block has
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int ROW_TILES = BLOCK_M / (16 * WARPS);   // of 16 query rows, a warp's

constexpr int COPY_BYTES = 16;           // that one copy moves: what every row is aligned to
using Element = u16;                     // that products multiply: bfloat16
constexpr int ELEMENT_BYTES = sizeof(Element), K_STEP = 16;   // of one; columns of q and k, or keys, that one product sums up
constexpr int K_BYTES = BLOCK_N * QK_STORED * ELEMENT_BYTES, V_BYTES = BLOCK_N * V_STORED * ELEMENT_BYTES;

// Shared memory, bytes from its start.
constexpr u32 Q = 0;                     // 1 x 32768
constexpr u32 K = 32768;                 // 1 x 16384
constexpr u32 V = 49152;                 // 1 x 16384
constexpr u32 O = 0;                     // 1 x 32768

// ---------------------------------------------------------------------------------------------------- device vocabulary

namespace ptx {                          // one instruction a function

// cp_async.cuh: copy_async_16, copy_commit, copy_wait
// ldmatrix.cuh: ldmatrix_x4, ldmatrix_x4_trans
// math.cuh: exp2, log2, reciprocal, bf16x2
// mma_sync.cuh: mma_bf16
// shared.cuh: store_shared, load_shared_x4

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

constexpr float RESCALE_THRESHOLD = 8.0f;   // log2 units that the maximum may grow before o and l are rescaled
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
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], Rows& rows, float (&rescale)[2], const Variant& variant, int q_idx, int kv_begin) {
  float top[2], base[2], reference[2];   // reference: what exponents are relative to
  bool raised = false;                   // a maximum rises, or what scores are compared with is large
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Variant::Row row = variant.row(q_idx + 8 * r, kv_begin + first_column());
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

// --------------------------------------------------------------------------------------------------------------- attend

struct Attend {                          // one block: a query tile against all its keys
  const Params& p;
  const u32 shared;
  const Work work;
  const Sequence sequence = {p, work.batch};
  const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * ROW_TILES;   // of the tile, the warp's first
  const int q_idx = work.block * BLOCK_M + warp_row + lane / 4;
  const Variant variant = Variant(p, work.batch, work.head, work.kv_head);
  const Element* const keys = sequence.rows(p.k, p.k_strides, work.kv_head);
  const Element* const values = sequence.rows(p.v, p.v_strides, work.kv_head) + work.v_slice * V_DIM * p.v_strides.column;
  float o[ROW_TILES][V_COLUMNS / 2] = {};
  Rows rows[ROW_TILES];
  int next;                              // the key tile to load next, -1: none
  static constexpr int stage = 0;        // where the one to multiply next lies: there is one place

  __device__ __forceinline__ Attend(const Params& p, u32 shared, int t = blockIdx.x) : p(p), shared(shared), work(t, p) {}

  __device__ __forceinline__ void load_query_tile() const {
    load_tile<BLOCK_M, QK_COLUMNS, QK_DIM>(shared + Q, sequence.rows(p.q, p.q_strides, work.head), p.q_strides, work.block * BLOCK_M,
                                           [&](int q_idx) { return q_idx < sequence.q_len(); });
  }

  template <bool WHOLE> __device__ __forceinline__ void load_keys(int tile, int to) const {
    load_tile<BLOCK_N, QK_COLUMNS, QK_DIM>(shared + K + to * K_BYTES, keys, p.k_strides, tile * BLOCK_N,
                                           [&](int kv_idx) { return WHOLE || kv_idx < sequence.kv_len(); });
  }

  template <bool WHOLE> __device__ __forceinline__ void load_values(int tile, int to) const {
    load_tile<BLOCK_N, V_COLUMNS, V_DIM>(shared + V + to * V_BYTES, values, p.v_strides, tile * BLOCK_N,
                                         [&](int kv_idx) { return (WHOLE || kv_idx < sequence.kv_len()); });
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
    for (int k = 0; k < QK_COLUMNS / K_STEP; ++k) {
      u32 a[ROW_TILES][4];
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) ptx::ldmatrix_x4(a[m], advance<QK_COLUMNS>(query, 16 * m, k));
      #pragma unroll
      for (int n = 0; n < BLOCK_N / 16; ++n) {
        u32 b[4];
        ptx::ldmatrix_x4(b, advance<QK_COLUMNS>(key, 16 * n, k));
        #pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
          ptx::mma_bf16(s[m] + 8 * n, a[m], b[0], b[1]);
          ptx::mma_bf16(s[m] + 8 * n + 4, a[m], b[2], b[3]);
        }
      }
    }
  }

  // Scores become exponentials; o comes to the new maximum.
  template <bool MASKED> __device__ __forceinline__ void attend(float (&s)[ROW_TILES][BLOCK_N / 2], int tile) {
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
      const int row = q_idx + 16 * m;
      float rescale[2];
      softmax<MASKED>(s[m], rows[m], rescale, variant, row, tile * BLOCK_N);
      rescale_rows(o[m], rescale);
    }
  }

  // o += p v over the keys of product number k of the tile whose values lie at `value`.
  __device__ __forceinline__ void add_values(const u32 (&probabilities)[ROW_TILES][4], u32 value, int k) {
    #pragma unroll
    for (int n = 0; n < V_COLUMNS / 16; ++n) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(b, advance<V_COLUMNS>(value, K_STEP * k, n));
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        ptx::mma_bf16(o[m] + 8 * n, probabilities[m], b[0], b[1]);
        ptx::mma_bf16(o[m] + 8 * n + 4, probabilities[m], b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ u32 values_of_lane() const { return shared + V + stage * V_BYTES + place<V_COLUMNS>(lane % 16, lane / 16); }

  // o += p v; two neighbouring products of p are one operand of the next.
  __device__ __forceinline__ void output(const float (&s)[ROW_TILES][BLOCK_N / 2]) {
    const u32 value = values_of_lane();
    #pragma unroll
    for (int k = 0; k < BLOCK_N / K_STEP; ++k) {
      u32 probabilities[ROW_TILES][4];
      #pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
        #pragma unroll
        for (int i = 0; i < 4; ++i) probabilities[m][i] = ptx::bf16x2(s[m][8 * k + 2 * i], s[m][8 * k + 2 * i + 1]);
      add_values(probabilities, value, k);
    }
  }

  // The key tile below, or -1.
  __device__ __forceinline__ int before(int tile) const {
    int found = -1;
    #pragma unroll
    for (int range = 0; range < Work::RANGES; ++range)
      if (work.begin[range] < min(tile, work.end[range])) found = min(tile, work.end[range]) - 1;
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
      load_next<false>(0);
      load_query_tile();                              // while the first keys are on their way
      ptx::copy_commit();
      for (int tile = work.end[1] - 1; tile >= work.begin[1]; --tile) step<true>(tile);
      for (int tile = work.end[0] - 1; tile >= work.begin[0]; --tile) step<false>(tile);
    }
    write();
  }

  // o as it is in the registers.
  __device__ __forceinline__ void store() {
    u16* const to = sequence.rows(p.o, p.o_strides, work.head) + work.v_slice * V_DIM * p.o_strides.column;
    struct __align__(COPY_BYTES) Piece { u32 words[COPY_BYTES / 4]; };
    __syncthreads();                                  // nobody reads what lies there any more: o takes its place, each warp its own rows
    const u32 staged = shared + O + place<V_COLUMNS>(warp_row + lane / 4, 0) + lane % 4 * 4;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
      #pragma unroll
      for (int i = 0; i < V_COLUMNS / 2; i += 2)
        ptx::store_shared(advance<V_COLUMNS>(staged, 16 * m + i / 2 % 2 * 8, i / 8) ^ i / 4 % 2 * CHUNK_BYTES,
                          ptx::bf16x2(o[m][i], o[m][i + 1]));
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

  __device__ __forceinline__ void write() {
    #pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
      float inverse[2];
      #pragma unroll
      for (int r = 0; r < 2; ++r) {
        const End end = finalize(rows[m], r, variant);
        inverse[r] = end.inverse;
        const int row = q_idx + 16 * m + 8 * r;
        if (work.v_slice == 0 && lane % 4 == 0 && row < sequence.q_len()) {
          p.lse[sequence.row(work.head, row)] = end.lse;
        }
      }
      #pragma unroll
      for (int i = 0; i < V_COLUMNS / 2; ++i) o[m][i] *= inverse[i / 2 % 2];
    }
    store();
  }
};

// --------------------------------------------------------------------------------------------------------------- kernel

extern "C" __global__ void __launch_bounds__(THREADS, 2) forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Attend(p, (u32)__cvta_generic_to_shared(memory)).run();
}
