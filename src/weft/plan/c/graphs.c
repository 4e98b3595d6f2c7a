/* Base graphs that are kept, and batches of them: parts.py. What a batch needs of a graph lies in one piece of memory; what only
   depends on the graph and on how a model sees it, its levels above all, is found once and kept with the graph: a *view*. */

enum { MOST_VIEWS = 8, MOST_KINDS = 63, AHEAD = 12, FIRST_LINES = 3 }; /* of a view: up to its pairs */
enum { VERTICES, SLOTS_OF_ALL, EDGES_OF_ALL, TYPES_ALIKE, DEVICE_ALIKE, KINDS_OF_ALL, ROOTS_OF_ALL, ROOT_KINDS, DIGEST,
       OF_TOTALS = DIGEST + 2 };

enum { PAIR_READER, PAIR_PRODUCER, OF_PAIR }; /* a type, or a port, and a type that feeds it */

/* `seen` tells which node type each kind of vertex is, and what these read. `pair` has the types that feed each other, then those
   that ports meet. Levels are those of groups of one type: they count the edges between vertices of one type. */
typedef struct View {
    struct View *next;
    uint64_t seen;
    i32 top, pairs, meetings, size; /* size: of the arrays that every batch reads */
    Part part;
    i32 arrays[];
} View;

/* Kinds of vertices: twice the type, and one more if there are no children. `kinds` is the set of those that occur, all ones if
   there are kinds beyond it; `root_kinds` of those of roots, which nobody reads. Equal numbers mean equal names of types, and equal
   devices. The arrays: children, offsets, kinds, roots. */
typedef struct {
    i32 n, m, edges, types, device;
    uint64_t digest[2], kinds, root_kinds;
    int64_t roots;
    View *views;
    i32 arrays[];
} Graph;

static const i32 *offsets_of(const Graph *g) { return g->arrays + g->m; }
static const i32 *kinds_of(const Graph *g) { return g->arrays + g->m + g->n + 1; }
static const i32 *roots_of(const Graph *g) { return kinds_of(g) + g->n; }

static uint64_t as_set(i32 kind) { return (uint32_t)kind < MOST_KINDS ? (uint64_t)1 << kind : UINT64_MAX; }

/* List the vertices that nobody reads at `roots`, which has room for all. */
static void find_roots(Graph *g, i32 *roots) {
    for (long v = 0; v < g->n; v++) roots[v] = 1;
    for (long k = 0; k < g->m; k++)
        if (g->arrays[k] >= 0) roots[g->arrays[k]] = 0;
    for (long v = 0; v < g->n; v++) {
        if (!roots[v]) continue;
        g->root_kinds |= as_set(kinds_of(g)[v]);
        roots[g->roots++] = v; /* no place that is still to be looked at */
    }
}

Graph *weft_graph(const int64_t *numbers, const char *digest, const i32 *children, const i32 *offsets, const i32 *kinds) {
    int64_t n = numbers[0], m = numbers[1];
    size_t size = sizeof(Graph) + (m + 3 * n + 1) * sizeof(i32);
    Graph *g = aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE); /* what every batch reads is in one line of memory */
    if (!g) return NULL;
    *g = (Graph){n, m, numbers[2], numbers[3], numbers[4]};
    memcpy(g->digest, digest, sizeof(g->digest));
    memcpy(g->arrays, children, m * sizeof(i32));
    memcpy(g->arrays + m, offsets, (n + 1) * sizeof(i32));
    memcpy(g->arrays + m + n + 1, kinds, n * sizeof(i32));
    for (long v = 0; v < n; v++) g->kinds |= as_set(kinds[v]);
    find_roots(g, g->arrays + m + 2 * n + 1);
    return g;
}

/* A graph that nobody needs any more. */
void weft_release(Graph *const *graph) {
    Graph *g = *graph;
    for (View *view = g->views, *next; view; view = next) {
        next = view->next;
        free(view);
    }
    free(g);
}

