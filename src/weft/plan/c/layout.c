/* Rows, value classes and what each port reads: layout.py. The plan comes back in one array of integers: tables, whose places
   are the first numbers of it, then the arrays. */

enum { GROUPS, PIECES, CLASSES, READS, TYPES, ROWS, ROW, STEPS, AT_GROUPS, AT_GROUP_TYPES, AT_FIRST, AT_OUTPUT_FIRST, AT_OUTPUTS,
       AT_CLASSES, AT_SPANS, AT_READS, HEADER };
enum { CYCLIC, TYPES_FROM, TYPES_TO, PIECES_FROM, PIECES_TO, OF_GROUP };
enum { OUT_TYPE, OUT_NUMBER, OUT_CLASS, OUT_ROWS, OF_OUTPUT };
enum { CLASS_ROWS, HAS_EMPTY, SPANS_FROM, SPANS_TO, OF_CLASS };
enum { SPAN_GROUP, SPAN_FIRST, SPAN_LAST, OF_SPAN }; /* class rows that a group writes */
enum { READ_TYPE, READ_PORT, READ_KIND, READ_WIDTH, READ_CLASS, READ_GROUP, RECURRENT, READ_LENGTH, READ_PIECES, READ_AT, OF_READ };

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

/* The nodes in the order of rows, and for each node its row within its type. */
static void fill_rows(Work *w, i32 *node, i32 *row) {
    i32 *starts = w->starts, *key = w->key, base = 0;
    if (w->steps * (w->top + 1) > 4 * w->n + 4096) {
        i32 *sorted = sort_by_way(w);
        for (long at = 0; at < w->n; at++) node[starts[w->key[at]]++] = sorted[at];
        for (long t = 0; t < w->types; t++)
            for (i32 at = w->first[t]; at < w->first[t + 1]; at++) row[node[at]] = at - w->first[t];
        return;
    }
    for (const Part *p = w->part; p < w->part + w->parts; base += p++->n) {
        const i32 *number = p->number;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 first = w->first[run[RUN_TYPE]];
            for (const i32 *end = number + run[RUN_COUNT]; number < end; number++) {
                i32 place = starts[*key++]++;
                node[place] = base + *number, row[base + *number] = place - first;
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

/* Number the outputs that can be read, and find how much room the plan needs at most. */
static void find_sizes(Work *w) {
    long outputs = 0, class_rows = 0, arrays = 0, reads = 0;
    w->output_first = ints(w, w->types + 1);
    for (long t = 0; t < w->types; t++) {
        w->output_first[t] = outputs;
        if (!w->count[t]) continue;
        outputs += w->outputs[t];
        class_rows += (long)w->outputs[t] * w->count[t];
        for (i32 p = w->port_ptr[t]; p < w->port_ptr[t + 1]; p++, reads++) {
            long width = w->position_ptr[p + 1] - w->position_ptr[p], rows = w->count[t];
            arrays += w->port_kind[p] == SLOTS ? 2 * width * rows : 2 * (long)w->arguments[t] + rows + 1;
            arrays += 2 * (long)w->type_pieces[t] + 1;
        }
    }
    w->output_first[w->types] = outputs;
    w->num_outputs = outputs, w->class_rows = class_rows, w->reads = reads;
    w->table = HEADER + OF_GROUP * w->groups + w->group_ptr[w->groups] + 2 * (w->types + 1) + reads * OF_READ
               + outputs * (OF_OUTPUT + OF_CLASS + OF_SPAN);
    w->total = w->table + 2 * w->n + 3 * w->pieces + class_rows + arrays;
}

/* From steps to the size of the plan, which goes to `sizes`. Returns 0 where 32 bits do not suffice. */
static int measure(Work *w, int64_t *sizes) {
    find_keys(w);
    find_pieces(w);
    find_sizes(w);
    sizes[0] = w->total, sizes[1] = w->table;
    return w->total <= INT32_MAX;
}

/* All of a program as one part. */
static void make_part(Work *w) {
    i32 *runs = ints(w, w->types * OF_RUN), types = 0;
    for (long t = 0; t < w->types; t++)
        if (w->count[t]) runs[types * OF_RUN + RUN_TYPE] = t, runs[types++ * OF_RUN + RUN_COUNT] = w->count[t];
    w->part = take(w, 1, sizeof(Part)), w->parts = 1;
    *w->part = (Part){w->n, w->m, types, runs, w->of_type, w->type, w->ptr, w->src, w->out, w->turn, w->above};
}

/* Begin a plan. Returns NULL where the program is not sound, has a cycle, or memory or 32 bits do not suffice. */
Work *weft_plan(long n, long m, long types, const i32 *kinds, const i32 *type, const i32 *ptr, const i32 *src, const i32 *out,
                long policy, long max_rows, int64_t *sizes) {
    Work *w = begin(types, kinds, max_rows);
    if (!w) return NULL;
    w->n = n, w->m = m, w->type = type, w->ptr = ptr, w->src = src, w->out = out;
    if (setjmp(w->give_up) || !is_sound(w)) return release(w), NULL;
    count_types(w);
    sort_by_type(w);
    if (!find_edges(w)) return release(w), NULL;
    find_feeds(w);
    find_groups(w, policy);
    find_levels(w);
    count_levels(w);
    find_steps(w, policy);
    make_part(w);
    return measure(w, sizes) ? w : (release(w), NULL);
}

/* Union of outputs that one port reads together. */
static i32 find(i32 *parent, i32 output) {
    while (parent[output] != output) output = parent[output] = parent[parent[output]];
    return output;
}

/* One port of one type: what it gathers, for each row of the type. A pass over its arguments finds its first output (-1: none at
   all), holes, and whether its own group feeds it. */
typedef struct {
    i32 type, kind, width, group, number;
    const i32 *positions;
    i32 *arguments, *places, *offsets; /* `offsets` bounds each row's, where it takes any number */
    i32 first, has_empty, recurrent;
} Gather;

typedef struct {
    i32 *parent, *seen;
} Outputs;

/* An output that a port had not met before. */
static void meet(Work *w, Outputs *o, Gather *g, i32 type, i32 output) {
    if (output < w->output_first[type] || output >= w->output_first[type + 1]) longjmp(w->give_up, 1);
    o->seen[output] = g->number;
    if (g->first < 0) g->first = output;
    o->parent[find(o->parent, output)] = find(o->parent, g->first);
    g->recurrent |= w->cyclic[g->group] && w->group_of[type] == g->group;
}

/* Where the class row of what argument `at` names will be. `row`: the rows of the part's nodes. */
static inline i32 place_of(Work *w, Outputs *o, Gather *g, const Part *p, const i32 *row, i32 at) {
    i32 source = p->src[at], type = p->type[source], output = w->output_first[type] + (p->out ? p->out[at] : 0);
    if ((uint32_t)output >= (uint32_t)w->num_outputs) longjmp(w->give_up, 1);
    if (o->seen[output] != g->number) meet(w, o, g, type, output);
    return w->class_row_first[output] + row[source];
}

/* Arguments and places of a port of fixed width for these nodes of a part, -1 where there is none. */
static NOT_INLINE void gather_slots(Work *w, Outputs *o, Gather *g, const Part *p, const i32 *row, i32 before, const i32 *number,
                                    long count) {
    const i32 *positions = g->positions, *ptr = p->ptr, *src = p->src;
    i32 width = g->width, has_empty = 0;
    for (long i = 0; i < count; i++) {
        i32 node = number[i], begin = ptr[node], end = ptr[node + 1], *argument = g->arguments + (long)row[node] * width;
        i32 *place = g->places + (long)row[node] * width;
        for (i32 slot = 0; slot < width; slot++) {
            i32 k = positions[slot] < end - begin ? begin + positions[slot] : -1;
            int is_filled = k >= 0 && src[k] >= 0;
            argument[slot] = k < 0 ? -1 : before + k;
            place[slot] = is_filled ? place_of(w, o, g, p, row, k) : -1;
            has_empty |= !is_filled;
        }
    }
    g->has_empty |= has_empty;
}

/* How many arguments a port that takes all from a position on, empty ones left out, finds for each of these nodes. */
static NOT_INLINE void count_bags(Gather *g, const Part *p, const i32 *row, const i32 *number, long count) {
    for (long i = 0; i < count; i++) {
        i32 found = 0;
        for (i32 k = p->ptr[number[i]] + g->positions[0]; k < p->ptr[number[i] + 1]; k++) found += p->src[k] >= 0;
        g->offsets[row[number[i]]] = found;
    }
}

/* The same as for slots, where `offsets` is known. */
static NOT_INLINE void gather_bags(Work *w, Outputs *o, Gather *g, const Part *p, const i32 *row, i32 before, const i32 *number,
                                   long count) {
    for (long i = 0; i < count; i++) {
        i32 at = g->offsets[row[number[i]]];
        for (i32 k = p->ptr[number[i]] + g->positions[0]; k < p->ptr[number[i] + 1]; k++) {
            if (p->src[k] < 0) continue;
            g->arguments[at] = before + k;
            g->places[at++] = place_of(w, o, g, p, row, k);
        }
    }
}

/* For each piece of an index its first entry if it counts up by one and never reaches `stop`, else -1; 0 if it is empty. */
static void find_slices(const i32 *index, const i32 *offsets, i32 width, const i32 *bounds, long pieces, i32 stop, i32 *slices) {
    for (long piece = 0; piece < pieces; piece++) {
        long begin = offsets ? offsets[bounds[piece]] : (long)bounds[piece] * width;
        long end = offsets ? offsets[bounds[piece + 1]] : (long)bounds[piece + 1] * width;
        long at = begin + 1;
        while (at < end && index[at] == index[at - 1] + 1) at++;
        slices[piece] = begin == end ? 0 : at == end && index[end - 1] < stop ? index[begin] : -1;
    }
}

/* Classes: outputs joined by ports, numbered in the order of their first members. Rows follow the steps. */
static void fill_classes(Work *w, i32 *plan, i32 *parent, i32 *class_rows) {
    i32 *outputs = plan + plan[AT_OUTPUTS], *classes = plan + plan[AT_CLASSES], *spans = plan + plan[AT_SPANS];
    i32 *class_of = filled(w, w->num_outputs, -1), *size = zeros(w, w->num_outputs), *members = zeros(w, w->num_outputs), many = 0;
    for (long t = 0; t < w->types; t++) {
        for (i32 o = w->output_first[t]; o < w->output_first[t + 1]; o++) {
            i32 root = find(parent, o);
            if (class_of[root] < 0) class_of[root] = many++;
            members[class_of[root]]++;
            i32 *entry = outputs + (long)o * OF_OUTPUT;
            entry[OUT_TYPE] = t, entry[OUT_NUMBER] = o - w->output_first[t], entry[OUT_CLASS] = class_of[root];
            entry[OUT_ROWS] = (class_rows - plan) + w->class_row_first[o];
        }
    }
    plan[CLASSES] = many;
    for (i32 c = 0, at = 0; c < many; at += members[c++])
        classes[c * OF_CLASS + HAS_EMPTY] = 0, classes[c * OF_CLASS + SPANS_FROM] = classes[c * OF_CLASS + SPANS_TO] = at;
    for (long group = 0; group < w->groups; group++) {
        for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++) {
            for (i32 t = w->group_types[g], o = w->output_first[t]; o < w->output_first[t + 1]; o++) {
                i32 c = outputs[(long)o * OF_OUTPUT + OUT_CLASS], *last = classes + c * OF_CLASS + SPANS_TO;
                if (*last > last[SPANS_FROM - SPANS_TO] && spans[(*last - 1) * OF_SPAN + SPAN_GROUP] == group) continue;
                spans[(*last)++ * OF_SPAN + SPAN_GROUP] = group;
                spans[(*last - 1) * OF_SPAN + SPAN_FIRST] = size[c];
            }
        }
        for (i32 piece = w->piece_first[group]; piece < w->piece_first[group + 1]; piece++) {
            i32 t = w->piece_type[piece];
            for (i32 o = w->output_first[t]; o < w->output_first[t + 1]; o++) {
                i32 *row = class_rows + w->class_row_first[o], c = outputs[(long)o * OF_OUTPUT + OUT_CLASS];
                i32 shift = size[c] - w->piece_lo[piece];
                for (i32 at = w->piece_lo[piece]; at < w->piece_hi[piece]; at++) row[at] = at + shift;
                size[c] += w->piece_hi[piece] - w->piece_lo[piece];
            }
        }
        for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++) {
            for (i32 t = w->group_types[g], o = w->output_first[t]; o < w->output_first[t + 1]; o++) {
                i32 c = outputs[(long)o * OF_OUTPUT + OUT_CLASS];
                spans[(classes[c * OF_CLASS + SPANS_TO] - 1) * OF_SPAN + SPAN_LAST] = size[c];
            }
        }
    }
    for (i32 c = 0; c < many; c++) classes[c * OF_CLASS + CLASS_ROWS] = size[c];
}

/* The row ranges over which a read is cut: the type's steps if it is recurrent, else all rows at once. */
static long fill_bounds(const Work *w, i32 t, int recurrent, i32 *bounds) {
    long pieces = 0;
    bounds[0] = 0;
    if (!recurrent) return bounds[1] = w->count[t], 1;
    for (i32 piece = w->piece_first[w->group_of[t]]; piece < w->piece_first[w->group_of[t] + 1]; piece++)
        if (w->piece_type[piece] == t) bounds[++pieces] = w->piece_hi[piece];
    return pieces;
}

static void fill_tables(Work *w, i32 *plan) {
    i32 places[HEADER] = {w->groups, w->pieces, 0, w->reads, w->types};
    places[AT_GROUPS] = HEADER;
    places[AT_GROUP_TYPES] = places[AT_GROUPS] + OF_GROUP * w->groups;
    places[AT_FIRST] = places[AT_GROUP_TYPES] + w->group_ptr[w->groups];
    places[AT_OUTPUT_FIRST] = places[AT_FIRST] + w->types + 1;
    places[AT_OUTPUTS] = places[AT_OUTPUT_FIRST] + w->types + 1;
    places[AT_CLASSES] = places[AT_OUTPUTS] + OF_OUTPUT * w->num_outputs;
    places[AT_SPANS] = places[AT_CLASSES] + OF_CLASS * w->num_outputs;
    places[AT_READS] = places[AT_SPANS] + OF_SPAN * w->num_outputs;
    places[ROWS] = w->table;
    places[ROW] = places[ROWS] + w->n;
    places[STEPS] = places[ROW] + w->n;
    memset(plan, 0, w->table * sizeof(i32));
    memcpy(plan, places, sizeof(places));
    for (long g = 0; g < w->groups; g++) {
        i32 made[] = {w->cyclic[g], w->group_ptr[g], w->group_ptr[g + 1], w->piece_first[g], w->piece_first[g + 1]};
        memcpy(plan + places[AT_GROUPS] + OF_GROUP * g, made, sizeof(made));
    }
    memcpy(plan + places[AT_GROUP_TYPES], w->group_types, w->group_ptr[w->groups] * sizeof(i32));
    memcpy(plan + places[AT_FIRST], w->first, (w->types + 1) * sizeof(i32));
    memcpy(plan + places[AT_OUTPUT_FIRST], w->output_first, (w->types + 1) * sizeof(i32));
    fill_rows(w, plan + places[ROWS], plan + places[ROW]);
    memcpy(plan + places[STEPS], w->piece_type, w->pieces * sizeof(i32));
    memcpy(plan + places[STEPS] + w->pieces, w->piece_lo, w->pieces * sizeof(i32));
    memcpy(plan + places[STEPS] + 2 * w->pieces, w->piece_hi, w->pieces * sizeof(i32));
}

enum { COUNT, GATHER };

/* Go through all arguments of all parts, port by port: count those of ports that take any number, or gather all. */
static void pass_arguments(Work *w, Outputs *o, Gather *gathers, const i32 *gather_first, const i32 *row, int what) {
    i32 before = 0;
    for (const Part *p = w->part; p < w->part + w->parts; before += p->m, row += p++->n) {
        const i32 *number = p->number;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; number += run[RUN_COUNT], run += OF_RUN) {
            for (i32 at = gather_first[run[RUN_TYPE]]; at < gather_first[run[RUN_TYPE] + 1]; at++) {
                Gather *g = gathers + at;
                if (what == COUNT && g->offsets) count_bags(g, p, row, number, run[RUN_COUNT]);
                if (what == GATHER && g->offsets) gather_bags(w, o, g, p, row, before, number, run[RUN_COUNT]);
                if (what == GATHER && !g->offsets) gather_slots(w, o, g, p, row, before, number, run[RUN_COUNT]);
            }
        }
    }
}

