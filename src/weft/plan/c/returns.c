/* The way back: returns.py. For every read, which gradient rows belong to which class rows, from a filled plan. */

/* The first numbers of an array of returns; the entries of its table, which follows. As in a plan, first come arrays that a device
   reads. Those of the host are at the end, the first one last. */
enum { RETURNS, BACK_DEVICE_END, BACK_HEADER = 4 };
enum { BACK_READ, BACK_GROUP, BACK_FIRST, BACK_LAST, BACK_INDEX, BACK_COUNT, BACK_SINGLE, BACK_OFFSETS, BACK_CUTS, BACK_PIECES, OF_BACK };

typedef struct {
    const i32 *plan, *entry, *index, *offsets, *class;
    i32 rows, length, total; /* class rows, gathered rows, gradient rows */
} Read;

static Read read_at(const i32 *plan, long number) {
    const i32 *entry = plan + plan[AT_READS] + number * OF_READ;
    Read r = {plan, entry, plan + entry[READ_INDEX]};
    r.offsets = entry[READ_KIND] == SLOTS ? NULL : plan + entry[READ_OFFSETS];
    r.class = entry[READ_CLASS] < 0 ? NULL : plan + plan[AT_CLASSES] + (long)entry[READ_CLASS] * OF_CLASS;
    r.rows = r.class ? r.class[CLASS_ROWS] : 0;
    r.length = r.total = entry[READ_LENGTH];
    if (entry[READ_KIND] == SUM) r.total = plan[plan[AT_COUNTS] + entry[READ_TYPE]];
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
            if (cuts) cuts[found] = plan[outputs[(long)o * OF_OUTPUT + OUT_ROWS] + steps[padded(plan[PIECES]) + piece]];
            found++;
        }
    }
    return found;
}

/* Whether what comes back to a group is cut into the group's steps: the read is one of its own, on its cycle. */
static int is_own(const Read *r, i32 group) { return r->entry[RECURRENT] && r->entry[READ_GROUP] == group; }

/* How much room all returns of a plan need at most: first their table, then their arrays. */
long weft_returns_room(const i32 *plan) {
    long room = 0, entries = 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        room += r.length;
        for (i32 at = r.class[SPANS_FROM]; at < r.class[SPANS_TO]; at++, entries++) {
            const i32 *span = plan + plan[AT_SPANS] + at * OF_SPAN;
            long rows = span[SPAN_LAST] - span[SPAN_FIRST];
            long pieces = is_own(&r, span[SPAN_GROUP]) ? find_cuts(plan, r.entry[READ_CLASS], span[SPAN_GROUP], NULL) : 1;
            room += padded(rows) + padded(rows + 1) + padded(3 * pieces + 1) + 4; /* 4: the index, shared among the spans, is cut */
        }
    }
    return padded(room) + padded(BACK_HEADER + entries * OF_BACK);
}

/* The short way where arguments are gathered one by one and no class row twice, as in trees: `starts` first holds the one gradient row.
   Returns 0 where that is not so. */
static int sort_single_rows(const Read *r, i32 *index, i32 *starts) {
    if (r->entry[READ_KIND] == SUM) return 0;
    memset(starts, -1, (r->rows + 1) * sizeof(i32));
    for (i32 at = 0; at < r->length; at++) {
        if (r->index[at] >= r->rows) continue;
        if (starts[r->index[at]] >= 0) return 0;
        starts[r->index[at]] = at;
    }
    i32 found = 0;
    for (i32 row = 0; row < r->rows; row++) {
        i32 at = index[found] = starts[row];
        starts[row] = found, found += at >= 0;
    }
    starts[r->rows] = found;
    return 1;
}

