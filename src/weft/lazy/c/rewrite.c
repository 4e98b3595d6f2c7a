/* Blocks become single calls. After `arrays.c`. */

static int says(i64 known, i64 seen)
{
    return known == seen || known == VARIES;
}

/* Whether a recording shows nothing that is not known of its types: `Chains.see` and what `Coarse.see` notes. */
typedef struct {
    const int *type;
    const i64 *arguments, *first, *word, *near, *first_out;
    const char *is_many, *needed;
    i64 n, outputs;
} Shown;

static int is_needed(const Shown *s, i64 ref)
{
    i64 at = s->first_out[s->type[ref >> BITS]] + (ref & LOW);
    return at < s->outputs && s->needed[at];
}

static int column_known(const Shown *s, i64 i, i64 column, i64 ref)
{
    i64 at = s->first[s->type[i]] + column, distance = ref < 0 ? FAR_AWAY : i - (ref >> BITS);
    return says(s->word[at], ref < 0 ? FAR_AWAY : distance << BITS | (ref & LOW)) && s->near[at] <= distance;
}

/* Blocks as single calls, after the calls that hand in what earlier flushes gave: `rewrite.rewrite` and `joined`. */
PyObject *weft_rewrite(PyObject *given)
{
    Arrays a;
    if (!hold(&a, given)) return NULL;
    const int *type = ARRAY(a, 0, int), *further = ARRAY(a, 2, int), *imported = ARRAY(a, 5, int);
    const i64 *arguments = ARRAY(a, 1, i64), *wanted = ARRAY(a, 4, i64), *slot = ARRAY(a, 6, i64), *arity = ARRAY(a, 7, i64);
    const i64 *after = ARRAY(a, 10, i64), *preceding = ARRAY(a, 11, i64), *in_block = ARRAY(a, 14, i64);
    const i64 *numbers = ARRAY(a, 17, i64), *new_out = ARRAY(a, 18, i64), *label = ARRAY(a, 20, i64);
    const char *starts = ARRAY(a, 3, char), *kept = ARRAY(a, 19, char);
    i64 n = LENGTH(a, 0, int), count = LENGTH(a, 1, i64), imports = LENGTH(a, 5, int), columns = LENGTH(a, 12, i64);
    i64 wants = LENGTH(a, 4, i64), types = LENGTH(a, 10, i64), kinds = *ARRAY(a, 21, i64);
    Shown s = {type, arguments, ARRAY(a, 8, i64), ARRAY(a, 12, i64), ARRAY(a, 13, i64), ARRAY(a, 15, i64),
               ARRAY(a, 9, char), ARRAY(a, 16, char), n, LENGTH(a, 16, char)};
    Memory m = {.count = 0};
    PyObject *found = NULL;
    i64 *place = room(&m, n, sizeof(i64)), *moved = room(&m, count, sizeof(i64)), *results = room(&m, wants, sizeof(i64));
    i64 *value = room(&m, columns, sizeof(i64)), *stamp = room(&m, columns, sizeof(i64));
    int *made = room(&m, imports + n, sizeof(int)), *heads = room(&m, n, sizeof(int)), *rank = room(&m, kinds, sizeof(int));
    int *ptr = room(&m, imports + n + 1, sizeof(int)), *src = room(&m, count, sizeof(int)), *out = room(&m, count, sizeof(int));
    int *feed = room(&m, imports + n, sizeof(int));
    i64 calls = 0, reads = 0, at = 0, far = 0;
    if (m.failed) goto end;
    for (i64 i = 0; i < imports; i++) {
        if (imported[i] < 0 || imported[i] >= kinds) goto unknown;
        made[i] = imported[i];
        feed[i] = rank[imported[i]]++;
    }
    for (i64 i = 0; i < n; i++) {
        i64 t = type[i];
        if (t >= types) goto unknown;
        if (!says(after[t], starts[i + 1] ? VARIES : type[i + 1]) || !says(preceding[t], starts[i] ? VARIES : type[i - 1])) goto unknown;
        if (in_block[t] == 0) {
            if (numbers[t] < 0 || numbers[t] >= kinds) goto unknown;
            heads[calls] = (int)i;
            made[imports + calls] = (int)numbers[t];
            feed[imports + calls] = rank[numbers[t]]++;
            ptr[imports + calls++] = (int)reads;
        } else if (!calls) goto unknown;
        place[i] = calls - 1;
        i64 end = at + arity[t] + (s.is_many[t] ? further[far++] : 0);
        for (i64 column = 0; at < end; at++, column++) {
            i64 ref = arguments[at], producer = ref >> BITS;
            if (!s.is_many[t] && !column_known(&s, i, column, ref)) goto unknown;
            int inside = ref >= 0 && place[producer] == place[i];
            if (ref >= 0 && !inside && !is_needed(&s, ref)) goto unknown;
            if (!s.is_many[t]) {
                i64 where = s.first[t] + column, group = label[where];
                if (group >= 0) { /* arguments of a block that were always equal must be equal here */
                    if (stamp[group] == calls && value[group] != ref) goto unknown;
                    stamp[group] = calls;
                    value[group] = ref;
                }
                if (inside || !kept[where]) continue;
            } else if (inside) continue;
            i64 moves = ref < 0 ? slot[-ref - 1] << BITS : (imports + place[producer]) << BITS | new_out[s.first_out[type[producer]] + (ref & LOW)];
            src[reads] = (int)(moves >> BITS);
            out[reads] = (int)(moves & LOW);
            moved[reads++] = moves;
        }
    }
    ptr[imports + calls] = (int)reads;
    for (i64 i = 0; i < wants; i++) {
        if (!is_needed(&s, wanted[i])) goto unknown;
        i64 call = wanted[i] >> BITS;
        results[i] = (imports + place[call]) << BITS | new_out[s.first_out[type[call]] + (wanted[i] & LOW)];
    }
    found = Py_BuildValue("NNNNNNNN", OUT(made, imports + calls, int), OUT(moved, reads, i64), OUT(heads, calls, int),
                          OUT(results, wants, i64), OUT(ptr, imports + calls + 1, int), OUT(src, reads, int),
                          OUT(out, reads, int), OUT(feed, imports + calls, int));
end:
    free_all(&m);
    let_go(&a);
    return found != NULL || PyErr_Occurred() ? found : PyErr_NoMemory();
unknown:
    free_all(&m);
    let_go(&a);
    Py_RETURN_NONE;
}
