/* What each port of each type gathers: which outputs it meets, and for each row of the type the class rows of its arguments. */

/* One port. `first`: the first output that it meets, -1 if none at all; `end`: the number of its class's rows, which empty arguments
   get; `offsets` bounds each row's part of `index`, where it takes any number of arguments. */
typedef struct {
    i32 type, port, kind, width, first, recurrent, has_empty, end;
    const i32 *positions;
    i32 *index, *offsets;
} Gather;

/* The ports of all types that have nodes; `gather_first` tells where each type's start. */
static Gather *list_gathers(Work *w) {
    Gather *gathers = take(w, w->reads, sizeof(Gather));
    i32 found = 0;
    w->gather_first = ints(w, w->types + 1);
    for (long t = 0; t < w->types; t++) {
        w->gather_first[t] = found;
        for (i32 port = w->port_ptr[t]; w->count[t] && port < w->port_ptr[t + 1]; port++) {
            i32 kind = w->port_kind[port], width = kind == SLOTS ? w->position_ptr[port + 1] - w->position_ptr[port] : 1;
            gathers[found++] = (Gather){t, port, kind, width, -1, 0, 0, 0, w->positions + w->position_ptr[port], NULL, NULL};
        }
    }
    w->gather_first[w->types] = found;
    return gathers;
}

/* Outputs that ports meet, each once for each port: the gather's number, the type, the output. */
enum { MET_BY, MET_TYPE, MET_OUTPUT, OF_MEETING };

/* Note the output that an argument names, unless its port has met it before. */
static inline void meet(Work *w, i32 *seen, i32 number, const Part *p, i32 at) {
    i32 type = p->type[p->src[at]], output = w->output_first[type] + (p->out ? p->out[at] : 0);
    if (output < w->output_first[type] || output >= w->output_first[type + 1]) longjmp(w->give_up, 1);
    if (seen[output] == number) return;
    i32 made[] = {number, type, output};
    memcpy(w->met + OF_MEETING * w->meetings++, made, sizeof(made));
    seen[output] = number;
}

/* Which outputs the ports of a program meet. */
static void find_meetings(Work *w, const Gather *gathers) {
    const Part *p = w->part[0];
    i32 *seen = filled(w, w->num_outputs, -1);
    long most = 0;
    for (long at = 0; at < w->reads; at++) most += w->arguments[gathers[at].type];
    w->met = ints(w, OF_MEETING * (most < w->reads * w->num_outputs ? most : w->reads * w->num_outputs));
    for (long number = 0; number < w->reads; number++) {
        const Gather *g = gathers + number;
        for (i32 i = w->first[g->type]; i < w->first[g->type + 1]; i++) {
            i32 begin = p->ptr[p->number[i]], end = p->ptr[p->number[i] + 1];
            for (i32 slot = 0; g->kind == SLOTS && slot < g->width; slot++)
                if (g->positions[slot] < end - begin && p->src[begin + g->positions[slot]] >= 0)
                    meet(w, seen, number, p, begin + g->positions[slot]);
            for (i32 k = begin + g->positions[0]; g->kind != SLOTS && k < end; k++)
                if (p->src[k] >= 0) meet(w, seen, number, p, k);
        }
    }
}

/* Join the outputs that a port meets; it is recurrent if its own group feeds it. */
static void join_outputs(Work *w, Gather *gathers, i32 *parent) {
    for (i32 o = 0; o < w->num_outputs; o++) parent[o] = o;
    for (const i32 *met = w->met; met < w->met + OF_MEETING * w->meetings; met += OF_MEETING) {
        Gather *g = gathers + met[MET_BY];
        i32 group = w->group_of[g->type];
        if (g->first < 0) g->first = met[MET_OUTPUT];
        parent[find(parent, met[MET_OUTPUT])] = find(parent, g->first);
        g->recurrent |= w->cyclic[group] && w->group_of[met[MET_TYPE]] == group;
    }
}

/* The class row of what an argument names; `where` its part's nodes come. */
static inline i32 class_row(const Work *w, const i32 *plan, const Part *p, Where where, i32 at) {
    i32 source = p->src[at];
    if (!p->out) return where.place[source];
    return plan[w->class_row_at[w->output_first[p->type[source]] + p->out[at]] + where.row[source]];
}