/* Gradient rows in the order of the class rows they belong to, and where each class row's start; returns whether none has two. */
static int sort_rows(const Read *r, i32 *index, i32 *starts) {
    if (sort_single_rows(r, index, starts)) return 1;
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

/* How what comes back to the class rows that one group wrote is cut into pieces: slices, and whether nothing comes at all. */
static void fill_return(const Read *r, const i32 *span, const i32 *index, const i32 *starts, int is_single, long pieces, i32 *cuts) {
    i32 first = span[SPAN_FIRST], *slices = cuts + pieces + 1;
    char *nothing = (char *)(slices + pieces);
    if (is_own(r, span[SPAN_GROUP])) find_cuts(r->plan, r->entry[READ_CLASS], span[SPAN_GROUP], cuts);
    else cuts[0] = first;
    cuts[pieces] = span[SPAN_LAST];
    for (long piece = 0; piece < pieces; piece++) {
        i32 begin = starts[cuts[piece]], end = starts[cuts[piece + 1]], at = begin + 1;
        int full = is_single && end > begin && end - begin == cuts[piece + 1] - cuts[piece];
        while (full && at < end && index[at] == index[at - 1] + 1) at++;
        slices[piece] = full && at == end ? index[begin] : -1;
        nothing[piece] = begin == end;
    }
    for (long cut = 0; cut <= pieces; cut++) cuts[cut] -= first;
}

/* Arrays from the front, for the device, or from the end, for the host. */
typedef struct {
    i32 *back, *front, *end;
} Room;

static i32 *reserve(Room *room, long count, int for_device) {
    if (!for_device) return room->end -= padded(count);
    room->front += padded(count);
    return room->front - padded(count);
}

/* What comes back from one read to the class rows that one group wrote. A device reads the one row that each gets, if that is all. */
static void add_return(const Read *r, long number, const i32 *span, const i32 *index, const i32 *starts, int is_single, Room *room,
                       i32 *entry) {
    i32 first = span[SPAN_FIRST], last = span[SPAN_LAST], count = starts[last] - starts[first], *single = NULL;
    long pieces = is_own(r, span[SPAN_GROUP]) ? find_cuts(r->plan, r->entry[READ_CLASS], span[SPAN_GROUP], NULL) : 1;
    if (is_single) {
        single = reserve(room, last - first, 1);
        for (i32 row = first; row < last; row++) single[row - first] = starts[row] < starts[row + 1] ? index[starts[row]] : r->total;
    }
    i32 *mine = memcpy(reserve(room, count, !is_single), index + starts[first], count * sizeof(i32));
    i32 *offsets = reserve(room, last - first + 1, !is_single), *cuts = reserve(room, 3 * pieces + 1, 0);
    for (i32 row = first; row <= last; row++) offsets[row - first] = starts[row] - starts[first];
    fill_return(r, span, index, starts, is_single, pieces, cuts);
    i32 made[] = {number, span[SPAN_GROUP], first, last, mine - room->back, count, single ? single - room->back : -1,
                  offsets - room->back, cuts - room->back, pieces};
    memcpy(entry, made, sizeof(made));
}

/* All returns of a plan; `back` has room for them. Returns 0 if there is no memory. */
int weft_returns(const i32 *plan, i32 *back, long room) {
    long most = 0, longest = 0, spans = 0, made = 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        most = r.rows > most ? r.rows : most, longest = r.length > longest ? r.length : longest;
        spans += r.class ? r.class[SPANS_TO] - r.class[SPANS_FROM] : 0;
    }
    i32 *starts = malloc((most + 1 + longest + 1) * sizeof(i32)), *index = starts + most + 1;
    if (!starts) return 0;
    Room left = {back, back + padded(BACK_HEADER + spans * OF_BACK), back + room};
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        int is_single = sort_rows(&r, index, starts);
        for (i32 at = r.class[SPANS_FROM]; at < r.class[SPANS_TO]; at++) {
            const i32 *span = plan + plan[AT_SPANS] + at * OF_SPAN;
            if (starts[span[SPAN_FIRST]] == starts[span[SPAN_LAST]]) continue;
            add_return(&r, number, span, index, starts, is_single, &left, back + BACK_HEADER + made++ * OF_BACK);
        }
    }
    back[RETURNS] = made, back[BACK_DEVICE_END] = left.front - back;
    free(starts);
    return 1;
}
