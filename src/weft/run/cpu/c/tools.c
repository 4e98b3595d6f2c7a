/* What walks do with rows (`walk.c`). */
static void gather(real *restrict out, const real *restrict from, const int *restrict index, long count, long width) {
  for (long i = 0; from && i < count; i++)
    __builtin_memcpy(out + i * width, from + index[i] * width, width * sizeof(real));
}
static void gather_sum(real *restrict out, const real *restrict from, const int *restrict index, const int *restrict bounds,
                       long count, long width) {
  for (long i = 0; from && i < count; i++) {
    for (long j = 0; j < width; j++) out[i * width + j] = 0;
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      for (long j = 0; j < width; j++) out[i * width + j] += from[index[k] * width + j];
  }
}
static void segment_sum(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width,
                        long apart) {
  for (long i = 0; i < count; i++) {
    for (long j = 0; j < width; j++) out[i * width + j] = 0;
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      for (long j = 0; j < width; j++) out[i * width + j] += rows[k * apart + j];
  }
}
static void spread(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width,
                   long apart) {
  for (long i = 0; i < count; i++)
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      __builtin_memcpy(out + k * width, rows + i * apart, width * sizeof(real));
}
static void copy(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  for (long i = 0; i < count; i++) __builtin_memcpy(out + i * width, rows + i * apart, width * sizeof(real));
}
static void multiply(product_t *product, real *out, const real *left, const real *right, long turned, int apart_right, int rows,
                     int inner, int columns, int apart_left) {
  if (turned && is_narrow(rows, inner)) {
    narrow_product(out, left, right, apart_right, rows, inner, columns, apart_left);
    return;
  }
  const real one = 1, zero = 0;
  product(turned ? "T" : "N", "N", &columns, &rows, &inner, &one, right, &apart_right, left, &apart_left, &zero, out, &columns);
}
const tools weft_tools = {
    gather,  gather_sum,      segment_sum,      spread,           copy,                 multiply, row_max,
    row_argmax, row_softmax, row_log_softmax, row_softmax_back, row_log_softmax_back, sum_rows, multiply_rows,
};