/* The rows of a part's nodes of one type, plus the same number for all of them, which is left in `shift`. */
static const i32 *rows_of(const Work *w, Where where, i32 t, i32 *shift) {
    *shift = where.row ? 0 : w->shift[t];
    return where.row ? where.row : where.place;
}

/* What a port of fixed width gathers for these nodes of a part. */
static NOT_INLINE void gather_slots(const Work *w, const i32 *plan, Gather *g, const Part *p, Where where, const i32 *number,
                                    long count) {
    i32 shift;
    const i32 *row = rows_of(w, where, g->type, &shift), *positions = g->positions, *ptr = p->ptr, *src = p->src;
    i32 width = g->width, stop = g->end, has_empty = 0;
    for (long i = 0; i < count; i++) {
        i32 node = number[i], begin = ptr[node], length = ptr[node + 1] - begin, *index = g->index + (long)(row[node] - shift) * width;
        for (i32 slot = 0; slot < width; slot++) {
            int is_filled = positions[slot] < length && src[begin + positions[slot]] >= 0;
            index[slot] = is_filled ? class_row(w, plan, p, where, begin + positions[slot]) : stop;
            has_empty |= !is_filled;
        }
    }
    g->has_empty |= has_empty;
}

/* The same from what a part tells in brief; returns what follows. */
static NOT_INLINE const u16 *gather_briefly(const Work *w, Gather *g, Where where, const u16 *told, long count) {
    i32 shift, width = g->width, stop = g->end, has_empty = 0;
    const i32 *row = rows_of(w, where, g->type, &shift), *place = where.place;
    for (const u16 *end = told + count * (1 + width); told < end; told += 1 + width) {
        i32 *index = g->index + (long)(row[told[0]] - shift) * width;
        for (i32 slot = 0; slot < width; slot++) {
            int is_filled = told[1 + slot] != EMPTY;
            index[slot] = is_filled ? place[told[1 + slot]] : stop;
            has_empty |= !is_filled;
        }
    }
    g->has_empty |= has_empty;
    return told;
}

/* The same for two arguments that are never empty, as in binary trees. */
static NOT_INLINE const u16 *gather_pairs(const Work *w, Gather *g, Where where, const u16 *told, long count) {
    i32 shift;
    const i32 *row = rows_of(w, where, g->type, &shift), *place = where.place;
    for (const u16 *end = told + 3 * count; told < end; told += 3) {
        i32 *index = g->index + 2 * (long)(row[told[0]] - shift), first = place[told[1]], second = place[told[2]];
        index[0] = first, index[1] = second;
    }
    return told;
}

/* How many arguments a port that takes all from a position on, empty ones left out, finds for each of these nodes. */
static NOT_INLINE void count_bags(const Work *w, const Gather *g, const Part *p, Where where, const i32 *number, long count) {
    i32 shift;
    const i32 *row = rows_of(w, where, g->type, &shift);
    for (long i = 0; i < count; i++) {
        i32 found = 0;
        for (i32 k = p->ptr[number[i]] + g->positions[0]; k < p->ptr[number[i] + 1]; k++) found += p->src[k] >= 0;
        g->offsets[row[number[i]] - shift] = found;
    }
}

/* What such a port gathers. */
static NOT_INLINE void gather_bags(const Work *w, const i32 *plan, const Gather *g, const Part *p, Where where, const i32 *number,
                                   long count) {
    i32 shift;
    const i32 *row = rows_of(w, where, g->type, &shift);
    for (long i = 0; i < count; i++) {
        i32 at = g->offsets[row[number[i]] - shift];
        for (i32 k = p->ptr[number[i]] + g->positions[0]; k < p->ptr[number[i] + 1]; k++)
            if (p->src[k] >= 0) g->index[at++] = class_row(w, plan, p, where, k);
    }
}

enum { COUNT, GATHER };

