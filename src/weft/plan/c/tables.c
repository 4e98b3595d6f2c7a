/* A plan as one array of integers: tables, whose places are the first numbers of it, then the arrays. First come those that a device
   reads, up to DEVICE_END. Every array starts at a multiple of four numbers. */

enum { GROUPS, PIECES, CLASSES, READS, TYPES, STEPS, DEVICE_END, AT_GROUPS, AT_GROUP_TYPES, AT_ROWS, AT_COUNTS, AT_OUTPUT_FIRST,
       AT_OUTPUTS, AT_CLASSES, AT_SPANS, AT_READS, AT_SHAPE, AT_VIEWS, TABLE_END, PLAN_END, BACK_ROOM, HAS_BACK, HEADER };
enum { CYCLIC, TYPES_FROM, TYPES_TO, PIECES_FROM, PIECES_TO, STEP_TABLE, OF_GROUP };
enum { OUT_TYPE, OUT_NUMBER, OUT_CLASS, OUT_ROWS, OF_OUTPUT };
enum { CLASS_ROWS, HAS_EMPTY, SPANS_FROM, SPANS_TO, OF_CLASS };
enum { SPAN_GROUP, SPAN_FIRST, SPAN_LAST, OF_SPAN }; /* class rows that a group writes */
enum { READ_TYPE, READ_PORT, READ_KIND, READ_WIDTH, READ_CLASS, READ_GROUP, RECURRENT, READ_LENGTH, READ_PIECES, READ_INDEX, READ_OFFSETS,
       READ_OWNERS, READ_BOUNDS, OF_READ };
enum { STEP_LO, STEP_HI, EDGE_LO, EDGE_HI, NUMBER_IN_GROUP, FIXED }; /* a line of a step table: run/gpu/table.py */

/* Room for an array. */
static long padded(long count) { return (count + 3) & ~3L; }

/* Number the outputs that can be read. */
static void find_outputs(Work *w) {
    long outputs = 0;
    w->output_first = ints(w, w->types + 1);
    for (long t = 0; t < w->types; t++) {
        w->output_first[t] = outputs;
        outputs += w->count[t] ? w->outputs[t] : 0;
        w->reads += w->count[t] ? w->port_ptr[t + 1] - w->port_ptr[t] : 0;
    }
    w->num_outputs = w->output_first[w->types] = outputs;
}

/* Numbers of a line of a group's step table. */
static long table_width(const Work *w, long group) {
    long width = FIXED;
    for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++) width += 2 * w->outputs[w->group_types[g]];
    return width;
}

/* How much room the plan needs at most: the tables, the arrays of the device, those of the host. */
static void find_sizes(Work *w) {
    long device = 0, host = 3 * padded(w->pieces);
    for (long t = 0; t < w->types; t++) {
        long rows = w->count[t];
        if (!rows) continue;
        device += padded(rows), host += w->outputs[t] * padded(rows);
        for (i32 p = w->port_ptr[t]; p < w->port_ptr[t + 1]; p++) {
            long width = w->position_ptr[p + 1] - w->position_ptr[p];
            device += w->port_kind[p] == SLOTS ? padded(width * rows) : 2 * padded(w->arguments[t]) + padded(rows + 1);
            host += padded(2 * (long)w->type_pieces[t] + 1);
        }
    }
    for (long group = 0; group < w->groups; group++)
        if (w->cyclic[group]) device += padded((w->piece_first[group + 1] - w->piece_first[group]) * table_width(w, group));
    long shape = 5 + 2 * w->groups + 2 * w->types + 5 * w->num_outputs + 8 * w->reads;
    long views = 2 * (3 * w->groups + w->types + w->num_outputs + 4 * w->reads) + w->num_outputs;
    views += 3 * w->groups + w->num_outputs + 2 * w->reads;
    w->table = padded(HEADER + OF_GROUP * w->groups + w->group_ptr[w->groups] + 3 * w->types + 1 + w->reads * OF_READ
                      + w->num_outputs * (OF_OUTPUT + OF_CLASS + OF_SPAN) + shape + views);
    w->device = w->table + device, w->total = w->device + host;
}

