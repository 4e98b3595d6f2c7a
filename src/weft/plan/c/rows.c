/* Which row each node has, and which rows each step runs: layout.py. */

/* Nodes are sorted by type, then step, then the way above them, longest first, then number: their key is the step and the way,
   or the step alone where there would be more keys than is good. Here they are counted. */
static void find_keys(Work *w) {
    long steps = w->steps, ways = w->top + 1, both = steps * ways;
    if (both > 4 * w->n + 4096) ways = 1, both = steps;
    i32 *starts = w->starts = zeros(w, both + 1), *key = w->key = ints(w, w->n);
    w->step_size = ints(w, steps);
    for (const Part *p = w->part; p < w->part + w->parts; p++) {
        const i32 *number = p->number;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 first = w->type_first_step[run[RUN_TYPE]];
            for (const i32 *end = number + run[RUN_COUNT]; number < end; number++) {
                i32 way = ways > 1 ? w->top - p->above[*number] : 0;
                starts[*key++ = (first + p->turn[*number]) * ways + way]++;
            }
        }
    }
    run_starts(starts, both);
    for (long s = 0; s < steps; s++) w->step_size[s] = starts[(s + 1) * ways] - starts[s * ways];
}

/* Nodes whose keys do not tell the way above them, sorted by it: longest first. Fills the keys anew, in this order. */
static i32 *sort_by_way(Work *w) {
    i32 *ways = zeros(w, w->top + 2), *sorted = ints(w, w->n), *key = ints(w, w->n), *at = w->key;
    for (int placing = 0; placing < 2; placing++) {
        i32 base = 0;
        for (const Part *p = w->part; p < w->part + w->parts; base += p++->n)
            for (long i = 0; i < p->n; i++) {
                i32 *place = ways + w->top - p->above[p->number[i]];
                if (placing) key[*place] = *at++, sorted[*place] = base + p->number[i];
                ++*place;
            }
        if (!placing) run_starts(ways, w->top + 1);
    }
    w->key = key;
    return sorted;
}

/* The nodes of each type in the order of rows, from `node[t]` on; for each node its row within its type, and the place of its
   first output, which `places[t]` has for each row. */
static void fill_rows(Work *w, i32 *const *node, i32 *const *places, i32 *row, i32 *place) {
    i32 *starts = w->starts, *key = w->key, base = 0;
    if (w->steps * (w->top + 1) > 4 * w->n + 4096) {
        i32 *sorted = sort_by_way(w), *ordered = ints(w, w->n);
        for (long at = 0; at < w->n; at++) ordered[starts[w->key[at]]++] = sorted[at];
        for (long t = 0; t < w->types; t++) {
            memcpy(node[t], ordered + w->first[t], w->count[t] * sizeof(i32));
            for (i32 at = 0; at < w->count[t]; at++) row[node[t][at]] = at, place[node[t][at]] = places[t][at];
        }
        return;
    }
    for (const Part *p = w->part; p < w->part + w->parts; base += p++->n) {
        const i32 *number = p->number;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 t = run[RUN_TYPE], first = w->first[t], *mine = node[t];
            const i32 *its = places[t];
            int is_range = its[w->count[t] - 1] - its[0] == w->count[t] - 1; /* places ascend */
            for (const i32 *end = number + run[RUN_COUNT]; number < end; number++) {
                i32 at = starts[*key++]++ - first;
                mine[at] = base + *number, row[base + *number] = at;
                place[base + *number] = is_range ? its[0] + at : its[at];
            }
        }
    }
}

/* The row ranges of all steps, none longer than max_rows. */
static void find_pieces(Work *w) {
    long most = w->max_rows ? w->max_rows : w->n, pieces = 0;
    for (long s = 0; s < w->steps; s++) pieces += (w->step_size[s] + most - 1) / most;
    w->pieces = pieces;
    w->piece_first = ints(w, w->groups + 1);
    w->piece_type = ints(w, pieces), w->piece_lo = ints(w, pieces), w->piece_hi = ints(w, pieces);
    w->type_pieces = zeros(w, w->types);
    i32 *begun = zeros(w, w->types), *next = ints(w, w->types);
    memcpy(next, w->type_first_step, w->types * sizeof(i32));
    long piece = 0;
    for (long group = 0; group < w->groups; group++) {
        w->piece_first[group] = piece;
        for (long s = w->group_first_step[group]; s < w->group_first_step[group + 1]; s++) {
            i32 t = w->listed_steps[s];
            for (long left = w->step_size[next[t]++]; left > 0; left -= most, piece++) {
                w->piece_type[piece] = t;
                w->piece_lo[piece] = begun[t];
                w->piece_hi[piece] = begun[t] += left < most ? left : most;
                w->type_pieces[t]++;
            }
        }
    }
    w->piece_first[w->groups] = piece;
}
