/* Rows, value classes and what each port reads: layout.py. The plan comes back in one array of integers: tables, whose places
   are the first numbers of it, then the arrays. */

enum { GROUPS, PIECES, CLASSES, READS, TYPES, ROWS, ROW, STEPS, AT_GROUPS, AT_GROUP_TYPES, AT_FIRST, AT_OUTPUT_FIRST, AT_OUTPUTS,
       AT_CLASSES, AT_SPANS, AT_READS, HEADER };
enum { CYCLIC, TYPES_FROM, TYPES_TO, PIECES_FROM, PIECES_TO, OF_GROUP };
enum { OUT_TYPE, OUT_NUMBER, OUT_CLASS, OUT_ROWS, OF_OUTPUT };
enum { CLASS_ROWS, HAS_EMPTY, SPANS_FROM, SPANS_TO, OF_CLASS };
enum { SPAN_GROUP, SPAN_FIRST, SPAN_LAST, OF_SPAN }; /* class rows that a group writes */
enum { READ_TYPE, READ_PORT, READ_KIND, READ_WIDTH, READ_CLASS, READ_GROUP, RECURRENT, READ_LENGTH, READ_PIECES, READ_AT, OF_READ };

/* Nodes by type, then step, then the way above them, longest first, then number. */
static void find_rows(Work *w) {
    long n = w->n, steps = w->steps, top = 0;
    const i32 *type = w->type, *turn = w->turn, *above = w->above, *first_step = w->type_first_step;
    i32 *node = w->node = ints(w, n), *row = w->row = ints(w, n), *size = w->step_size = ints(w, steps);
    for (long i = 0; i < n; i++) top = above[i] > top ? above[i] : top;
    long both = steps * (top + 1);
    if (both <= 4 * n + 4096) { /* one pass by step and way together, else one pass by each */
        i32 *starts = zeros(w, both + 1), *key = row;
        for (long i = 0; i < n; i++) starts[key[i] = (first_step[type[i]] + turn[i]) * (top + 1) + top - above[i]]++;
        run_starts(starts, both);
        for (long s = 0; s < steps; s++) size[s] = starts[(s + 1) * (top + 1)] - starts[s * (top + 1)];
        for (long i = 0; i < n; i++) {
            i32 place = starts[key[i]]++;
            node[place] = i, row[i] = place - w->first[type[i]];
        }
        return;
    }
    i32 *ways = zeros(w, top + 2), *ranks = zeros(w, steps + 1), *by_way = ints(w, n);
    for (long i = 0; i < n; i++) ways[top - above[i]]++, ranks[first_step[type[i]] + turn[i]]++;
    memcpy(size, ranks, steps * sizeof(i32));
    run_starts(ways, top + 1);
    run_starts(ranks, steps);
    for (long i = 0; i < n; i++) by_way[ways[top - above[i]]++] = i;
    for (long at = 0; at < n; at++) {
        i32 i = by_way[at], place = ranks[first_step[type[i]] + turn[i]]++;
        node[place] = i, row[i] = place - w->first[type[i]];
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

/* Begin a plan. Returns NULL where the program is not sound, has a cycle, or memory or 32 bits do not suffice. */
Work *weft_plan(long n, long m, long types, const i32 *kinds, const i32 *type, const i32 *ptr, const i32 *src, const i32 *out,
                long policy, long max_rows, int64_t *sizes) {
    Work *w = calloc(1, sizeof(Work));
    if (!w) return NULL;
    w->n = n, w->m = m, w->types = types, w->max_rows = max_rows;
    w->type = type, w->ptr = ptr, w->src = src, w->out = out;
    w->outputs = kinds, w->port_ptr = kinds + types, w->port_kind = w->port_ptr + types + 1;
    w->position_ptr = w->port_kind + w->port_ptr[types], w->positions = w->position_ptr + w->port_ptr[types] + 1;
    if (setjmp(w->give_up) || !is_sound(w)) return release(w), NULL;
    count_types(w);
    if (!find_edges(w)) return release(w), NULL;
    find_groups(w, policy);
    find_levels(w);
    find_steps(w, policy);
    find_rows(w);
    find_pieces(w);
    find_sizes(w);
    if (w->total > INT32_MAX) return release(w), NULL;
    sizes[0] = w->total, sizes[1] = w->table;
    return w;
}

/* Union of outputs that one port reads together. */
static i32 find(i32 *parent, i32 output) {
    while (parent[output] != output) output = parent[output] = parent[parent[output]];
    return output;
}

/* What a pass over a port's arguments finds: its first output (-1: none at all), holes, and whether its own group feeds it. */
typedef struct {
    i32 first, has_empty, recurrent;
} Found;

typedef struct {
    i32 *parent, *seen, number, group;
} Outputs;

/* An output that a port had not met before. */
static void meet(Work *w, Outputs *o, Found *found, i32 type, i32 output) {
    if (output < w->output_first[type] || output >= w->output_first[type + 1]) longjmp(w->give_up, 1);
    o->seen[output] = o->number;
    if (found->first < 0) found->first = output;
    o->parent[find(o->parent, output)] = find(o->parent, found->first);
    found->recurrent |= w->cyclic[o->group] && w->group_of[type] == o->group;
}

/* Where the class row of what argument `at` names will be. */
static inline i32 place_of(Work *w, Outputs *o, Found *found, i32 at) {
    i32 source = w->src[at], type = w->type[source], output = w->output_first[type] + (w->out ? w->out[at] : 0);
    if ((uint32_t)output >= (uint32_t)w->num_outputs) longjmp(w->give_up, 1);
    if (o->seen[output] != o->number) meet(w, o, found, type, output);
    return w->class_row_first[output] + w->row[source];
}

/* Arguments and places of a port of fixed width, in the order of the type's rows, -1 where there is none; returns how many. */
static NOT_INLINE long find_slots(Work *w, Outputs *o, Found *found, i32 t, i32 port, i32 *arguments, i32 *places) {
    const i32 *positions = w->positions + w->position_ptr[port], *ptr = w->ptr, *src = w->src;
    i32 width = w->position_ptr[port + 1] - w->position_ptr[port], length = 0;
    for (i32 at = w->first[t]; at < w->first[t + 1]; at++) {
        i32 begin = ptr[w->node[at]], end = ptr[w->node[at] + 1];
        for (i32 slot = 0; slot < width; slot++, length++) {
            i32 k = positions[slot] < end - begin ? begin + positions[slot] : -1;
            int is_filled = k >= 0 && src[k] >= 0;
            arguments[length] = k;
            places[length] = is_filled ? place_of(w, o, found, k) : -1;
            found->has_empty |= !is_filled;
        }
    }
    return length;
}

/* The same for a port that takes all arguments from a position on, empty ones left out; `offsets` bounds each row's. */
static NOT_INLINE long find_bags(Work *w, Outputs *o, Found *found, i32 t, i32 port, i32 *arguments, i32 *places, i32 *offsets) {
    i32 position = w->positions[w->position_ptr[port]], length = 0;
    for (i32 at = w->first[t]; at < w->first[t + 1]; at++) {
        i32 begin = w->ptr[w->node[at]], end = w->ptr[w->node[at] + 1];
        *offsets++ = length;
        for (i32 k = begin + (position < end - begin ? position : end - begin); k < end; k++) {
            if (w->src[k] < 0) continue;
            arguments[length] = k;
            places[length++] = place_of(w, o, found, k);
        }
    }
    *offsets = length;
    return length;
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
    memcpy(plan + places[ROWS], w->node, w->n * sizeof(i32));
    memcpy(plan + places[ROW], w->row, w->n * sizeof(i32));
    memcpy(plan + places[STEPS], w->piece_type, w->pieces * sizeof(i32));
    memcpy(plan + places[STEPS] + w->pieces, w->piece_lo, w->pieces * sizeof(i32));
    memcpy(plan + places[STEPS] + 2 * w->pieces, w->piece_hi, w->pieces * sizeof(i32));
}

/* Everything about the reads that can be known before there are classes: arguments, places, bounds. */
static Found *fill_reads(Work *w, i32 *plan, i32 *parent, i32 *next) {
    Outputs outputs = {parent, filled(w, w->num_outputs, -1), 0, 0};
    Found *found = take(w, w->reads, sizeof(Found));
    i32 *entry = plan + plan[AT_READS];
    for (long t = 0; t < w->types; t++) {
        if (!w->count[t]) continue;
        for (i32 port = w->port_ptr[t]; port < w->port_ptr[t + 1]; port++, outputs.number++, entry += OF_READ) {
            Found *mine = found + outputs.number;
            *mine = (Found){-1, 0, 0};
            outputs.group = w->group_of[t];
            i32 kind = w->port_kind[port], width = kind == SLOTS ? w->position_ptr[port + 1] - w->position_ptr[port] : 1;
            long room = kind == SLOTS ? (long)width * w->count[t] : w->arguments[t];
            i32 *offsets = next + 2 * room;
            long length = kind == SLOTS ? find_slots(w, &outputs, mine, t, port, next, next + room)
                                        : find_bags(w, &outputs, mine, t, port, next, next + room, offsets);
            i32 *bounds = kind == SLOTS ? offsets : offsets + w->count[t] + 1;
            long pieces = fill_bounds(w, t, mine->recurrent, bounds);
            i32 made[] = {t, port - w->port_ptr[t], kind, width, -1, w->group_of[t], mine->recurrent, length, pieces, next - plan};
            memcpy(entry, made, sizeof(made));
            if (length < room) {
                memmove(next + length, next + room, length * sizeof(i32));
                memmove(next + 2 * length, offsets, (bounds + pieces + 1 - offsets) * sizeof(i32));
            }
            next += 2 * length + (bounds - offsets) + 2 * pieces + 1;
        }
    }
    return found;
}

/* From places to class rows, and which pieces of them are slices. */
static void fill_index(Work *w, i32 *plan, const Found *found, const i32 *class_rows) {
    i32 *entry = plan + plan[AT_READS];
    for (long read = 0; read < w->reads; read++, entry += OF_READ) {
        long length = entry[READ_LENGTH];
        i32 *index = plan + entry[READ_AT] + length, *offsets = entry[READ_KIND] == SLOTS ? NULL : index + length;
        i32 *bounds = offsets ? offsets + w->count[entry[READ_TYPE]] + 1 : index + length, *slices = bounds + entry[READ_PIECES] + 1;
        if (found[read].first < 0) { /* a port that finds nothing at all reads zeros, and belongs to no class */
            memset(index, 0, length * sizeof(i32));
            slices[0] = -1;
            continue;
        }
        entry[READ_CLASS] = plan[plan[AT_OUTPUTS] + found[read].first * OF_OUTPUT + OUT_CLASS];
        i32 *class = plan + plan[AT_CLASSES] + entry[READ_CLASS] * OF_CLASS, end = class[CLASS_ROWS];
        class[HAS_EMPTY] |= found[read].has_empty;
        for (long at = 0; at < length; at++) index[at] = index[at] < 0 ? end : class_rows[index[at]];
        find_slices(index, offsets, entry[READ_WIDTH], bounds, entry[READ_PIECES], end, slices);
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
    Found *found = fill_reads(w, plan, parent, class_rows + w->class_rows);
    fill_classes(w, plan, parent, class_rows);
    fill_index(w, plan, found, class_rows);
    release(w);
    return 1;
}
