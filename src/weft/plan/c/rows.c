/* Which row each node has, and which rows each step runs: layout.py. */

/* Nodes are sorted by type, then step, then the way above them, longest first, then number: their key is the step and the way,
   or the step alone where there would be more keys than is good. Here they are counted. */
static void find_keys(Work *w) {
    long steps = w->steps, ways = w->top + 1, both = steps * ways;
    if (both > 4 * w->n + 4096) ways = 1, both = steps;
    i32 *starts = w->starts = zeros(w, both + 1), *key = w->key = ints(w, w->n);
    w->step_size = ints(w, steps);
    for (const Part *p = w->part; p < w->part + w->parts; p++) {
        const i32 *number = p->number, *code = p->code;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 first = w->type_first_step[run[RUN_TYPE]];
            for (const i32 *end = code + run[RUN_COUNT]; code && code < end; code++) {
                i32 way = ways > 1 ? w->top - (*code & MOST_IN_CODE) : 0;
                starts[*key++ = (first + (*code >> CODE_BITS)) * ways + way]++;
            }
            for (const i32 *end = number + run[RUN_COUNT]; !code && number < end; number++) {
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

/* Where each type's first outputs are a range of class rows, and arguments read first outputs alone, a node's place tells its row:
   less the type's shift. Returns 0 where that is not so for all types. */
static int find_shifts(Work *w, const i32 *plan) {
    w->shift = zeros(w, w->types);
    for (long t = 0; t < w->types; t++) {
        if (!w->count[t] || w->output_first[t] == w->output_first[t + 1]) continue;
        const i32 *place = plan + w->class_row_at[w->output_first[t]];
        if (place[w->count[t] - 1] - place[0] != w->count[t] - 1) return 0; /* places ascend */
        w->shift[t] = place[0];
    }
    return !w->part->out;
}

/* Where nodes come: their rows within their types, unless places tell them, and the class rows of their first outputs. */
typedef struct {
    i32 *row, *place;
} Where;

static void put_node(const Work *w, const i32 *plan, Where at, i32 t, i32 node, i32 row) {
    if (!at.row) {
        at.place[node] = row + w->shift[t];
        return;
    }
    at.row[node] = row;
    at.place[node] = w->output_first[t] == w->output_first[t + 1] ? row : plan[w->class_row_at[w->output_first[t]] + row];
}

/* The nodes of each type in the order of rows; and where each node comes. Mostly keys become rows. */
static void fill_rows(Work *w, i32 *plan, Where where) {
    const i32 *rows = plan + plan[AT_ROWS];
    i32 *starts = w->starts, *key = w->key, base = 0;
    if (w->steps * (w->top + 1) > 4 * w->n + 4096) {
        i32 *sorted = sort_by_way(w), *ordered = ints(w, w->n);
        for (long at = 0; at < w->n; at++) ordered[starts[w->key[at]]++] = sorted[at];
        for (long t = 0; t < w->types; t++) {
            i32 *mine = memcpy(plan + rows[t], ordered + w->first[t], w->count[t] * sizeof(i32));
            for (i32 at = 0; at < w->count[t]; at++) put_node(w, plan, where, t, mine[at], at);
        }
        return;
    }
    w->keys_are_rows = 1;
    for (const Part *p = w->part; p < w->part + w->parts; base += p++->n) {
        const i32 *number = p->number;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 t = run[RUN_TYPE], first = w->first[t], *mine = plan + rows[t];
            for (const i32 *end = number + run[RUN_COUNT]; number < end; number++) {
                i32 at = starts[*key]++ - first;
                mine[at] = base + *number, *key++ = at;
                put_node(w, plan, where, t, base + *number, at);
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
