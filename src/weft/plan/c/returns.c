/* The way back: returns.py. For every read, which gradient rows belong to which class rows, from a filled plan. */

/* The first numbers of an array of returns; the entries of its table, which follows, one for each read and each group that writes its
   class: so that plans of one shape have the same entries. As in a plan, first come arrays that a device
   reads. Those of the host are at the end, the first one last. */
enum { RETURNS, BACK_DEVICE_END, BACK_HEADER = 4 };
enum { BACK_READ, BACK_GROUP, BACK_FIRST, BACK_LAST, BACK_INDEX, BACK_COUNT, BACK_SINGLE, BACK_OFFSETS, BACK_CUTS, BACK_PIECES,
       BACK_TRAITS, BACK_SLICE, OF_BACK };
enum { COMES_BACK = 1, ONE_READER = 2, ALL_READ = 4, FIRST_IS_SLICE = 8 }; /* traits; readers: of each row, one at most, or exactly one */

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

/* How much room all returns of a plan need at most, first their table, then their arrays; 0 where 32 bits do not suffice. */
static i32 returns_room(const i32 *plan) {
    long room = 0, entries = 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        room += r.length;
        for (i32 at = r.class[SPANS_FROM]; at < r.class[SPANS_TO]; at++, entries++) {
            const i32 *span = plan + plan[AT_SPANS] + at * OF_SPAN;
            long rows = span[SPAN_LAST] - span[SPAN_FIRST];
            long pieces = is_own(&r, span[SPAN_GROUP]) ? find_cuts(plan, r.entry[READ_CLASS], span[SPAN_GROUP], NULL) : 1;
            room += padded(rows + 1) + padded(3 * pieces + 1) + 4; /* 4: the index, shared among the spans, is cut */
        }
    }
    room = padded(room) + padded(BACK_HEADER + entries * OF_BACK);
    return room <= INT32_MAX ? room : 0;
}

/* How many class rows of a range get one gradient row. */
static i32 count_single(const Read *r, const i32 *single, i32 first, i32 last) {
    i32 found = 0;
    for (i32 row = first; row < last; row++) found += single[row] != r->total;
    return found;
}

/* The gradient row of each class row, `total` for none, where no class row is gathered twice, as in trees. Returns 0 where that is not
   so: then fewer rows than arguments have one. Empty arguments name the row after the last one, for which there is room. */
static int find_single(const Read *r, i32 *restrict single) {
    const i32 *restrict index = r->index;
    i32 filled = 0, is_sum = r->entry[READ_KIND] == SUM;
    for (i32 row = 0; row < r->rows; row++) single[row] = r->total;
    for (i32 row = 0; is_sum && row < r->total; row++)
        for (i32 at = r->offsets[row]; at < r->offsets[row + 1]; at++) single[index[at]] = row;
    for (i32 at = 0; !is_sum && at < r->length; at++) single[index[at]] = at;
    for (i32 at = 0; at < r->length; at++) filled += index[at] < r->rows;
    return count_single(r, single, 0, r->rows) == filled;
}

