/* What a walk is given: `real` is the precision. */
typedef void product_t(const char *, const char *, const int *, const int *, const int *, const real *, const real *,
                       const int *, const real *, const int *, const real *, real *, const int *);
typedef struct { long first, apart; const long *numbers; } line;
static inline long at(const line *column, long step) {
  return column->numbers ? column->first + column->apart * column->numbers[step] : column->first;
}
#define EACH(i, count) for (long i = 0; i < count; i++)
/* What it does with rows beside its kernels: these functions (`tools.c`, `rows.c`) are compiled once, not with every walk. */
typedef struct {
  void (*gather)(real *restrict out, const real *restrict from, const int *restrict index, long count, long width);
  void (*gather_sum)(real *restrict out, const real *restrict from, const int *restrict index, const int *restrict bounds,
                     long count, long width);
  void (*segment_sum)(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width,
                      long apart);
  void (*spread)(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width, long apart);
  void (*copy)(real *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*multiply)(product_t *product, real *out, const real *left, const real *right, long turned, int apart_right, int rows,
                   int inner, int columns, int apart_left);
  void (*row_max)(real *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*row_argmax)(long *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*row_softmax)(real *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*row_log_softmax)(real *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*row_softmax_back)(real *restrict out, const real *restrict grads, long apart, const real *restrict results,
                           long apart_results, long count, long width);
  void (*row_log_softmax_back)(real *restrict out, const real *restrict grads, long apart, const real *restrict results,
                               long apart_results, long count, long width);
  void (*sum_rows)(real *restrict out, const real *restrict rows, long count, long width, long apart);
  void (*multiply_rows)(product_t *product, real *out, const real *left, const real *right, int count, int height, int width,
                        int apart_left, int apart_right);
} tools;
