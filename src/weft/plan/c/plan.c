/* From a program to a plan: first all that its size depends on, then the plan itself. */

/* From steps to the size of the plan. Returns 0 where 32 bits do not suffice. */
static int measure(Work *w) {
    find_keys(w);
    find_pieces(w);
    find_outputs(w);
    find_sizes(w);
    return w->total <= INT32_MAX;
}

/* All of a program as one part. */
static void make_part(Work *w) {
    i32 *runs = ints(w, w->types * OF_RUN), types = 0;
    for (long t = 0; t < w->types; t++)
        if (w->count[t]) runs[types * OF_RUN + RUN_TYPE] = t, runs[types++ * OF_RUN + RUN_COUNT] = w->count[t];
    Part *made = take(w, 1, sizeof(Part));
    *made = (Part){w->n, w->m, types, 0, runs, NULL, w->of_type, w->type, w->ptr, w->src, w->out, w->turn, w->above};
    w->part = take(w, 1, sizeof(Part *)), w->part[0] = made, w->parts = 1;
}

/* Complete a plan in `plan`, which has room for it, and let the work go. Returns 0 if it had to be given up. */
int weft_fill(Work *w, i32 *plan) {
    if (setjmp(w->give_up)) return release(w), 0;
    Gather *gathers = list_gathers(w);
    if (!w->met) find_meetings(w, gathers);
    i32 *next = fill_tables(w, plan), *host = fill_steps(w, plan, plan + w->device);
    i32 *parent = ints(w, w->num_outputs);
    join_outputs(w, gathers, parent);
    fill_classes(w, plan, parent);
    Where where = {find_shifts(w, plan) ? NULL : ints(w, w->n), ints(w, w->n)};
    approach(plan + w->table, next - plan - w->table);
    fill_rows(w, plan, where);
    next = fill_gathers(w, plan, gathers, where, next);
    plan[DEVICE_END] = fill_step_tables(w, plan, next) - plan;
    fill_cuts(w, plan, gathers, host);
    i32 *views = fill_shape(w, plan, plan + plan[AT_SHAPE]), *end = fill_views(w, plan, views);
    plan[AT_VIEWS] = views - plan, plan[TABLE_END] = end - plan, plan[PLAN_END] = w->total, plan[BACK_ROOM] = returns_room(plan);
    release(w);
    return 1;
}

/* Complete a plan in `plan`, of `room` numbers, and behind it its returns, if they are asked for and there is room for them, too. Returns
   the work where the plan needs more: `plan[0]` says how much, and `weft_fill` completes it elsewhere. */
static Work *complete(Work *w, i32 *plan, long room, int with_returns) {
    long end = w->total;
    if (end > room) return plan[0] = end, w;
    if (!weft_fill(w, plan)) return plan[0] = 0, NULL;
    if (with_returns && plan[BACK_ROOM] && end + plan[BACK_ROOM] <= room) plan[HAS_BACK] = weft_returns(plan, plan + end);
    return NULL;
}

/* Make a plan in `plan`, of `room` numbers (see `complete`). `plan[0]`, of a plan the number of its groups, is 0 where the program is not
   sound, has a cycle, or memory or 32 bits do not suffice. */
Work *weft_plan(long n, long m, long types, const i32 *kinds, const i32 *type, const i32 *ptr, const i32 *src, const i32 *out,
                long policy, long max_rows, i32 *plan, long room, int with_returns) {
    plan[0] = 0;
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
    return measure(w) ? complete(w, plan, room, with_returns) : (release(w), NULL);
}
