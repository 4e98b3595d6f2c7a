/* The way back: returns.py. For every read, which gradient rows belong to which class rows, from a filled plan. */

enum { BACK_READ, BACK_GROUP, BACK_FIRST, BACK_LAST, BACK_INDEX, BACK_COUNT, BACK_SINGLE, BACK_REST, BACK_PIECES, OF_BACK };

typedef struct {
    const i32 *plan, *entry, *index, *offsets, *class;
    i32 rows, length, total; /* class rows, gathered rows, gradient rows */
} Read;

static Read read_at(const i32 *plan, long number) {
    const i32 *entry = plan + plan[AT_READS] + number * OF_READ;
    Read r = {plan, entry, plan + entry[READ_AT] + entry[READ_LENGTH]};
    r.offsets = entry[READ_KIND] == SLOTS ? NULL : r.index + entry[READ_LENGTH];
    r.class = entry[READ_CLASS] < 0 ? NULL : plan + plan[AT_CLASSES] + (long)entry[READ_CLASS] * OF_CLASS;
    r.rows = r.class ? r.class[CLASS_ROWS] : 0;
    r.length = r.total = entry[READ_LENGTH];
    const i32 *first = plan + plan[AT_FIRST] + entry[READ_TYPE];
    if (entry[READ_KIND] == SUM) r.total = first[1] - first[0];
    return r;
}

/* The class rows at which each step of a group starts to write, in order; returns how many. `cuts` may be NULL, to count. */
static long find_cuts(const i32 *plan, i32 class, i32 group, i32 *cuts) {
    const i32 *outputs = plan + plan[AT_OUTPUTS], *output_first = plan + plan[AT_OUTPUT_FIRST];
    const i32 *steps = plan + plan[STEPS], *its = plan + plan[AT_GROUPS] + group * OF_GROUP;
    long found = 0;
    for (i32 piece = its[PIECES_FROM]; piece < its[PIECES_TO]; piece++) {
        for (i32 o = output_first[steps[piece]]; o < output_first[steps[piece] + 1]; o++) {
            if (outputs[(long)o * OF_OUTPUT + OUT_CLASS] != class) continue;
            if (cuts) cuts[found] = plan[outputs[(long)o * OF_OUTPUT + OUT_ROWS] + steps[plan[PIECES] + piece]];
            found++;
        }
    }
    return found;
}

/* Whether what comes back to a group is cut into the group's steps: the read is one of its own, on its cycle. */
static int is_own(const Read *r, i32 group) { return r->entry[RECURRENT] && r->entry[READ_GROUP] == group; }

/* How much room all returns of a plan need at most: first their table, then their arrays. */
long weft_returns_room(const i32 *plan) {
    long room = 1;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        room += r.length + 2 * (long)r.rows;
        for (i32 span = r.class[SPANS_FROM]; span < r.class[SPANS_TO]; span++) {
            i32 group = plan[plan[AT_SPANS] + span * OF_SPAN + SPAN_GROUP];
            room += OF_BACK + 3 + 3 * (is_own(&r, group) ? find_cuts(plan, r.entry[READ_CLASS], group, NULL) : 1);
        }
    }
    return room;
}

/* Gradient rows in the order of the class rows they belong to, and where each class row's start; returns whether none has two. */
static int sort_rows(const Read *r, i32 *index, i32 *starts) {
    int is_single = 1;
    memset(starts, 0, (r->rows + 1) * sizeof(i32));
    for (i32 at = 0; at < r->length; at++)
        if (r->index[at] < r->rows) is_single &= starts[r->index[at]]++ == 0;
    run_starts(starts, r->rows);
    if (r->entry[READ_KIND] == SUM) {
        for (i32 row = 0; row < r->total; row++)
            for (i32 at = r->offsets[row]; at < r->offsets[row + 1]; at++) index[starts[r->index[at]]++] = row;
    } else {
        for (i32 at = 0; at < r->length; at++)
            if (r->index[at] < r->rows) index[starts[r->index[at]]++] = at;
    }
    memmove(starts + 1, starts, r->rows * sizeof(i32)); /* placing moved each start to the next one's */
    starts[0] = 0;
    return is_single;
}

/* What comes back to the class rows that one group wrote: offsets, cuts, slices, and whether nothing does, piece by piece. */
static i32 *fill_return(const Read *r, const i32 *span, const i32 *index, const i32 *starts, int is_single, i32 *entry, i32 *rest) {
    i32 first = span[SPAN_FIRST], last = span[SPAN_LAST];
    int own = is_own(r, span[SPAN_GROUP]);
    i32 *cuts = rest + last - first + 1;
    for (i32 row = first; row <= last; row++) rest[row - first] = starts[row] - starts[first];
    long pieces = own ? find_cuts(r->plan, r->entry[READ_CLASS], span[SPAN_GROUP], cuts) : 1;
    if (!own) cuts[0] = first;
    cuts[pieces] = last;
    i32 *slices = cuts + pieces + 1;
    char *nothing = (char *)(slices + pieces);
    for (long piece = 0; piece < pieces; piece++) {
        i32 begin = starts[cuts[piece]], end = starts[cuts[piece + 1]], at = begin + 1;
        int full = is_single && end > begin && end - begin == cuts[piece + 1] - cuts[piece];
        while (full && at < end && index[at] == index[at - 1] + 1) at++;
        slices[piece] = full && at == end ? index[begin] : -1;
        nothing[piece] = begin == end;
    }
    for (long cut = 0; cut <= pieces; cut++) cuts[cut] -= first;
    entry[BACK_PIECES] = pieces;
    return slices + pieces + (pieces + 3) / 4;
}

/* All returns of a plan; `back` has room for them. Returns 0 if there is no memory. */
int weft_returns(const i32 *plan, i32 *back) {
    long most = 0, spans = 0, made = 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        most = r.rows > most ? r.rows : most;
        spans += r.class ? r.class[SPANS_TO] - r.class[SPANS_FROM] : 0;
    }
    i32 *starts = malloc((most + 1) * sizeof(i32)), *next = back + 1 + spans * OF_BACK;
    if (!starts) return 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        i32 *index = next;
        int is_single = sort_rows(&r, index, starts);
        next += starts[r.rows];
        i32 *single = is_single ? next : NULL;
        if (single) {
            next += r.rows;
            for (i32 row = 0; row < r.rows; row++) single[row] = starts[row] < starts[row + 1] ? index[starts[row]] : r.total;
        }
        for (i32 at = r.class[SPANS_FROM]; at < r.class[SPANS_TO]; at++) {
            const i32 *span = plan + plan[AT_SPANS] + at * OF_SPAN;
            i32 first = span[SPAN_FIRST], last = span[SPAN_LAST], *entry = back + 1 + made * OF_BACK;
            if (starts[first] == starts[last]) continue;
            i32 values[] = {number, span[SPAN_GROUP], first, last, index - back + starts[first], starts[last] - starts[first],
                            single ? single - back + first : -1, next - back, 0};
            memcpy(entry, values, sizeof(values));
            next = fill_return(&r, span, index, starts, is_single, entry, next);
            made++;
        }
    }
    back[0] = made;
    free(starts);
    return 1;
}