/* What a batch of graphs is, in a few numbers: -1 where types or devices are not alike. */
void weft_totals(Graph *const *graph, long count, int64_t *totals) {
    uint64_t low = count, high = 0, kinds = 0, root_kinds = 0;
    int64_t vertices = 0, slots = 0, edges = 0, roots = 0, types = count ? graph[0]->types : 0, device = count ? graph[0]->device : 0;
    for (long i = 0; i < count; i++) {
        __builtin_prefetch(graph[i + 2 * AHEAD < count ? i + 2 * AHEAD : i]);
        const Graph *g = graph[i];
        vertices += g->n, slots += g->m, edges += g->edges, kinds |= g->kinds, roots += g->roots, root_kinds |= g->root_kinds;
        types = types == g->types ? types : -1, device = device == g->device ? device : -1;
        low = (low ^ g->digest[0]) * 0x9e3779b97f4a7c15, high = (high ^ g->digest[1] ^ low >> 32) * 0xd6e8feb86659fd93;
        low ^= high >> 29;
        __builtin_prefetch(g->views);
    }
    int64_t made[OF_TOTALS] = {vertices, slots, edges, types, device, kinds, roots, root_kinds, low, high};
    memcpy(totals, made, sizeof(made));
}

/* The graphs that Python objects hold: each object, of type `type`, holds at `slot` an object, in which the address of the graph is at
   `data`. Returns 0 if one is of another type or holds none, else finds totals. Where things lie has been tried out: graphs.py. */
int weft_collect(char *const *object, long count, const char *type, long slot, long data, Graph **graph, int64_t *totals) {
    for (long i = 0; i < count; i++) {
        __builtin_prefetch(object[i + 2 * AHEAD < count ? i + 2 * AHEAD : i] + slot);
        if (i + AHEAD < count) __builtin_prefetch(*(char **)(object[i + AHEAD] + slot) + data);
        char *held = *(char **)(object[i] + slot);
        if (*(char **)(object[i] + slot - sizeof(char *)) != type || !held) return 0;
        memcpy(graph + i, held + data, sizeof(Graph *));
        __builtin_prefetch(graph[i]);
    }
    weft_totals(graph, count, totals);
    return 1;
}

/* The arrays of all graphs as those of one: vertices and slots count on from graph to graph. */
void weft_merge(Graph *const *graph, long count, i32 *children, i32 *offsets, i32 *kinds) {
    i32 vertices = 0, slots = 0;
    for (long i = 0; i < count; i++) {
        const Graph *g = graph[i];
        const i32 *child = g->arrays, *first = offsets_of(g);
        for (long k = 0; k < g->m; k++) children[slots + k] = child[k] + (child[k] < 0 ? 0 : vertices);
        for (long v = 0; v < g->n; v++) offsets[vertices + v] = first[v] + slots;
        memcpy(kinds + vertices, kinds_of(g), g->n * sizeof(i32));
        vertices += g->n, slots += g->m;
    }
    offsets[vertices] = slots;
}

/* The roots of all graphs. */
void weft_roots(Graph *const *graph, long count, int64_t *roots) {
    int64_t vertices = 0;
    for (long i = 0; i < count; vertices += graph[i++]->n) {
        const i32 *its = roots_of(graph[i]);
        for (long at = 0; at < graph[i]->roots; at++) *roots++ = vertices + its[at];
    }
}

/* A graph's vertices as nodes: `table` has the type of each kind. Types without ports read nothing, so they have no arguments.
   `vertices` and `slots` come before these; returns how many arguments there are. */
static i32 as_nodes(const Graph *g, const i32 *table, const i32 *port_ptr, i32 vertices, i32 slots, i32 *type, i32 *ptr, i32 *src) {
    const i32 *child = g->arrays, *offsets = offsets_of(g), *kind = kinds_of(g);
    i32 kept = 0;
    for (long v = 0; v < g->n; v++) {
        i32 t = type[v] = table[kind[v]], reads = port_ptr[t + 1] > port_ptr[t];
        ptr[v] = slots + kept;
        for (i32 k = offsets[v]; k < offsets[v + 1]; k++, kept += reads) /* what is not kept is written over: no branch */
            src[kept] = child[k] + (child[k] < 0 ? 0 : vertices);
    }
    return kept;
}