/* The tables, as far as they are known, and where the rows of each type are, which come first. Returns what follows. */
static i32 *fill_tables(Work *w, i32 *plan) {
    i32 places[HEADER] = {w->groups, w->pieces, 0, w->reads, w->types};
    places[AT_GROUPS] = HEADER;
    places[AT_GROUP_TYPES] = places[AT_GROUPS] + OF_GROUP * w->groups;
    places[AT_ROWS] = places[AT_GROUP_TYPES] + w->group_ptr[w->groups];
    places[AT_COUNTS] = places[AT_ROWS] + w->types;
    places[AT_OUTPUT_FIRST] = places[AT_COUNTS] + w->types;
    places[AT_OUTPUTS] = places[AT_OUTPUT_FIRST] + w->types + 1;
    places[AT_CLASSES] = places[AT_OUTPUTS] + OF_OUTPUT * w->num_outputs;
    places[AT_SPANS] = places[AT_CLASSES] + OF_CLASS * w->num_outputs;
    places[AT_READS] = places[AT_SPANS] + OF_SPAN * w->num_outputs;
    places[AT_SHAPE] = places[AT_READS] + OF_READ * w->reads;
    memset(plan, 0, w->table * sizeof(i32));
    memcpy(plan, places, sizeof(places));
    for (long g = 0; g < w->groups; g++) {
        i32 made[] = {w->cyclic[g], w->group_ptr[g], w->group_ptr[g + 1], w->piece_first[g], w->piece_first[g + 1]};
        memcpy(plan + places[AT_GROUPS] + OF_GROUP * g, made, sizeof(made));
    }
    memcpy(plan + places[AT_GROUP_TYPES], w->group_types, w->group_ptr[w->groups] * sizeof(i32));
    memcpy(plan + places[AT_COUNTS], w->count, w->types * sizeof(i32));
    memcpy(plan + places[AT_OUTPUT_FIRST], w->output_first, (w->types + 1) * sizeof(i32));
    i32 *next = plan + w->table;
    for (long t = 0; t < w->types; next += padded(w->count[t++])) plan[places[AT_ROWS] + t] = next - plan;
    return next;
}

/* The steps, and where the class rows are. Returns what follows. */
static i32 *fill_steps(Work *w, i32 *plan, i32 *next) {
    const i32 *columns[] = {w->piece_type, w->piece_lo, w->piece_hi};
    plan[STEPS] = next - plan;
    for (int i = 0; i < 3; i++, next += padded(w->pieces)) memcpy(next, columns[i], w->pieces * sizeof(i32));
    w->class_row_at = ints(w, w->num_outputs);
    for (long t = 0; t < w->types; t++)
        for (i32 o = w->output_first[t]; o < w->output_first[t + 1]; o++, next += padded(w->count[t])) w->class_row_at[o] = next - plan;
    return next;
}

/* Union of outputs that one port reads together. */
static i32 find(i32 *parent, i32 output) {
    while (parent[output] != output) output = parent[output] = parent[parent[output]];
    return output;
}

