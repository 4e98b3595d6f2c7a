/* A list of jobs, one after the other: each a word that says which, followed by the numbers and addresses that it needs. */
enum { WALK, COPY, ZERO, TAKE, SPREAD, COLLECT };
typedef void walk_t(long, long, const long *, void *, void *, void *, long, long);
#define INLINE static inline __attribute__((always_inline))
INLINE long place(const int *index, const int *through, long i) { return through ? through[index[i]] : index ? index[i] : i; }
/* to[i] = rows[index[i]] */
static void take(char *restrict to, const char *restrict rows, const int *index, const int *through, long count, long bytes) {
  for (long i = 0; i < count; i++) __builtin_memcpy(to + i * bytes, rows + place(index, through, i) * bytes, bytes);
}
/* to[index[i]] += rows[i] */
#define SPREADING(name, real)                                                                                             \
  static void name(real *restrict to, const real *restrict rows, const int *index, const int *through, long count, long width) { \
    for (long i = 0; i < count; i++) {                                                                                    \
      real *restrict at = to + place(index, through, i) * width;                                                          \
      for (long j = 0; j < width; j++) at[j] += rows[i * width + j];                                                      \
    }                                                                                                                     \
  }
SPREADING(spread4, float)
SPREADING(spread8, double)
/* to[i] = or += the sum of rows[index[k]] over k from bounds[i] to before bounds[i + 1]; without bounds, rows[index[i]], which is
   nothing from row `none` on. */
#define COLLECTING(name, real)                                                                                            \
  static void name(real *restrict to, const real *restrict rows, const int *index, const int *bounds, long count, long width, \
                   long none, long adds) {                                                                                \
    for (long i = 0; i < count; i++, to += width) {                                                                       \
      long k = bounds ? bounds[i] : i, end = bounds ? bounds[i + 1] : i + (place(index, 0, i) < none);                    \
      if (adds && end - k > 1) {                                                                                          \
        for (long j = 0; j < width; j++) {                                                                                \
          real sum = 0;                                                                                                   \
          for (long l = k; l < end; l++) sum += rows[place(index, 0, l) * width + j];                                     \
          to[j] += sum;                                                                                                   \
        }                                                                                                                 \
        continue;                                                                                                         \
      }                                                                                                                   \
      if (!adds && k < end) __builtin_memcpy(to, rows + place(index, 0, k++) * width, width * sizeof(real));              \
      else if (!adds) __builtin_memset(to, 0, width * sizeof(real));                                                      \
      for (; k < end; k++)                                                                                                \
        for (long j = 0; j < width; j++) to[j] += rows[place(index, 0, k) * width + j];                                   \
    }                                                                                                                     \
  }
COLLECTING(collect4, float)
COLLECTING(collect8, double)
void weft_jobs(const long *job, const long *end) {
#define TO (void *)a[0], (void *)a[1], (const int *)a[2], (const int *)a[3], a[4], a[5]
  while (job < end) {
    const long *a = job + 1;
    switch (*job) {
    case WALK: /* function, tools, product, scratch, most rows, most edges, first step, last step, how many numbers follow: lines */
      ((walk_t *)a[0])(a[6], a[7], a + 9, (void *)a[1], (void *)a[2], (void *)a[3], a[4], a[5]);
      job = a + 9 + a[8];
      break;
    case COPY: /* to, from, bytes */
      __builtin_memcpy((void *)a[0], (void *)a[1], a[2]);
      job = a + 3;
      break;
    case ZERO: /* to, bytes */
      __builtin_memset((void *)a[0], 0, a[1]);
      job = a + 2;
      break;
    case TAKE: /* to, rows, index, through, count, bytes of a row */
      take(TO);
      job = a + 6;
      break;
    case SPREAD: /* to, rows, index, through, count, numbers of a row, bytes of a number */
      a[6] == 4 ? spread4(TO) : spread8(TO);
      job = a + 7;
      break;
    case COLLECT: /* to, rows, index, bounds, count, numbers of a row, bytes of a number, from where on nothing, whether it adds */
      a[6] == 4 ? collect4(TO, a[7], a[8]) : collect8(TO, a[7], a[8]);
      job = a + 9;
      break;
    default: __builtin_trap();
    }
  }
}