/* The program of a batch, for those who look at it; returns how many arguments it has. */
long weft_program(Graph *const *graph, long count, long types, const i32 *kinds, const i32 *table, i32 *type, i32 *ptr, i32 *src) {
    i32 vertices = 0, slots = 0;
    for (long i = 0; i < count; vertices += graph[i++]->n)
        slots += as_nodes(graph[i], table, kinds + types, vertices, slots, type + vertices, ptr + vertices, src + slots);
    ptr[vertices] = slots;
    return slots;
}

/* How many numbers tell what the ports of fixed width gather. */
static long count_kids(const Work *w) {
    long kids = 0;
    for (long t = 0; t < w->types; t++)
        for (i32 port = w->port_ptr[t]; port < w->port_ptr[t + 1]; port++)
            if (w->port_kind[port] == SLOTS) kids += (long)w->count[t] * (1 + w->position_ptr[port + 1] - w->position_ptr[port]);
    return kids;
}

/* Tell what these ports gather; returns whether some of it is empty. */
static int fill_kids(const Work *w, u16 *kids) {
    int has_empty = 0;
    for (long t = 0; t < w->types; t++) {
        for (i32 port = w->port_ptr[t]; port < w->port_ptr[t + 1]; port++) {
            for (i32 i = w->first[t]; i < w->first[t + 1] && w->port_kind[port] == SLOTS; i++) {
                i32 node = w->of_type[i], begin = w->ptr[node], length = w->ptr[node + 1] - begin;
                *kids++ = node;
                for (i32 at = w->position_ptr[port]; at < w->position_ptr[port + 1]; at++) {
                    i32 kid = w->positions[at] < length ? w->src[begin + w->positions[at]] : -1;
                    *kids++ = kid < 0 ? EMPTY : kid, has_empty |= kid < 0;
                }
            }
        }
    }
    return has_empty;
}

/* Nodes in the order of their numbers in `by`, less than `bound`; where these are equal, in the order of `from`. */
static i32 *sorted_by(Work *w, const i32 *by, long bound, const i32 *from) {
    i32 *starts = zeros(w, bound + 1), *to = ints(w, w->n);
    for (long i = 0; i < w->n; i++) starts[by[i]]++;
    run_starts(starts, bound);
    for (long i = 0; i < w->n; i++) to[starts[by[from[i]]]++] = from[i];
    return to;
}

static int are_alike(const Work *w, i32 a, i32 b) {
    return w->type[a] == w->type[b] && w->level[a] == w->level[b] && w->above[a] == w->above[b];
}

/* The nodes in brief: first one of each kind, then the second ones, and so on. */
static void fill_brief(Work *w, Brief *brief) {
    i32 *alike = sorted_by(w, w->level, w->top + 1, sorted_by(w, w->above, w->top + 1, w->of_type)), *rank = ints(w, w->n);
    alike = sorted_by(w, w->type, w->types, alike);
    for (long i = 0; i < w->n; i++) rank[alike[i]] = i && are_alike(w, alike[i - 1], alike[i]) ? rank[alike[i - 1]] + 1 : 0;
    const i32 *order = sorted_by(w, rank, w->n, w->of_type);
    for (long i = 0; i < w->n; i++) 
        brief[i] = (Brief){w->level[order[i]] * w->types + w->type[order[i]], w->above[order[i]], order[i]};
}

/* What `w`, the work on one graph, has found, as a view. Its arrays, one after the other: runs, pairs, the graph in brief, if it is
   small enough; and what only few batches look at: number, level, above, ptr, src. Nobody asks for types: vertices have one output. */
