/* In which step each node runs: condense.py, components.py, levels.py, depth.py and agenda.py. */

static int ascending(const void *a, const void *b) { return *(const i32 *)a - *(const i32 *)b; }

enum { FEW = 128 }; /* types of which a table of all pairs is made */

/* From a table of all pairs to the types that feed each type, ascending. */
static void list_feeds(Work *w, const char *feeds) {
    i32 found = 0;
    w->feed_ptr = ints(w, w->types + 1), w->feeds = ints(w, w->types * w->types);
    for (long t = 0; t < w->types; t++) {
        w->feed_ptr[t] = found;
        for (long producer = 0; producer < w->types; producer++)
            if (feeds[t * w->types + producer]) w->feeds[found++] = producer;
    }
    w->feed_ptr[w->types] = found;
}

/* For each type those that feed it. */
static void find_feeds(Work *w) {
    long types = w->types, found = 0;
    if (types < FEW) {
        char *feeds = memset(take(w, types * types, 1), 0, types * types);
        for (long k = 0; k < w->m; k++)
            if (w->from[k] >= 0) feeds[w->type[w->to[k]] * types + w->type[w->from[k]]] = 1;
        list_feeds(w, feeds);
        return;
    }
    i32 *seen = filled(w, types, -1), *feeds = w->feeds = ints(w, w->m);
    w->feed_ptr = ints(w, types + 1);
    for (long t = 0; t < types; t++) {
        i32 before = w->feed_ptr[t] = found;
        for (long at = w->first[t]; at < w->first[t + 1]; at++) {
            for (i32 k = w->ptr[w->of_type[at]]; k < w->ptr[w->of_type[at] + 1]; k++) {
                i32 producer = w->src[k] < 0 ? -1 : w->type[w->src[k]];
                if (producer >= 0 && seen[producer] != t) seen[producer] = t, feeds[found++] = producer;
            }
        }
        qsort(feeds + before, found - before, sizeof(i32), ascending);
    }
    w->feed_ptr[types] = found;
}

/* Strongly connected components by Tarjan's algorithm with a stack of its own; `place` is a type's place among the open ones. */
static void condense_types(Work *w) {
    long listed = w->types, groups = 0;
    i32 *edges = w->feeds, *edge_ptr = w->feed_ptr;
    i32 *place = filled(w, w->types, -1), *reaches = ints(w, w->types), *next = ints(w, w->types);
    i32 *open = ints(w, w->types), *path = ints(w, w->types);
    memcpy(next, edge_ptr, w->types * sizeof(i32));
    for (long root = 0; root < w->types; root++) {
        if (place[root] >= 0) continue;
        long opened = 1, depth = 1;
        open[0] = path[0] = root;
        place[root] = reaches[root] = 0;
        while (depth) {
            i32 here = path[depth - 1], ahead = -1;
            while (ahead < 0 && next[here] < edge_ptr[here + 1]) {
                i32 producer = edges[next[here]++];
                if (place[producer] < listed) ahead = producer;
            }
            if (ahead < 0) {
                depth--;
                if (depth && reaches[here] < reaches[path[depth - 1]]) reaches[path[depth - 1]] = reaches[here];
                i32 from = place[here];
                if (reaches[here] != from) continue;
                for (long at = from; at < opened; at++) place[open[at]] = listed, w->group_of[open[at]] = groups;
                groups += w->count[here] > 0; /* only a type without nodes, which is alone, leaves its number to the next */
                opened = from;
            } else if (place[ahead] < 0) {
                place[ahead] = reaches[ahead] = opened;
                open[opened++] = path[depth++] = ahead;
            } else if (place[ahead] < reaches[here]) {
                reaches[here] = place[ahead];
            }
        }
    }
    w->groups = groups;
    w->cyclic = zeros(w, groups + 1);
    for (long t = 0; t < w->types; t++) {
        for (i32 at = edge_ptr[t]; at < edge_ptr[t + 1]; at++)
            if (w->group_of[edges[at]] == w->group_of[t]) w->cyclic[w->group_of[t]] = 1;
    }
}

