/* What every lowered recipe uses: launches by the driver, products by the library. */
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

/* The rows of a group's steps, from the `first` of them on. How many of the limits, which ascend, a step's rows reach tells its width. */
struct steps { const int32_t *lo, *hi; int64_t first, count; int limits; const int32_t *limit, *width; int one; };
/* Steps of one width, and which that is. */
struct stretch { int64_t begin, end; int32_t width; };

static int reached(const struct steps *s, int64_t rows) {
    int found = 0;
    while (found < s->limits && rows >= s->limit[found]) found++;
    return found;
}

/* Where the width changes all the time, and no step runs apart, all steps are one stretch: of the width of the mean step. */
static struct steps steps_of(const int32_t *lo, const int32_t *hi, int64_t first, int64_t count, int limits,
                             const int32_t *limit, const int32_t *width) {
    struct steps s = {lo, hi, first, count, limits, limit, width, -1};
    int64_t changes = 0, rows = 0;
    int before = -1, apart = 0;
    for (int64_t at = first; at < count; at++) {
        int now = reached(&s, hi[at] - lo[at]);
        changes += now != before, before = now;
        rows += hi[at] - lo[at], apart |= width[now] == APART;
    }
    if (changes > MOST_STRETCHES && !apart)
        for (s.one = 0; s.one < limits && limit[s.one] * (count - first) <= rows;) s.one++;
    return s;
}

/* The next stretch in the order in which steps run; before the first one, `t` is {count, first}. */
static int next_stretch(const struct steps *s, int backward, struct stretch *t) {
    if (backward ? t->begin == s->first : t->end == s->count) return 0;
    int64_t by = backward ? -1 : 1, first = backward ? t->begin - 1 : t->end, at = first;
    int mine = s->one >= 0 ? s->one : reached(s, s->hi[at] - s->lo[at]);
    while (at + by >= s->first && at + by < s->count && (s->one >= 0 || reached(s, s->hi[at + by] - s->lo[at + by]) == mine)) at += by;
    *t = (struct stretch){backward ? at : first, (backward ? first : at) + 1, s->width[mine]};
    return 1;
}

static int64_t widest(struct steps s) {
    int64_t found = 0;
    for (int64_t at = s.first; at < s.count; at++) {
        int64_t rows = s.hi[at] - s.lo[at];
        if (rows > found && s.width[s.one >= 0 ? s.one : reached(&s, rows)] == APART) found = rows;
    }
    return found;
}