static View *keep_view(Work *batch, Work *w, const Gather *gathers, uint64_t seen, int is_kept) {
    long n = w->n, types = w->part[0]->types, pairs = w->feed_ptr[w->types], all = pairs + w->meetings;
    int fits = n <= EMPTY && (w->top + 1) * w->types <= UINT16_MAX;
    long brief = fits ? (3 * n + count_kids(w) + 1) / 2 : 0, size = types * OF_RUN + all * OF_PAIR + brief;
    size_t bytes = sizeof(View) + (size + 4 * n + 1 + w->m) * sizeof(i32);
    View *view = is_kept ? aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE) : take(batch, bytes, 1);
    if (!view) longjmp(batch->give_up, 1);
    i32 *run = view->arrays, *pair = run + types * OF_RUN, *number = run + size;
    i32 *level = number + n, *above = level + n, *ptr = above + n, *src = ptr + n + 1;
    Brief *nodes = brief ? (Brief *)(pair + all * OF_PAIR) : NULL;
    view->part = (Part){n, w->m, types, 0, run, nodes, number, NULL, ptr, src, NULL, level, above};
    memcpy(number, w->of_type, n * sizeof(i32)), memcpy(level, w->level, n * sizeof(i32)), memcpy(above, w->above, n * sizeof(i32));
    memcpy(ptr, w->ptr, (n + 1) * sizeof(i32)), memcpy(src, w->src, w->m * sizeof(i32));
    if (nodes) fill_brief(w, nodes), view->part.has_empty = fill_kids(w, (u16 *)(nodes + n));
    for (long t = 0; t < w->types; t++) {
        if (w->count[t]) {
            i32 made[] = {t, w->count[t], w->arguments[t], w->type_first_step[t + 1]};
            memcpy(run, made, sizeof(made)), run += OF_RUN;
        }
        for (i32 at = w->feed_ptr[t]; at < w->feed_ptr[t + 1]; at++, pair += OF_PAIR)
            pair[PAIR_READER] = t, pair[PAIR_PRODUCER] = w->feeds[at];
    }
    for (const i32 *met = w->met; met < w->met + w->meetings * OF_MEETING; met += OF_MEETING, pair += OF_PAIR)
        pair[PAIR_READER] = gathers[met[MET_BY]].port, pair[PAIR_PRODUCER] = met[MET_TYPE];
    view->seen = seen, view->top = w->top, view->pairs = pairs, view->meetings = w->meetings, view->size = size;
    return view;
}

/* A graph as a model sees it. Gives up on a cycle. */
static View *new_view(Work *batch, const Graph *g, const i32 *table, uint64_t seen, int is_kept) {
    Work *w = begin(batch->types, batch->outputs, 0);
    if (!w) longjmp(batch->give_up, 1);
    if (setjmp(w->give_up)) {
        release(w);
        longjmp(batch->give_up, 1);
    }
    i32 *type = ints(w, g->n), *ptr = ints(w, g->n + 1), *src = ints(w, g->m + 1);
    w->n = g->n, w->m = ptr[g->n] = as_nodes(g, table, w->port_ptr, 0, 0, type, ptr, src);
    w->type = type, w->ptr = ptr, w->src = src;
    count_types(w);
    sort_by_type(w);
    if (!find_edges(w)) longjmp(w->give_up, 1);
    find_feeds(w);
    w->groups = 1, w->cyclic = filled(w, 1, 1), w->group_of = ints(w, w->types);
    for (long t = 0; t < w->types; t++) w->group_of[t] = t;
    find_levels(w);
    count_levels(w);
    w->turn = w->level;
    make_part(w);
    find_outputs(w);
    Gather *gathers = list_gathers(w);
    find_meetings(w, gathers);
    View *view = keep_view(batch, w, gathers, seen, is_kept);
    release(w);
    return view;
}

