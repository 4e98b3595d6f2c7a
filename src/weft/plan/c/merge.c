/* The arrays of many graphs as those of one, and the program of a graph: api/graph_parts.py and api/structure.py. */

enum { PART_VERTICES, PART_SLOTS, OF_PART = 7 };

/* Vertices and slots count on from part to part. Each part is packed: its children, its first slots, and its node types: twice
   the type of a vertex, and one more if it has no children. `types` and `kinds` may be NULL: parts without types. */
void weft_merge(const int64_t *part, long parts, const i32 *packed, i32 *children, i32 *offsets, i32 *childless, i32 *types,
                i32 *kinds) {
    i32 vertices = 0, slots = 0;
    for (long p = 0; p < parts; p++, part += OF_PART) {
        i32 n = part[PART_VERTICES], m = part[PART_SLOTS];
        for (i32 k = 0; k < m; k++) children[k] = packed[k] + (packed[k] < 0 ? 0 : vertices);
        for (i32 v = 0; v < n; v++) offsets[v] = packed[m + v] + slots;
        const i32 *kind = packed + m + n;
        for (i32 v = 0; v < n; v++) childless[v] = kind[v] & 1;
        for (i32 v = 0; types && v < n; v++) types[v] = kind[v] >> 1, kinds[v] = kind[v];
        packed = kind + n, children += m, offsets += n, childless += n, slots += m, vertices += n;
        if (types) types += n, kinds += n;
    }
    *offsets = slots;
}

/* Leave out the arguments of vertices whose type reads none; returns how many are left. `edge` may be NULL. Each is copied,
   and what is left out is written over by the next: a branch for every vertex would cost more. */
long weft_drop(long n, const i32 *type, const i32 *reads, const i32 *ptr, const i32 *src, const i32 *edge, i32 *new_ptr,
               i32 *new_src, i32 *new_edge) {
    i32 kept = 0;
    for (long v = 0; v < n; v++) {
        i32 keep = reads[type[v]] != 0;
        new_ptr[v] = kept;
        for (i32 k = ptr[v]; k < ptr[v + 1]; k++, kept += keep) {
            new_src[kept] = src[k];
            if (edge) new_edge[kept] = edge[k];
        }
    }
    new_ptr[n] = kept;
    return kept;
}

/* Which numbers in [0, bound) occur; returns 0 if there are others. */
int weft_occurring(const i32 *numbers, long n, long bound, char *occurs) {
    i32 beyond = 0;
    memset(occurs, 0, bound);
    for (long i = 0; i < n; i++) beyond |= numbers[i] < 0 || numbers[i] >= bound;
    for (long i = 0; !beyond && i < n; i++) occurs[numbers[i]] = 1;
    return !beyond;
}