/* The ports of all types that have nodes; returns where each type's start. */
static i32 *list_gathers(Work *w, Gather *gathers) {
    i32 *first = ints(w, w->types + 1), found = 0;
    for (long t = 0; t < w->types; t++) {
        first[t] = found;
        for (i32 port = w->port_ptr[t]; w->count[t] && port < w->port_ptr[t + 1]; port++, found++) {
            i32 kind = w->port_kind[port], width = kind == SLOTS ? w->position_ptr[port + 1] - w->position_ptr[port] : 1;
            gathers[found] = (Gather){t, kind, width, w->group_of[t], found, w->positions + w->position_ptr[port]};
            gathers[found].first = -1;
            if (kind != SLOTS) gathers[found].offsets = zeros(w, w->count[t] + 1);
        }
    }
    first[w->types] = found;
    return first;
}

/* Everything about the reads that can be known before there are classes: arguments, places, bounds. */
static Gather *fill_reads(Work *w, i32 *plan, i32 *parent, i32 *next) {
    Outputs outputs = {parent, filled(w, w->num_outputs, -1)};
    Gather *gathers = take(w, w->reads, sizeof(Gather));
    i32 *first = list_gathers(w, gathers), *entry = plan + plan[AT_READS], bags = 0;
    const i32 *row = plan + plan[ROW];
    for (long at = 0; at < w->reads; at++) bags |= gathers[at].kind != SLOTS;
    if (bags) pass_arguments(w, &outputs, gathers, first, row, COUNT);
    for (Gather *g = gathers; g < gathers + w->reads; g++, entry += OF_READ) {
        long rows = w->count[g->type], length = rows * g->width;
        if (g->offsets) run_starts(g->offsets, rows), length = g->offsets[rows];
        i32 made[] = {g->type, g->number - first[g->type], g->kind, g->width, -1, g->group, 0, length, 0, next - plan};
        memcpy(entry, made, sizeof(made));
        g->arguments = next, g->places = next + length, next += 2 * length;
        if (g->offsets) g->offsets = memcpy(next, g->offsets, (rows + 1) * sizeof(i32)), next += rows + 1;
        next += 2 * w->type_pieces[g->type] + 1;
    }
    pass_arguments(w, &outputs, gathers, first, row, GATHER);
    return gathers;
}