/* The groups of a policy, and the types of each, ascending. */
static void find_groups(Work *w, long policy) {
    w->group_of = zeros(w, w->types);
    condense_types(w);
    if (policy != CONDENSE) { /* these know no components: all types run in one group */
        memset(w->group_of, 0, w->types * sizeof(i32));
        w->groups = w->cyclic[0] = 1;
    }
    w->group_ptr = zeros(w, w->groups + 1);
    for (long t = 0; t < w->types; t++)
        if (w->count[t]) w->group_ptr[w->group_of[t]]++;
    run_starts(w->group_ptr, w->groups);
    w->group_types = ints(w, w->types);
    i32 *next = ints(w, w->groups);
    memcpy(next, w->group_ptr, w->groups * sizeof(i32));
    for (long t = 0; t < w->types; t++)
        if (w->count[t]) w->group_types[next[w->group_of[t]]++] = t;
}

/* Edges from depth-first search with a stack of its own, so that a node's come after those of its arguments. Returns 0 if
   there is a cycle. */
static int search_edges(Work *w, i32 *from, i32 *to) {
    enum { NEW, OPEN, DONE };
    i32 *stack = ints(w, w->n), *next = ints(w, w->n);
    char *state = memset(take(w, w->n, 1), NEW, w->n);
    long edges = 0;
    for (long root = 0; root < w->n; root++) {
        if (state[root] != NEW) continue;
        long depth = 1;
        stack[0] = root, next[root] = w->ptr[root], state[root] = OPEN;
        while (depth) {
            i32 node = stack[depth - 1];
            if (next[node] == w->ptr[node + 1]) {
                for (i32 k = w->ptr[node]; k < w->ptr[node + 1]; k++) from[edges] = w->src[k], to[edges++] = node;
                state[node] = DONE, depth--;
                continue;
            }
            i32 source = w->src[next[node]++];
            if (source < 0 || state[source] == DONE) continue;
            if (state[source] == OPEN) return 0;
            stack[depth++] = source, next[source] = w->ptr[source], state[source] = OPEN;
        }
    }
    return 1;
}

/* All arguments as edges, those of a node after those of its arguments. Mostly that is the order of numbers: then who reads
   each argument is found without a branch, for branches that depend on the data are what would cost most here. */
static int find_edges(Work *w) {
    i32 *to = zeros(w, w->m + 1), late = 0;
    for (long node = 0; node < w->n; node++) to[w->ptr[node]] = node;
    for (long k = 0, reader = 0; k < w->m; k++) {
        reader = to[k] > reader ? to[k] : reader;
        to[k] = reader;
        late |= w->src[k] >= reader;
    }
    w->from = w->src, w->to = to;
    if (!late) return 1;
    i32 *from = ints(w, w->m);
    w->from = from;
    return search_edges(w, from, to);
}

/* The longest way to each node inside its group, and from each node to one that nobody reads. Empty arguments, -1, find room
   before the first node. */
static void find_levels(Work *w) {
    const i32 *from = w->from, *to = w->to, *type = w->type, *group_of = w->group_of;
    i32 *level = w->level = zeros(w, w->n + 1) + 1, *above = w->above = zeros(w, w->n + 1) + 1;
    i32 reader = -1, highest = 0; /* the edges of one reader follow each other */
    int any = 0;
    for (long g = 0; g < w->groups; g++) any |= w->cyclic[g];
    for (long k = 0; any && k < w->m; k++) {
        if (from[k] < 0) continue;
        i32 inside = -(group_of[type[from[k]]] == group_of[type[to[k]]]), same = -(to[k] == reader);
        i32 way = (level[from[k]] + 1) & inside, before = highest & same; /* no branches, here too */
        reader = to[k];
        level[reader] = highest = way > before ? way : before;
    }
    i32 top = 0;
    for (long k = w->m - 1; k >= 0; k--) {
        i32 way = above[to[k]] + 1, before = above[from[k]];
        above[from[k]] = way > before ? way : before;
    }
    for (long i = 0; i < w->n; i++) top = above[i] > top ? above[i] : top;
    w->top = top;
}

