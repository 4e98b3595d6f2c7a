/* What the passes of planning share: a program, what is found out about it, and the memory for that.

   A program comes as its flat arrays (graph/program.py). Its node types come as one array of integers, `kinds`:
   the outputs of each type; where each type's ports start; the kind of each port; where its positions start; the positions.
   The names and the rules are those of the Python files, which do the same with numpy. */

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NOT_INLINE __attribute__((noinline)) /* passes that must keep their registers to themselves */

typedef int32_t i32;

enum { LINE = 64 }; /* bytes that memory fetches at once */

enum { SLOTS, SUM, EDGES };
enum { CONDENSE, DEPTH, AGENDA };

typedef struct Block {
    struct Block *before;
} Block;

/* Memory that is kept for the next work, so that the system need not give it anew each time. A work takes it as a whole, so that others at
   the same time find none. */
typedef struct {
    size_t size;
} Area;

static Area *kept_area;

/* Bytes: a block for small pieces, what a small piece is, how pieces lie, and the largest area that is kept. */
enum { CHUNK = 1 << 13, SMALL = 1 << 10, GRAIN = 16, MOST_KEPT = 1 << 22 };

typedef uint16_t u16;
typedef uint64_t u64;

/* A node of a kept example, in brief. `step` tells its turn and its type: the turn times the number of types, plus the type. */
typedef struct {
    u16 step, above, number;
} Brief;

/* Nodes that follow each other and read nobody else: one of many examples, or all of a program. All numbers count from its first
   node and its first argument. `runs` holds its types, for each how many nodes; `number` its nodes, run after run, ascending.
   Kept examples, unless they are large, have `brief`, so that a batch needs no more of them: nodes of one type, turn and way above ascend,
   but have others between them, as to count one thing twice in a row takes long. After them come, in the order of `number`, nodes
   with ports of fixed width, each followed by what the port gathers, port after port; EMPTY for nothing, if `has_empty`. */
enum { RUN_TYPE, RUN_COUNT, RUN_ARGUMENTS, RUN_LEVELS, OF_RUN };
enum { EMPTY = UINT16_MAX };
typedef struct {
    i32 n, m, types, has_empty;
    const i32 *runs;
    const Brief *brief;
    const i32 *number, *type, *ptr, *src, *out, *turn, *above;
} Part;

typedef struct {
    /* the program: its types, and its nodes as parts; where all are looked at together, also as one */
    long n, m, types, max_rows, parts;
    const i32 *type, *ptr, *src, *out;
    const i32 *outputs, *port_ptr, *port_kind, *position_ptr, *positions;
    const Part **part;
    /* nodes of each type: how many, where they start in an order by type, and how many arguments they have together */
    i32 *count, *first, *arguments, *of_type;
    /* edges: the arguments in an order in which they can be followed */
    const i32 *from, *to;
    /* for each type those that feed it, ascending */
    i32 *feed_ptr, *feeds;
    /* groups of types, producers first */
    long groups;
    i32 *group_of, *group_ptr, *group_types, *cyclic;
    /* order: steps are numbered by type (`turn`: by which of its type's steps a node runs), and listed by group as they run */
    i32 *level, *above, *turn;
    long steps, top, brief_top; /* `top`: the longest way above, and that in parts that have it in brief */
    i32 *type_first_step, *group_first_step, *listed_steps, *step_size;
    /* all nodes with their keys, part after part, and where those of each key start; pieces: steps cut to max_rows */
    u64 *keyed;
    i32 *starts;
    long ways; /* that keys tell apart */
    long pieces;
    i32 *piece_first, *piece_type, *piece_lo, *piece_hi, *type_pieces;
    /* outputs that can be read; ports of types that have nodes; which outputs these meet (gathers.c) */
    i32 *output_first, *gather_first, *met;
    long num_outputs, reads, meetings;
    /* the plan: where the class rows of outputs are, and how far rows of types are from them; the end of its tables, of what a device reads, of all */
    i32 *class_row_at, *shift;
    long table, device, total;
    /* memory: an area, or none, and blocks; what is left of the area, or of a block for small pieces; how much has been taken */
    Area *area;
    Block *blocks;
    char *spare;
    size_t left, taken;
    jmp_buf give_up;
} Work;

/* Memory that lives as long as the work; where there is none left, the work is given up. */
static char *take_block(Work *w, size_t bytes) {
    Block *block = malloc(GRAIN + bytes);
    if (!block) longjmp(w->give_up, 1);
    block->before = w->blocks;
    w->blocks = block;
    return (char *)block + GRAIN;
}

static void *take(Work *w, size_t count, size_t size) {
    size_t bytes = (count * size + GRAIN - 1) / GRAIN * GRAIN;
    w->taken += bytes;
    if (bytes > w->left && bytes > SMALL) return take_block(w, bytes);
    if (bytes > w->left) w->spare = take_block(w, CHUNK), w->left = CHUNK;
    w->spare += bytes, w->left -= bytes;
    return w->spare - bytes;
}