/* Gradient rows in the order of the class rows they belong to, and where each class row's start. */
static void sort_rows(const Read *r, i32 *index, i32 *starts) {
    memset(starts, 0, (r->rows + 1) * sizeof(i32));
    for (i32 at = 0; at < r->length; at++)
        if (r->index[at] < r->rows) starts[r->index[at]]++;
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

/* How what comes back to the class rows that one group wrote is cut into pieces: slices, and whether nothing comes at all. There are
   single rows, or else `starts` of each class row's. A slice has one gradient row for each class row. */
static long fill_return(const Read *r, const i32 *span, const i32 *single, const i32 *starts, Room *room, i32 **cuts_at) {
    i32 first = span[SPAN_FIRST], own = is_own(r, span[SPAN_GROUP]);
    long pieces = own ? find_cuts(r->plan, r->entry[READ_CLASS], span[SPAN_GROUP], NULL) : 1;
    i32 *cuts = *cuts_at = reserve(room, 3 * pieces + 1, 0), *slices = cuts + pieces + 1, *nothing = slices + pieces;
    if (own) find_cuts(r->plan, r->entry[READ_CLASS], span[SPAN_GROUP], cuts);
    else cuts[0] = first;
    cuts[pieces] = span[SPAN_LAST];
    for (long piece = 0; piece < pieces; piece++) {
        i32 begin = cuts[piece], end = cuts[piece + 1], at = begin + 1;
        slices[piece] = -1;
        nothing[piece] = single ? !count_single(r, single, begin, end) : starts[begin] == starts[end];
        if (!single || nothing[piece]) continue;
        while (at < end && single[at] == single[at - 1] + 1) at++;
        if (at == end && single[end - 1] < r->total) slices[piece] = single[begin];
    }
    for (long cut = 0; cut <= pieces; cut++) cuts[cut] -= first;
    return pieces;
}

/* What comes back from one read to the class rows that one group wrote: single rows, or an index and where each class row's part of it
   starts. A device reads both. An entry of the table that counts no rows says that nothing comes back at all. */
static void add_return(const Read *r, long number, const i32 *span, const i32 *single, const i32 *index, const i32 *starts, Room *room,
                      i32 *entry) {
    i32 first = span[SPAN_FIRST], last = span[SPAN_LAST], *cuts;
    i32 count = single ? count_single(r, single, first, last) : starts[last] - starts[first];
    i32 made[OF_BACK] = {number, span[SPAN_GROUP], first, last, -1, count, -1, -1};
    memcpy(entry, made, sizeof(made));
    if (!count) return;
    if (single) {
        made[BACK_SINGLE] = (i32 *)memcpy(reserve(room, last - first, 1), single + first, (last - first) * sizeof(i32)) - room->back;
    } else {
        made[BACK_INDEX] = (i32 *)memcpy(reserve(room, count, 1), index + starts[first], count * sizeof(i32)) - room->back;
        i32 *offsets = reserve(room, last - first + 1, 1);
        for (i32 row = first; row <= last; row++) offsets[row - first] = starts[row] - starts[first];
        made[BACK_OFFSETS] = offsets - room->back;
    }
    made[BACK_PIECES] = fill_return(r, span, single, starts, room, &cuts);
    made[BACK_CUTS] = cuts - room->back, made[BACK_SLICE] = cuts[made[BACK_PIECES] + 1];
    made[BACK_TRAITS] = COMES_BACK | (single ? ONE_READER : 0) | (made[BACK_SLICE] >= 0 ? FIRST_IS_SLICE : 0);
    if (single && count == last - first) made[BACK_TRAITS] |= ALL_READ;
    memcpy(entry, made, sizeof(made));
}

/* All returns of a plan; `back` has room for them. Returns 0 if there is no memory. */
int weft_returns(const i32 *plan, i32 *back) {
    long most = 0, longest = 0, spans = 0, made = 0;
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        most = r.rows > most ? r.rows : most, longest = r.length > longest ? r.length : longest;
        spans += r.class ? r.class[SPANS_TO] - r.class[SPANS_FROM] : 0;
    }
    i32 *starts = malloc((most + 1 + longest) * sizeof(i32)), *index = starts + most + 1;
    if (!starts) return 0;
    Room left = {back, back + padded(BACK_HEADER + spans * OF_BACK), back + plan[BACK_ROOM]};
    for (long number = 0; number < plan[READS]; number++) {
        Read r = read_at(plan, number);
        if (!r.class) continue;
        const i32 *single = find_single(&r, starts) ? starts : NULL;
        if (!single) sort_rows(&r, index, starts);
        for (i32 at = r.class[SPANS_FROM]; at < r.class[SPANS_TO]; at++) {
            const i32 *span = plan + plan[AT_SPANS] + at * OF_SPAN;
            add_return(&r, number, span, single, index, starts, &left, back + BACK_HEADER + made++ * OF_BACK);
        }
    }
    back[RETURNS] = made, back[BACK_DEVICE_END] = left.front - back;
    free(starts);
    return 1;
}