/* One step for every level and type that occurs in a group, in that order; returns how many. */
static long depth_steps(Work *w, long group, i32 *step, i32 *starts, i32 *sorted) {
    const i32 *types = w->group_types + w->group_ptr[group];
    long many = w->group_ptr[group + 1] - w->group_ptr[group], highest = 0, total = 0;
    for (long g = 0; g < many; g++)
        for (i32 at = w->first[types[g]]; at < w->first[types[g] + 1]; at++, total++)
            highest = w->level[w->of_type[at]] > highest ? w->level[w->of_type[at]] : highest;
    memset(starts, 0, (highest + 1) * sizeof(i32));
    for (long g = 0; g < many; g++)
        for (i32 at = w->first[types[g]]; at < w->first[types[g] + 1]; at++) starts[w->level[w->of_type[at]]]++;
    run_starts(starts, highest + 1);
    for (long g = 0; g < many; g++)
        for (i32 at = w->first[types[g]]; at < w->first[types[g] + 1]; at++)
            sorted[starts[w->level[w->of_type[at]]]++] = w->of_type[at];
    long found = -1;
    for (long at = 0; at < total; at++) {
        i32 node = sorted[at], before = at ? sorted[at - 1] : -1;
        found += before < 0 || w->level[node] != w->level[before] || w->type[node] != w->type[before];
        step[node] = found;
    }
    return found + 1;
}

/* Who reads each node inside its group, how many arguments each node waits for; and by type, which nodes are ready (each
   followed by another), how many have not run, and the sum and mean of their levels. */
typedef struct {
    i32 *reader_ptr, *readers, *pending, *ready, *following, *left, *step;
    double *height, *mean;
} Agenda;

static Agenda new_agenda(Work *w) {
    Agenda a = {zeros(w, w->n + 2), ints(w, w->m), zeros(w, w->n)};
    a.ready = filled(w, w->types, -1), a.following = ints(w, w->n), a.left = ints(w, w->types), a.step = ints(w, w->n);
    a.height = take(w, w->types, sizeof(double)), a.mean = take(w, w->types, sizeof(double));
    i32 *starts = a.reader_ptr + 1;
    for (int placing = 0; placing < 2; placing++) {
        for (long node = 0; node < w->n; node++) {
            for (i32 k = w->ptr[node]; k < w->ptr[node + 1]; k++) {
                i32 source = w->src[k];
                if (source < 0 || w->group_of[w->type[source]] != w->group_of[w->type[node]]) continue;
                if (placing) a.readers[starts[source]++] = node;
                else starts[source]++, a.pending[node]++;
            }
        }
        if (!placing) run_starts(starts, w->n);
    }
    return a; /* placing moved each start to the next one's */
}

