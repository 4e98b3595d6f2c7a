/* Which row each node has, and which rows each step runs: layout.py. */

/* A node and its key, as one number. */
static u64 as_keyed(uint32_t key, uint32_t node) { return (u64)node << 32 | key; }
static uint32_t key_of(u64 keyed) { return keyed; }
static uint32_t node_of(u64 keyed) { return keyed >> 32; }

/* The keys of a part's nodes, of which `base` come before: `first` has that of each type's first step. Counts them in `starts`. */
static NOT_INLINE void key_nodes(const Part *p, const i32 *first, i32 ways, i32 has_ways, i32 base, u64 *restrict keyed,
                                 i32 *restrict starts) {
    const i32 *number = p->number;
    for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
        for (const i32 *end = number + run[RUN_COUNT]; number < end; number++) {
            i32 key = first[run[RUN_TYPE]] + p->turn[*number] * ways - (has_ways ? p->above[*number] : 0);
            *keyed++ = as_keyed(key, base + *number), starts[key]++;
        }
    }
}

/* The same for nodes in brief: `step_key` has the key of each step, as these are numbered in brief. */
static NOT_INLINE void key_briefly(const Brief *restrict brief, long n, const i32 *restrict step_key, i32 base, u64 *restrict keyed,
                                   i32 *restrict starts) {
    for (long i = 0; i < n; i++) {
        uint32_t key = step_key[brief[i].step] - brief[i].above;
        keyed[i] = as_keyed(key, base + brief[i].number), starts[key]++;
    }
}

/* Nodes are sorted by type, then step, then the way above them, longest first, then number: their key is the step and the way,
   or the step alone where there would be more keys than is good. Here they are counted. */
static void find_keys(Work *w) {
    long steps = w->steps, ways = w->top + 1;
    if (steps * ways > 4 * w->n + 4096) ways = 1;
    int has_ways = ways == w->top + 1;
    w->ways = ways;
    i32 *starts = w->starts = zeros(w, steps * ways + 1), *first = ints(w, w->types), base = 0;
    u64 *keyed = w->keyed = take(w, w->n, sizeof(u64));
    i32 *step_key = ints(w, (w->brief_top + 1) * w->types);
    for (long t = 0; t < w->types; t++) {
        first[t] = w->type_first_step[t] * ways + ways - 1;
        for (long turn = 0; turn <= w->brief_top; turn++) step_key[turn * w->types + t] = first[t] + turn * ways;
    }
    for (long i = 0; i < w->parts; base += w->part[i++]->n) {
        const Part *p = w->part[i];
        approach_part(w, i + 2);
        if (p->brief && has_ways) key_briefly(p->brief, p->n, step_key, base, keyed + base, starts);
        else key_nodes(p, first, ways, has_ways, base, keyed + base, starts);
    }
    run_starts(starts, steps * ways);
    w->step_size = ints(w, steps);
    for (long s = 0; s < steps; s++) w->step_size[s] = starts[(s + 1) * ways] - starts[s * ways];
}

/* The nodes of all types in the order of rows, where keys do not tell the way above them: they are sorted by it first, longest first. */
static i32 *order_by_way(Work *w) {
    i32 *ways = zeros(w, w->top + 2), *ordered = ints(w, w->n);
    u64 *sorted = take(w, w->n, sizeof(u64));
    for (int placing = 0; placing < 2; placing++) {
        long at = 0;
        for (long part = 0; part < w->parts; part++) {
            const Part *p = w->part[part];
            for (long i = 0; i < p->n; i++, at++) {
                i32 *place = ways + w->top - p->above[p->number[i]];
                if (placing) sorted[*place] = w->keyed[at];
                ++*place;
            }
        }
        if (!placing) run_starts(ways, w->top + 1);
    }
    for (long at = 0; at < w->n; at++) ordered[w->starts[key_of(sorted[at])]++] = node_of(sorted[at]);
    return ordered;
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
    return !w->part[0]->out;
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

/* Two numbers that are counted on together: a place in the plan, and a class row. */
enum { CLASS_ROW = 32 };
static const u64 NEXT = (u64)1 << CLASS_ROW | 1;

/* Where the nodes of each key start: in the plan, and in the class of their first output. */
static u64 *find_places(Work *w, const i32 *plan) {
    u64 *next = take(w, w->steps * w->ways, sizeof(u64));
    for (long t = 0; t < w->types; t++) {
        u64 type = (u64)w->shift[t] << CLASS_ROW | plan[plan[AT_ROWS] + t];
        for (long at = w->type_first_step[t] * w->ways; at < w->type_first_step[t + 1] * w->ways; at++)
            next[at] = type + (w->starts[at] - w->first[t]) * NEXT;
    }
    return next;
}

/* Put nodes where the next one of their key comes. */
static NOT_INLINE void put_nodes(const u64 *restrict keyed, long n, u64 *restrict next, i32 *restrict plan, i32 *restrict place) {
    for (long i = 0; i < n; i++) {
        uint32_t key = key_of(keyed[i]), node = node_of(keyed[i]);
        u64 here = next[key];
        next[key] = here + NEXT;
        plan[(uint32_t)here] = node, place[node] = here >> CLASS_ROW;
    }
}

/* The nodes of each type in the order of rows; and where each node comes. */
static void fill_rows(Work *w, i32 *plan, Where where) {
    const i32 *rows = plan + plan[AT_ROWS], *ordered = w->ways == w->top + 1 ? NULL : order_by_way(w);
    if (!ordered) put_nodes(w->keyed, w->n, find_places(w, plan), plan, where.place);
    for (long t = 0; t < w->types && (ordered || where.row); t++) {
        i32 *mine = plan + rows[t];
        if (ordered) memcpy(mine, ordered + w->first[t], w->count[t] * sizeof(i32));
        for (i32 at = 0; at < w->count[t]; at++) put_node(w, plan, where, t, mine[at], at);
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