/* Classes: outputs joined by ports, numbered in the order of their first members. Rows follow the steps. */
static void fill_classes(Work *w, i32 *plan, i32 *parent) {
    i32 *outputs = plan + plan[AT_OUTPUTS], *classes = plan + plan[AT_CLASSES], *spans = plan + plan[AT_SPANS];
    i32 *class_of = filled(w, w->num_outputs, -1), *size = zeros(w, w->num_outputs), *members = zeros(w, w->num_outputs), many = 0;
    for (long t = 0; t < w->types; t++) {
        for (i32 o = w->output_first[t]; o < w->output_first[t + 1]; o++) {
            i32 root = find(parent, o);
            if (class_of[root] < 0) class_of[root] = many++;
            members[class_of[root]]++;
            i32 *entry = outputs + (long)o * OF_OUTPUT;
            entry[OUT_TYPE] = t, entry[OUT_NUMBER] = o - w->output_first[t], entry[OUT_CLASS] = class_of[root];
            entry[OUT_ROWS] = w->class_row_at[o];
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
                i32 *row = plan + w->class_row_at[o], c = outputs[(long)o * OF_OUTPUT + OUT_CLASS];
                i32 lo = w->piece_lo[piece], hi = w->piece_hi[piece], shift = size[c] - lo;
                for (i32 at = lo; at < hi; at++) row[at] = at + shift;
                size[c] += hi - lo;
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

/* The class rows that a group writes start here. */
static i32 span_first(const i32 *plan, i32 class, long group) {
    const i32 *its = plan + plan[AT_CLASSES] + (long)class * OF_CLASS, *spans = plan + plan[AT_SPANS];
    i32 span = its[SPANS_FROM];
    while (spans[span * OF_SPAN + SPAN_GROUP] != group) span++;
    return spans[span * OF_SPAN + SPAN_FIRST];
}

/* For every group on a cycle the table of its steps. Returns what follows. */
static i32 *fill_step_tables(Work *w, i32 *plan, i32 *next) {
    const i32 *outputs = plan + plan[AT_OUTPUTS];
    for (long group = 0; group < w->groups; group++) {
        if (!w->cyclic[group]) continue;
        long width = table_width(w, group), pieces = w->piece_first[group + 1] - w->piece_first[group], column = FIXED;
        plan[plan[AT_GROUPS] + OF_GROUP * group + STEP_TABLE] = next - plan;
        memset(next, 0, width * pieces * sizeof(i32));
        for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++) {
            i32 t = w->group_types[g], *line = next;
            const i32 *edges = NULL, *read = plan + plan[AT_READS];
            for (long at = 0; at < w->reads; at++, read += OF_READ)
                if (read[READ_TYPE] == t && read[READ_KIND] == EDGES) edges = plan + read[READ_OFFSETS];
            for (i32 piece = w->piece_first[group]; piece < w->piece_first[group + 1]; piece++, line += width) {
                if (w->piece_type[piece] != t) continue;
                i32 lo = line[STEP_LO] = w->piece_lo[piece], hi = line[STEP_HI] = w->piece_hi[piece];
                if (edges) line[EDGE_LO] = edges[lo], line[EDGE_HI] = edges[hi];
                line[NUMBER_IN_GROUP] = g - w->group_ptr[group];
                for (i32 o = w->output_first[t], at = column; o < w->output_first[t + 1]; o++, at += 2) {
                    line[at] = plan[outputs[(long)o * OF_OUTPUT + OUT_ROWS] + lo] - lo;
                    line[at + 1] = line[at] - span_first(plan, outputs[(long)o * OF_OUTPUT + OUT_CLASS], group);
                }
            }
            column += 2 * w->outputs[t];
        }
        next += padded(width * pieces);
    }
    return next;
}

/* Whether numbers are 0, 1, 2, ...; mostly the ends show that they are not. */
static int counts_up(const i32 *numbers, long count) {
    if (count && (numbers[0] || numbers[count - 1] != count - 1)) return 0;
    for (long at = 0; at < count; at++)
        if (numbers[at] != at) return 0;
    return 1;
}

/* Whether all pieces of a read are slices: 1; and together one: 3. */
static i32 slices_of(const i32 *plan, const i32 *read) {
    const i32 *bounds = plan + read[READ_BOUNDS], *slices = bounds + read[READ_PIECES] + 1;
    const i32 *offsets = read[READ_KIND] == SLOTS ? NULL : plan + read[READ_OFFSETS];
    i32 found = read[READ_PIECES] > 0 ? 3 : 1;
    for (long piece = 0; piece < read[READ_PIECES]; piece++) {
        long before = offsets ? offsets[bounds[piece]] : (long)bounds[piece] * read[READ_WIDTH];
        if (slices[piece] < 0) return 0;
        if (slices[piece] != slices[0] + before) found = 1;
    }
    return found;
}

/* What plans may have in common: groups, their types, who is in which class, what reads what; then whether the class rows of each
   output are one range, the nodes of each type all from the first on, the pieces of each read slices. Returns what follows. */
static i32 *fill_shape(const Work *w, const i32 *plan, i32 *next) {
    const i32 *output = plan + plan[AT_OUTPUTS], *read = plan + plan[AT_READS];
    *next++ = w->groups, *next++ = plan[CLASSES], *next++ = w->num_outputs, *next++ = w->reads, *next++ = w->types;
    for (long group = 0; group < w->groups; group++) {
        i32 many = w->group_ptr[group + 1] - w->group_ptr[group];
        *next++ = w->cyclic[group], *next++ = many;
        memcpy(next, w->group_types + w->group_ptr[group], many * sizeof(i32)), next += many;
    }
    for (long o = 0; o < w->num_outputs; o++, output += OF_OUTPUT)
        *next++ = output[OUT_TYPE], *next++ = output[OUT_NUMBER], *next++ = output[OUT_CLASS];
    for (long c = 0; c < plan[CLASSES]; c++) *next++ = plan[plan[AT_CLASSES] + c * OF_CLASS + HAS_EMPTY];
    for (long at = 0; at < w->reads; at++, read += OF_READ) {
        i32 made[] = {read[READ_TYPE], read[READ_PORT], read[READ_KIND], read[READ_WIDTH], read[READ_CLASS], read[RECURRENT],
                      read[READ_OFFSETS] > 0};
        memcpy(next, made, sizeof(made)), next += 7;
    }
    output = plan + plan[AT_OUTPUTS], read = plan + plan[AT_READS];
    for (long o = 0; o < w->num_outputs; o++, output += OF_OUTPUT) {
        i32 last = w->count[output[OUT_TYPE]] - 1;
        *next++ = plan[output[OUT_ROWS] + last] - plan[output[OUT_ROWS]] == last; /* class rows follow the order of rows */
    }
    for (long t = 0; t < w->types; t++) *next++ = counts_up(plan + plan[plan[AT_ROWS] + t], w->count[t]);
    for (long at = 0; at < w->reads; at++, read += OF_READ) *next++ = slices_of(plan, read);
    return next;
}

static i32 *add_view(i32 *next, long at, long count) {
    next[0] = at, next[1] = at + count;
    return next + 2;
}

/* How many rows each class has, then where each array begins and ends: the steps of each group; the nodes of
   each type; the class rows of each output; the index, the offsets, the bounds and the slices of each read. Then, for those who
   want to know no more than that: where the step table of each group begins and ends, and how many rows its largest step has; the
   first class row of each output; where the owners of each read begin, and its first slice. */
static i32 *fill_views(const Work *w, const i32 *plan, i32 *next) {
    const i32 *output = plan + plan[AT_OUTPUTS], *read = plan + plan[AT_READS];
    for (long c = 0; c < plan[CLASSES]; c++) *next++ = plan[plan[AT_CLASSES] + c * OF_CLASS + CLASS_ROWS];
    for (long group = 0; group < w->groups; group++)
        for (long column = 0; column < 3; column++)
            next = add_view(next, plan[STEPS] + column * padded(w->pieces) + w->piece_first[group],
                            w->piece_first[group + 1] - w->piece_first[group]);
    for (long t = 0; t < w->types; t++) next = add_view(next, plan[plan[AT_ROWS] + t], w->count[t]);
    for (long o = 0; o < w->num_outputs; o++, output += OF_OUTPUT) next = add_view(next, output[OUT_ROWS], w->count[output[OUT_TYPE]]);
    for (long at = 0; at < w->reads; at++, read += OF_READ) {
        next = add_view(next, read[READ_INDEX], read[READ_LENGTH]);
        next = add_view(next, read[READ_OFFSETS], w->count[read[READ_TYPE]] + 1);
        next = add_view(next, read[READ_BOUNDS], read[READ_PIECES] + 1);
        next = add_view(next, read[READ_BOUNDS] + read[READ_PIECES] + 1, read[READ_PIECES]);
    }
    output = plan + plan[AT_OUTPUTS], read = plan + plan[AT_READS];
    for (long group = 0; group < w->groups; group++) {
        i32 first = w->piece_first[group], last = w->piece_first[group + 1], largest = 0;
        for (i32 at = first; at < last; at++) {
            i32 rows = w->piece_hi[at] - w->piece_lo[at];
            largest = rows > largest ? rows : largest;
        }
        next = add_view(next, plan[plan[AT_GROUPS] + OF_GROUP * group + STEP_TABLE], w->cyclic[group] ? (last - first) * table_width(w, group) : 0);
        *next++ = largest;
    }
    for (long o = 0; o < w->num_outputs; o++, output += OF_OUTPUT) *next++ = plan[output[OUT_ROWS]];
    for (long at = 0; at < w->reads; at++, read += OF_READ)
        *next++ = read[READ_OWNERS], *next++ = read[READ_PIECES] ? plan[read[READ_BOUNDS] + read[READ_PIECES] + 1] : 0;
    return next;
}
