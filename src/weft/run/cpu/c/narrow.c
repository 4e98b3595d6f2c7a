/* A product of few rows with a matrix whose columns lie densely, out[r][c] = sum over k of left[r][k] right[c][k]. Libraries lay
   such a matrix out anew first, which costs more than the product itself where rows are few and long. Here both factors are
   read as they are: tiles of SIDE by SIDE sums, each a vector along k that is added up in the end. */
#ifdef __AVX512F__
enum { BYTES = 64, SIDE = 4, LEAST = 4, LENGTH = 32 };
#else
enum { BYTES = 32, SIDE = 3, LEAST = 2, LENGTH = 64 };
#endif
enum { LANES = BYTES / sizeof(real) };
typedef real vector __attribute__((vector_size(BYTES)));
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef integer mask __attribute__((vector_size(BYTES)));
/* Where that is faster, as measured: from LEAST rows on, if each is LENGTH times as long as there are rows. */
static inline int is_narrow(long rows, long inner) { return rows >= LEAST && rows * LENGTH <= inner; }
static inline real total(vector v) {
  typedef real half __attribute__((vector_size(BYTES / 2)));
  typedef real quarter __attribute__((vector_size(BYTES / 4)));
  half h[2];
  __builtin_memcpy(h, &v, sizeof h);
  h[0] += h[1];
  quarter q[2];
  __builtin_memcpy(q, h, sizeof q);
  q[0] += q[1];
  real sum = q[0][0];
  for (int i = 1; i < LANES / 4; i++) sum += q[0][i];
  return sum;
}
/* The last vector overlaps the one before: `last` leaves only what is new of it. */
static inline __attribute__((always_inline)) void tile(const int rows, const int columns, real *restrict out, long apart_out,
                                                       const real *restrict left, long apart_left, const real *restrict right,
                                                       long apart_right, long inner, mask last) {
  vector sums[SIDE][SIDE], across[SIDE];
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) sums[r][c] = (vector){0};
  long k = 0;
  for (; k + LANES <= inner; k += LANES) {
    for (int c = 0; c < columns; c++) across[c] = *(const loose *)(right + c * apart_right + k);
    for (int r = 0; r < rows; r++) {
      vector down = *(const loose *)(left + r * apart_left + k);
      for (int c = 0; c < columns; c++) sums[r][c] += down * across[c];
    }
  }
  if (k < inner) {
    k = inner - LANES;
    for (int c = 0; c < columns; c++) across[c] = (vector)((mask) * (const loose *)(right + c * apart_right + k) & last);
    for (int r = 0; r < rows; r++) {
      vector down = (vector)((mask) * (const loose *)(left + r * apart_left + k) & last);
      for (int c = 0; c < columns; c++) sums[r][c] += down * across[c];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) out[r * apart_out + c] = total(sums[r][c]);
}
static void narrow_product(real *out, const real *left, const real *right, long apart_right, long rows, long inner, long columns,
                           long apart_left) {
  mask last;
  for (int i = 0; i < LANES; i++) last[i] = i < LANES - inner % LANES ? 0 : -1;
#define TILE(height, width)                                                                                          \
  tile(height, width, out + r * columns + c, columns, left + r * apart_left, apart_left, right + c * apart_right, apart_right, \
       inner, last)
  long c = 0;
  for (; c + SIDE <= columns; c += SIDE) {
    long r = 0;
    for (; r + SIDE <= rows; r += SIDE) TILE(SIDE, SIDE);
    for (; r + 2 <= rows; r += 2) TILE(2, SIDE);
    for (; r < rows; r++) TILE(1, SIDE);
  }
  for (; c < columns; c++)
    for (long r = 0; r < rows; r++) TILE(1, 1);
#undef TILE
}