/* The view of a graph. Others may look for one at the same time, so views are never changed, only added. */
static View *view_of(Work *w, Graph *g, const i32 *table, uint64_t seen) {
    int many = 0;
    for (View *view = __atomic_load_n(&g->views, __ATOMIC_ACQUIRE); view; view = view->next, many++)
        if (view->seen == seen) return view;
    View *made = new_view(w, g, table, seen, many < MOST_VIEWS);
    if (many >= MOST_VIEWS) return made;
    made->next = __atomic_load_n(&g->views, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&g->views, &made->next, made, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
    return made;
}

/* A number for what a view depends on: FNV-1a over the table, and over the types and their ports. */
static uint64_t as_seen(const Work *w, const i32 *table) {
    const i32 *end = w->positions + w->position_ptr[w->port_ptr[w->types]];
    uint64_t seen = 14695981039346656037u ^ (uint64_t)w->types;
    for (long kind = 0; kind < MOST_KINDS; kind++) seen = (seen ^ (uint32_t)table[kind]) * 1099511628211u;
    for (const i32 *number = w->outputs; number < end; number++) seen = (seen ^ (uint32_t)*number) * 1099511628211u;
    return seen;
}

/* All graphs as parts, and sums over them. `feeds` gets who feeds whom in any of them, `met` which types ports meet. */
static void find_parts(Work *w, Graph *const *graph, long count, const i32 *table, char *feeds, char *met) {
    uint64_t seen = as_seen(w, table);
    int has_bags = 0;
    for (i32 port = 0; port < w->port_ptr[w->types]; port++) has_bags |= w->port_kind[port] != SLOTS;
    w->part = take(w, count, sizeof(Part *)), w->parts = count;
    w->count = zeros(w, w->types), w->arguments = zeros(w, w->types), w->type_first_step = zeros(w, w->types + 1);
    for (long i = 0; i < count; i++) {
        const View *ahead = i + AHEAD < count ? graph[i + AHEAD]->views : NULL;
        if (ahead) approach((const i32 *)ahead, FIRST_LINES * LINE / sizeof(i32));
        View *view = view_of(w, graph[i], table, seen);
        const Part *p = w->part[i] = &view->part;
        approach(view->arrays, has_bags || !p->brief ? p->src + p->m - view->arrays : view->size);
        w->n += p->n, w->m += p->m, w->top = view->top > w->top ? view->top : w->top;
        w->brief_top = p->brief && view->top > w->brief_top ? view->top : w->brief_top;
        for (const i32 *run = p->runs; run < p->runs + p->types * OF_RUN; run += OF_RUN) {
            i32 t = run[RUN_TYPE], *levels = w->type_first_step + t + 1;
            w->count[t] += run[RUN_COUNT], w->arguments[t] += run[RUN_ARGUMENTS];
            *levels = run[RUN_LEVELS] > *levels ? run[RUN_LEVELS] : *levels;
        }
        const i32 *pair = p->runs + p->types * OF_RUN, *meeting = pair + view->pairs * OF_PAIR, *end = meeting + view->meetings * OF_PAIR;
        for (; pair < meeting; pair += OF_PAIR) feeds[pair[PAIR_READER] * w->types + pair[PAIR_PRODUCER]] = 1;
        for (; pair < end; pair += OF_PAIR) met[pair[PAIR_READER] * w->types + pair[PAIR_PRODUCER]] = 1;
    }
}

/* The types that ports meet, as outputs: vertices have one. */
static void list_meetings(Work *w, const char *met) {
    i32 number = 0;
    w->met = ints(w, OF_MEETING * (w->reads * w->types + 1));
    for (long t = 0; t < w->types; t++) {
        for (i32 port = w->port_ptr[t]; w->count[t] && port < w->port_ptr[t + 1]; port++, number++) {
            for (i32 producer = 0; producer < w->types; producer++) {
                i32 made[] = {number, producer, w->output_first[producer]};
                if (met[port * w->types + producer]) memcpy(w->met + OF_MEETING * w->meetings++, made, sizeof(made));
            }
        }
    }
}

/* The plan of a batch of graphs, as `weft_plan` makes it. None also where it is better planned as a program: cycles of several types,
   many types. */
Work *weft_plan_graphs(Graph *const *graph, long count, long types, const i32 *kinds, const i32 *table, long max_rows, i32 *plan,
                       long room, int with_returns) {
    plan[0] = 0;
    Work *w = begin(types, kinds, max_rows);
    if (!w) return NULL;
    if (types >= FEW || setjmp(w->give_up)) return release(w), NULL;
    long pairs = types * types, meetings = w->port_ptr[types] * types;
    char *feeds = memset(take(w, pairs + meetings, 1), 0, pairs + meetings), *met = feeds + pairs;
    find_parts(w, graph, count, table, feeds, met);
    list_feeds(w, feeds);
    find_first(w);
    find_groups(w, CONDENSE);
    for (long group = 0; group < w->groups; group++)
        if (w->group_ptr[group + 1] - w->group_ptr[group] > 1) return release(w), NULL;
    find_steps(w, CONDENSE);
    if (!measure(w)) return release(w), NULL;
    list_meetings(w, met);
    return complete(w, plan, room, with_returns);
}
