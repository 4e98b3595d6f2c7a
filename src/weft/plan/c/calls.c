/* Two questions about recorded calls, whose answer is mostly yes. */

/* Whether it is known of every argument that it reads such an output: `known` has a row for each argument of each type, from `slots[t]`
   on, of which the last stands for all further ones, and a column for each output of each type, from `outputs[t]` on. */
int weft_all_known(long calls, const i32 *type, const i32 *ptr, const i32 *src, const i32 *out, const int64_t *slots,
                   const int64_t *outputs, const char *known, long columns) {
    for (long c = 0; c < calls; c++) {
        int64_t first = slots[type[c]], last = slots[type[c] + 1] - 1;
        for (i32 a = ptr[c]; a < ptr[c + 1]; a++) {
            int64_t slot = first + a - ptr[c];
            if (!known[(slot < last ? slot : last) * columns + outputs[type[src[a]]] + out[a]]) return 0;
        }
    }
    return 1;
}

/* Whether every call is read by another one or wanted; `wanted` are references, with an output in the last `bits` bits. `seen` has a byte
   for each call. */
int weft_all_read(long calls, long arguments, const i32 *src, const int64_t *wanted, long count, long bits, char *seen) {
    memset(seen, 0, calls);
    for (long a = 0; a < arguments; a++) seen[src[a]] = 1;
    for (long i = 0; i < count; i++) seen[wanted[i] >> bits] = 1;
    return memchr(seen, 0, calls) == NULL;
}
