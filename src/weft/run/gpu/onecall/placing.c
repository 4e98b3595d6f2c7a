/* Where working memory lies. */
#include <stdint.h>

/* Memory that nobody uses from one operation to another, and as much of it as there is. */
struct spare { char *start; int64_t bytes; int first, last; };

/* From where on bytes are free within some memory, beside the blocks that are placed there; or where they do not fit. */
static char *beside(int placed, const int *order, const int64_t *bytes, const int *born, const int *dead, char **at, int i,
                    char *from) {
    for (int m = 0; m < placed; m++) {
        const int j = order[m];
        if (born[i] <= dead[j] && born[j] <= dead[i] && from < at[j] + bytes[j] && at[j] < from + bytes[i]) {
            from = at[j] + bytes[j];
            m = -1;
        }
    }
    return from;
}

/* The largest first, each where it fits closest: in spare memory before any other, which may be several neighbours. Memory of
   the same time must lie apart. */
static int64_t place(int count, const int64_t *bytes, const int *born, const int *dead,
                     int spares, const struct spare *spare, char *room, char **at) {
    int64_t end = 0;
    int order[count + 1];
    for (int i = 0; i < count; i++) {
        int k = i;
        for (; k > 0 && bytes[order[k - 1]] < bytes[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (int n = 0; n < count; n++) {
        const int i = order[n];
        int64_t closest = INT64_MAX;
        for (int r = 0; r < spares; r++) {
            char *limit = spare[r].start;
            for (int q = r; q < spares && spare[q].start == limit && born[i] >= spare[q].first && dead[i] <= spare[q].last; q++)
                limit += spare[q].bytes;
            char *start = beside(n, order, bytes, born, dead, at, i, spare[r].start);
            if (start + bytes[i] > limit || limit - spare[r].start >= closest) continue;
            closest = limit - spare[r].start;
            at[i] = start;
        }
        if (closest < INT64_MAX) continue;
        at[i] = beside(n, order, bytes, born, dead, at, i, room);
        if (at[i] + bytes[i] > room + end) end = at[i] + bytes[i] - room;
    }
    return end;
}
