/* Within each row: softmax and what belongs to it, maxima. Over all rows: sums, and products of rows with rows. */
static inline real largest(const real *row, long width, long *where) {
  long best = 0;
  EACH(j, width) {
    if (row[j] != row[j]) { best = j; break; }
    if (row[j] > row[best]) best = j;
  }
  *where = best;
  return row[best];
}
static void row_max(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  long where;
  EACH(i, count) out[i] = largest(rows + i * apart, width, &where);
}
static void row_argmax(long *restrict out, const real *restrict rows, long count, long width, long apart) {
  EACH(i, count) largest(rows + i * apart, width, out + i);
}
/* to[j] = exp(row[j] - most), where `most` is the largest; returns their sum. */
static inline real exponentials(real *restrict to, const real *restrict row, long width, real *most) {
  long where;
  real sum = 0;
  *most = largest(row, width, &where);
  EACH(j, width) to[j] = exp_(row[j] - *most);
  EACH(j, width) sum += to[j];
  return sum;
}
static void row_softmax(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  EACH(i, count) {
    const real *row = rows + i * apart;
    real *to = out + i * width, most, sum = exponentials(to, row, width, &most);
    EACH(j, width) to[j] /= sum;
  }
}
static void row_log_softmax(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  EACH(i, count) {
    const real *row = rows + i * apart;
    real *to = out + i * width, most, sum = exponentials(to, row, width, &most);
    sum = log_(sum);
    EACH(j, width) to[j] = row[j] - most - sum;
  }
}
static void row_softmax_back(real *restrict out, const real *restrict grads, long apart, const real *restrict results,
                             long apart_results, long count, long width) {
  EACH(i, count) {
    const real *g = grads + i * apart, *y = results + i * apart_results;
    real *to = out + i * width, sum = 0;
    EACH(j, width) sum += g[j] * y[j];
    EACH(j, width) to[j] = (g[j] - sum) * y[j];
  }
}
static void row_log_softmax_back(real *restrict out, const real *restrict grads, long apart, const real *restrict results,
                                 long apart_results, long count, long width) {
  EACH(i, count) {
    const real *g = grads + i * apart, *y = results + i * apart_results;
    real *to = out + i * width, sum = 0;
    EACH(j, width) sum += g[j];
    EACH(j, width) to[j] = g[j] - exp_(y[j]) * sum;
  }
}
/* Some rows first, then their sums: what is added stays small beside what it is added to. */
static void sum_rows(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  enum { TOGETHER = 128, WIDTH = 64 };
  for (long first = 0; first < width; first += WIDTH) {
    long some = width - first < WIDTH ? width - first : WIDTH;
    real total[WIDTH] = {0};
    for (long begin = 0; begin < count; begin += TOGETHER) {
      long end = begin + TOGETHER < count ? begin + TOGETHER : count;
      real part[WIDTH] = {0};
      for (long i = begin; i < end; i++) EACH(j, some) part[j] += rows[i * apart + first + j];
      EACH(j, some) total[j] += part[j];
    }
    EACH(j, some) out[first + j] = total[j];
  }
}
/* out[a][b] = the sum over rows of left[row][a] right[row][b]. */
static void multiply_rows(product_t *product, real *out, const real *left, const real *right, int count, int height, int width,
                          int apart_left, int apart_right) {
  const real one = 1, zero = 0;
  product("N", "T", &width, &height, &count, &one, right, &apart_right, left, &apart_left, &zero, out, &width);
}