/* From places to class rows, and which pieces of them are slices. */
static void fill_index(Work *w, i32 *plan, const Gather *gathers, const i32 *class_rows) {
    i32 *entry = plan + plan[AT_READS];
    for (long read = 0; read < w->reads; read++, entry += OF_READ) {
        long length = entry[READ_LENGTH];
        i32 *index = plan + entry[READ_AT] + length, *offsets = entry[READ_KIND] == SLOTS ? NULL : index + length;
        i32 *bounds = offsets ? offsets + w->count[entry[READ_TYPE]] + 1 : index + length;
        entry[RECURRENT] = gathers[read].recurrent;
        i32 pieces = entry[READ_PIECES] = fill_bounds(w, entry[READ_TYPE], entry[RECURRENT], bounds), *slices = bounds + pieces + 1;
        if (gathers[read].first < 0) { /* a port that finds nothing at all reads zeros, and belongs to no class */
            memset(index, 0, length * sizeof(i32));
            slices[0] = -1;
            continue;
        }
        entry[READ_CLASS] = plan[plan[AT_OUTPUTS] + gathers[read].first * OF_OUTPUT + OUT_CLASS];
        i32 *class = plan + plan[AT_CLASSES] + entry[READ_CLASS] * OF_CLASS, end = class[CLASS_ROWS];
        class[HAS_EMPTY] |= gathers[read].has_empty;
        for (long at = 0; at < length; at++) index[at] = index[at] < 0 ? end : class_rows[index[at]];
        find_slices(index, offsets, entry[READ_WIDTH], bounds, pieces, end, slices);
    }
}

/* Complete a plan in `plan`, which has room for it, and let the work go. Returns 0 if it had to be given up. */
int weft_fill(Work *w, i32 *plan) {
    if (setjmp(w->give_up)) return release(w), 0;
    fill_tables(w, plan);
    i32 *class_rows = plan + plan[STEPS] + 3 * w->pieces, *parent = ints(w, w->num_outputs);
    w->class_row_first = ints(w, w->num_outputs);
    for (long t = 0, o = 0, rows = 0; t < w->types; t++)
        for (; o < w->output_first[t + 1]; o++, rows += w->count[t]) parent[o] = o, w->class_row_first[o] = rows;
    Gather *gathers = fill_reads(w, plan, parent, class_rows + w->class_rows);
    fill_classes(w, plan, parent, class_rows);
    fill_index(w, plan, gathers, class_rows);
    release(w);
    return 1;
}