static i32 *ints(Work *w, size_t count) { return take(w, count, sizeof(i32)); }

static i32 *zeros(Work *w, size_t count) { return memset(ints(w, count), 0, count * sizeof(i32)); }

static i32 *filled(Work *w, size_t count, i32 value) {
    i32 *made = ints(w, count);
    for (size_t i = 0; i < count; i++) made[i] = value;
    return made;
}

/* Memory that is about to be read or written here and there: fetched line after line, which is much faster. */
static void approach(const i32 *from, long count) {
    for (long at = 0; at < count; at += LINE / sizeof(i32)) __builtin_prefetch(from + at);
}

/* The same for a part that is told in brief: what lies between its runs and the most of what its ports gather. */
static void approach_part(const Work *w, long i) {
    const Part *p = i < w->parts ? w->part[i] : NULL;
    if (p && p->brief) approach(p->runs, ((const char *)(p->brief + p->n) - (const char *)p->runs + 2 * LINE) / sizeof(i32));
}

/* The work for a program of these types. */
static Work *begin(long types, const i32 *kinds, long max_rows) {
    Work *w = calloc(1, sizeof(Work));
    if (!w) return NULL;
    w->area = __atomic_exchange_n(&kept_area, NULL, __ATOMIC_ACQ_REL);
    if (w->area) w->spare = (char *)w->area + GRAIN, w->left = w->area->size;
    w->types = types, w->max_rows = max_rows;
    w->outputs = kinds, w->port_ptr = kinds + types, w->port_kind = w->port_ptr + types + 1;
    w->position_ptr = w->port_kind + w->port_ptr[types], w->positions = w->position_ptr + w->port_ptr[types] + 1;
    return w;
}

/* An area in which what the work has taken would have had room, unless that is too much. */
static Area *fitting_area(const Work *w) {
    if (w->taken > MOST_KEPT || (w->area && w->area->size >= w->taken)) return w->area;
    free(w->area);
    Area *area = malloc(GRAIN + w->taken);
    if (area) area->size = w->taken;
    return area;
}

static void release(Work *w) {
    free(__atomic_exchange_n(&kept_area, fitting_area(w), __ATOMIC_ACQ_REL));
    for (Block *block = w->blocks, *before; block; block = before) {
        before = block->before;
        free(block);
    }
    free(w);
}

/* From counts in [0, bound) to where each run starts, in place; `starts` has one entry more, the end of the last. */
static void run_starts(i32 *starts, long bound) {
    i32 total = 0;
    for (long i = 0; i <= bound; i++) {
        i32 here = i < bound ? starts[i] : 0;
        starts[i] = total;
        total += here;
    }
}

/* Positions are read through these arrays, so that nothing else needs to check them. */
static int is_sound(const Work *w) {
    long n = w->n, m = w->m;
    i32 low = 0, high = -1, falls = w->ptr[0] != 0 || w->ptr[n] != m;
    for (long i = 0; i < n; i++) {
        low = w->type[i] < low ? w->type[i] : low;
        high = w->type[i] > high ? w->type[i] : high;
        falls |= w->ptr[i + 1] < w->ptr[i];
    }
    if (falls || low < 0 || high >= w->types) return 0;
    low = -1, high = -1;
    for (long k = 0; k < m; k++) {
        low = w->src[k] < low ? w->src[k] : low;
        high = w->src[k] > high ? w->src[k] : high;
    }
    return low >= -1 && high < n;
}

static void find_first(Work *w) {
    w->first = ints(w, w->types + 1);
    memcpy(w->first, w->count, w->types * sizeof(i32));
    run_starts(w->first, w->types);
}

/* Counting into one place again and again waits for memory; four places take turns. */
static void count_types(Work *w) {
    enum { LANES = 4 };
    i32 *lanes = zeros(w, LANES * w->types), *lengths = zeros(w, LANES * w->types);
    for (long i = 0; i < w->n; i++) {
        long place = (i % LANES) * w->types + w->type[i];
        lanes[place]++;
        lengths[place] += w->ptr[i + 1] - w->ptr[i];
    }
    w->count = zeros(w, w->types);
    w->arguments = zeros(w, w->types);
    for (long lane = 0; lane < LANES; lane++)
        for (long t = 0; t < w->types; t++)
            w->count[t] += lanes[lane * w->types + t], w->arguments[t] += lengths[lane * w->types + t];
    find_first(w);
}

/* Nodes by type, each type's in order of their numbers. */
static void sort_by_type(Work *w) {
    i32 *next = ints(w, w->types);
    memcpy(next, w->first, w->types * sizeof(i32));
    w->of_type = ints(w, w->n);
    for (long i = 0; i < w->n; i++) w->of_type[next[w->type[i]]++] = i;
}