/* Go through all arguments of all parts, port by port: count those of ports that take any number, or gather all. */
static void pass_arguments(const Work *w, const i32 *plan, Gather *gathers, Where where, int what) {
    for (long i = 0; i < w->parts; where.row += where.row ? w->part[i]->n : 0, where.place += w->part[i++]->n) {
        const Part *p = w->part[i];
        approach_part(w, i + 2);
        const i32 *number = p->number, *run = p->runs;
        const u16 *kids = p->brief ? (const u16 *)(p->brief + p->n) : NULL;
        for (; run < p->runs + p->types * OF_RUN; number += run[RUN_COUNT], run += OF_RUN) {
            for (i32 at = w->gather_first[run[RUN_TYPE]]; at < w->gather_first[run[RUN_TYPE] + 1]; at++) {
                Gather *g = gathers + at;
                if (what == COUNT && g->kind != SLOTS) count_bags(w, g, p, where, number, run[RUN_COUNT]);
                if (what == GATHER && g->kind != SLOTS) gather_bags(w, plan, g, p, where, number, run[RUN_COUNT]);
                if (what != GATHER || g->kind != SLOTS) continue;
                if (kids && g->width == 2 && !p->has_empty) kids = gather_pairs(w, g, where, kids, run[RUN_COUNT]);
                else if (kids) kids = gather_briefly(w, g, where, kids, run[RUN_COUNT]);
                else gather_slots(w, plan, g, p, where, number, run[RUN_COUNT]);
            }
        }
    }
}

/* The arrays of all gathers that a device reads: index, offsets, and who owns each edge. Returns what follows. */
static i32 *fill_gathers(Work *w, i32 *plan, Gather *gathers, Where where, i32 *next) {
    i32 *entry = plan + plan[AT_READS], bags = 0;
    for (Gather *g = gathers; g < gathers + w->reads; g++)
        if (g->kind != SLOTS) g->offsets = zeros(w, w->count[g->type] + 1), bags = 1;
    if (bags) pass_arguments(w, plan, gathers, where, COUNT);
    for (Gather *g = gathers; g < gathers + w->reads; g++, entry += OF_READ) {
        long rows = w->count[g->type], length = rows * g->width;
        if (g->offsets) run_starts(g->offsets, rows), length = g->offsets[rows];
        i32 class = g->first < 0 ? -1 : plan[plan[AT_OUTPUTS] + g->first * OF_OUTPUT + OUT_CLASS];
        i32 made[] = {g->type, g->port - w->port_ptr[g->type], g->kind, g->width, class, w->group_of[g->type], g->recurrent, length,
                      0, next - plan};
        memcpy(entry, made, sizeof(made));
        g->end = class < 0 ? 0 : plan[plan[AT_CLASSES] + class * OF_CLASS + CLASS_ROWS];
        g->index = next, next += padded(length);
        approach(g->index, length);
        if (g->offsets) {
            g->offsets = memcpy(next, g->offsets, (rows + 1) * sizeof(i32));
            entry[READ_OFFSETS] = next - plan, next += padded(rows + 1);
        }
        if (g->kind != EDGES) continue;
        entry[READ_OWNERS] = next - plan;
        for (i32 row = 0; row < rows; row++)
            for (i32 at = g->offsets[row]; at < g->offsets[row + 1]; at++) next[at] = row;
        next += padded(length);
    }
    pass_arguments(w, plan, gathers, where, GATHER);
    return next;
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

/* The row ranges over which a read is cut: the type's steps if it is recurrent, else all rows at once. */
static long fill_bounds(const Work *w, i32 t, int recurrent, i32 *bounds) {
    long pieces = 0;
    bounds[0] = 0;
    if (!recurrent) return bounds[1] = w->count[t], 1;
    for (i32 piece = w->piece_first[w->group_of[t]]; piece < w->piece_first[w->group_of[t] + 1]; piece++)
        if (w->piece_type[piece] == t) bounds[++pieces] = w->piece_hi[piece];
    return pieces;
}

/* How each gather is cut into pieces, and which of them are slices. */
static void fill_cuts(Work *w, i32 *plan, const Gather *gathers, i32 *next) {
    i32 *entry = plan + plan[AT_READS];
    for (const Gather *g = gathers; g < gathers + w->reads; g++, entry += OF_READ) {
        entry[READ_BOUNDS] = next - plan;
        i32 pieces = entry[READ_PIECES] = fill_bounds(w, g->type, g->recurrent, next), *slices = next + pieces + 1;
        if (g->first >= 0) {
            plan[plan[AT_CLASSES] + entry[READ_CLASS] * OF_CLASS + HAS_EMPTY] |= g->has_empty;
            find_slices(g->index, g->offsets, g->width, next, pieces, g->end, slices);
        } else { /* a port that finds nothing at all reads zeros, and belongs to no class */
            slices[0] = -1;
        }
        next += padded(2 * pieces + 1);
    }
}