/* Of the types of a group that have a ready node, all ready nodes of the one with the lowest mean level; returns how many. */
static long agenda_steps(Work *w, long group, Agenda a) {
    const i32 *types = w->group_types + w->group_ptr[group];
    long many = w->group_ptr[group + 1] - w->group_ptr[group], steps = 0;
    for (long g = 0; g < many; g++) {
        i32 t = types[g];
        a.left[t] = w->count[t], a.height[t] = 0;
        for (i32 at = w->first[t]; at < w->first[t + 1]; at++) {
            i32 node = w->of_type[at];
            a.height[t] += w->level[node];
            if (!a.pending[node]) a.following[node] = a.ready[t], a.ready[t] = node;
        }
        a.mean[t] = a.height[t] / a.left[t];
    }
    for (;; steps++) {
        i32 lowest = -1;
        for (long g = 0; g < many; g++)
            if (a.ready[types[g]] >= 0 && (lowest < 0 || a.mean[types[g]] < a.mean[lowest])) lowest = types[g];
        if (lowest < 0) return steps;
        i32 node = a.ready[lowest];
        a.ready[lowest] = -1;
        for (i32 next; node >= 0; node = next) {
            next = a.following[node];
            a.step[node] = steps, a.left[lowest]--, a.height[lowest] -= w->level[node];
            for (i32 at = a.reader_ptr[node]; at < a.reader_ptr[node + 1]; at++) {
                i32 reader = a.readers[at], kind = w->type[reader];
                if (!--a.pending[reader]) a.following[reader] = a.ready[kind], a.ready[kind] = reader;
            }
        }
        a.mean[lowest] = a.height[lowest] / (a.left[lowest] > 1 ? a.left[lowest] : 1);
    }
}

/* The steps of a group that runs in the order of `step`: which of its type's steps each node runs in, and the list. */
static i32 *list_steps(Work *w, long group, const i32 *step, long steps, i32 *list, i32 *type_of) {
    for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++)
        for (i32 t = w->group_types[g], at = w->first[t]; at < w->first[t + 1]; at++) type_of[step[w->of_type[at]]] = t;
    for (long s = 0; s < steps; s++) list[s] = w->type_first_step[type_of[s] + 1]++; /* counts the steps of each type */
    for (i32 g = w->group_ptr[group]; g < w->group_ptr[group + 1]; g++)
        for (i32 t = w->group_types[g], at = w->first[t]; at < w->first[t + 1]; at++)
            w->turn[w->of_type[at]] = list[step[w->of_type[at]]];
    for (long s = 0; s < steps; s++) list[s] = type_of[s];
    return list + steps;
}

/* How many levels each type has, in the place after its own. */
static void count_levels(Work *w) {
    const i32 *level = w->level, *type = w->type;
    i32 *levels = w->type_first_step = zeros(w, w->types + 1);
    for (long i = 0; i < w->n; i++)
        if (level[i] >= levels[type[i] + 1]) levels[type[i] + 1] = level[i] + 1;
}

/* The steps of all groups, one group after the other. */
static void find_steps(Work *w, long policy) {
    i32 *list = w->listed_steps = ints(w, w->n), *step = NULL, *scratch = NULL, *starts = NULL, *steps_of = w->type_first_step;
    w->group_first_step = ints(w, w->groups + 1);
    w->turn = w->level;
    Agenda agenda = {0};
    for (long group = 0; group < w->groups; group++) {
        const i32 *types = w->group_types + w->group_ptr[group];
        long many = w->group_ptr[group + 1] - w->group_ptr[group];
        w->group_first_step[group] = list - w->listed_steps;
        if (many == 1 && policy == CONDENSE) { /* by levels, which are all 0 where the group is on no cycle */
            for (i32 s = 0; s < steps_of[types[0] + 1]; s++) *list++ = types[0];
            continue;
        }
        if (!step) step = ints(w, w->n), scratch = ints(w, w->n), starts = ints(w, w->n + 2);
        long steps = policy == AGENDA ? w->n + 1 : depth_steps(w, group, step, starts, scratch);
        const i32 *best = step;
        if (policy != DEPTH) {
            if (!agenda.step) agenda = new_agenda(w);
            long by_agenda = agenda_steps(w, group, agenda);
            if (by_agenda < steps) steps = by_agenda, best = agenda.step;
        }
        for (long g = 0; g < many; g++) steps_of[types[g] + 1] = 0;
        list = list_steps(w, group, best, steps, list, scratch);
    }
    w->steps = w->group_first_step[w->groups] = list - w->listed_steps;
    for (long t = 0; t < w->types; t++) steps_of[t + 1] += steps_of[t];
}
