/* A matrix laid out anew, columns as rows: LINE numbers are collected and written at once, in a strip of columns that stays in
   the cache. */
enum { LINE = 16, STRIP = 64 };
void weft_turn(real *restrict out, const real *restrict in, long rows, long columns, long apart) {
  for (long first = 0; first < columns; first += STRIP) {
    long end = first + STRIP < columns ? first + STRIP : columns, i = 0;
    for (; i + LINE <= rows; i += LINE)
      for (long j = first; j < end; j++) {
        real line[LINE];
        for (long k = 0; k < LINE; k++) line[k] = in[(i + k) * apart + j];
        __builtin_memcpy(out + j * rows + i, line, sizeof line);
      }
    for (; i < rows; i++)
      for (long j = first; j < end; j++) out[j * rows + i] = in[i * apart + j];
  }
}
