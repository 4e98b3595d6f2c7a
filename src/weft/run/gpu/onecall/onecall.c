/* What every lowered recipe uses: launches by the driver, products by the library, a place for working memory. */
#include <stdint.h>
typedef unsigned u;
typedef int (*launch_function)(void *, u, u, u, u, u, u, u, void *, void **, void **);
typedef int (*cooperative_function)(void *, u, u, u, u, u, u, u, void *, void **);
typedef int (*single_product)(void *, int, int, int, int, int, const float *, const void *, int, const void *, int,
                              const float *, void *, int);
typedef int (*mixed_product)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                             const void *, void *, int, int, int, int);
typedef int (*fill_function)(uint64_t, unsigned char, uint64_t, void *);
typedef int (*copy_function)(uint64_t, uint64_t, uint64_t, void *);
static inline int64_t FLOOR(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static int launch(const int64_t *h, int kernel, int64_t programs, void *stream, void **arguments) {
    const int64_t *k = h + FIRST_KERNEL + OF_KERNEL * kernel;
    if (!programs) return 0;
    return ((launch_function)h[0])((void *)k[0], programs, 1, 1, k[2], 1, 1, k[3], stream, arguments, 0);
}

static int launch_together(const int64_t *h, int kernel, void *stream, void **arguments) {
    const int64_t *k = h + FIRST_KERNEL + OF_KERNEL * kernel;
    return ((cooperative_function)h[1])((void *)k[0], k[1], 1, 1, k[2], 1, 1, k[3], stream, arguments);
}

/* Memory that nobody uses from one operation to another, and as much of it as there is. */
struct spare { char *start; int64_t bytes; int first, last; };

/* First fit, in spare memory before any other: memory of the same time must lie apart. */
static int64_t place(int count, const int64_t *bytes, const int *born, const int *dead,
                     int spares, const struct spare *spare, char *room, char **at) {
    int64_t end = 0, start[count + 1];
    int where[count + 1];
    for (int i = 0; i < count; i++)
        for (int r = 0; r <= spares; r++) {
            if (r < spares && (born[i] < spare[r].first || dead[i] > spare[r].last)) continue;
            start[i] = 0;
            for (int j = 0; j < i; j++)
                if (where[j] == r && born[i] <= dead[j] && born[j] <= dead[i]
                    && start[i] < start[j] + bytes[j] && start[j] < start[i] + bytes[i]) {
                    start[i] = start[j] + bytes[j];
                    j = -1;
                }
            if (r < spares && start[i] + bytes[i] > spare[r].bytes) continue;
            where[i] = r;
            at[i] = (r < spares ? spare[r].start : room) + start[i];
            if (r == spares && start[i] + bytes[i] > end) end = start[i] + bytes[i];
            break;
        }
    return end;
}

static int64_t widest(const int32_t *turns, int64_t count, const int32_t *lo, const int32_t *hi) {
    int64_t found = 0;
    for (int64_t turn = 0; turn < count; turn++)
        if (turns[3 * turn + 2] == APART)
            for (int64_t at = turns[3 * turn]; at < turns[3 * turn + 1]; at++)
                if (hi[at] - lo[at] > found) found = hi[at] - lo[at];
    return found;
}
