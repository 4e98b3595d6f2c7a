/* Wanted results by kind: `wanted` are references, a node and in its last `bits` bits one of its outputs. Results of one type and output
   belong together, kinds in the order of type and output. `out` gets, for each kind, its type, its output and where its results end;
   then the places of all results among the wanted ones, kind after kind, their nodes, the rows of these within their type, and what
   is needed meanwhile: the row of every node. From `first_view` on, the plan tells where the nodes of each type begin and end.
   Returns how many kinds there are, 0 for more than `most`. */
long weft_wanted(const i32 *plan, long first_view, long types, const i32 *type, long nodes, const int64_t *wanted, long count, long bits,
                 long most, i32 *out) {
    const i32 *rows = plan + plan[AT_VIEWS] + first_view;
    i32 *places = out + 3 * most, *of = places + count, *row = of + count, *row_of = row + count;
    int64_t keys[most], low = ((int64_t)1 << bits) - 1;
    long kinds = 0, ends[most];
    for (long t = 0; t < types; t++)
        for (i32 first = rows[2 * t], at = first; at < rows[2 * t + 1]; at++) row_of[plan[at]] = at - first;
    for (long i = 0; i < count; i++) {
        int64_t key = (int64_t)type[wanted[i] >> bits] << bits | (wanted[i] & low);
        long k = 0;
        while (k < kinds && keys[k] < key) k++;
        if (k < kinds && keys[k] == key) {
            ends[k]++;
            continue;
        }
        if (kinds == most) return 0;
        memmove(keys + k + 1, keys + k, (kinds - k) * sizeof *keys), memmove(ends + k + 1, ends + k, (kinds - k) * sizeof *ends);
        keys[k] = key, ends[k] = 1, kinds++;
    }
    for (long k = 0, next = 0; k < kinds; k++) { /* from how many to where they begin */
        long many = ends[k];
        ends[k] = next, next += many;
    }
    for (long i = 0; i < count; i++) {
        int64_t node = wanted[i] >> bits, key = (int64_t)type[node] << bits | (wanted[i] & low);
        long k = 0;
        while (keys[k] != key) k++;
        long at = ends[k]++;
        places[at] = i, of[at] = node, row[at] = row_of[node];
    }
    for (long k = 0; k < kinds; k++) out[3 * k] = keys[k] >> bits, out[3 * k + 1] = keys[k] & low, out[3 * k + 2] = ends[k];
    return kinds;
}
