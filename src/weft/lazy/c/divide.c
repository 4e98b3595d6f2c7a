/* Which calls of a flush run now. After `arrays.c`. */

static i64 ref_of(PyObject *value) /* a new error where there is none */
{
    static PyObject *name = NULL;
    if (name == NULL && (name = PyUnicode_InternFromString("_ref")) == NULL) return -1;
    PyObject *ref = PyObject_GetAttr(value, name);
    i64 found = ref == NULL ? -1 : PyLong_AsLongLong(ref);
    Py_XDECREF(ref);
    return found;
}

/* The items of some lists that somebody else holds, too. */
static PyObject *held_of(PyObject *lists)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t k = 0; found != NULL && k < PyList_GET_SIZE(lists); k++) {
        PyObject *values = PyList_GET_ITEM(lists, k);
        for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(values); i++) {
            PyObject *item = PyList_GET_ITEM(values, i);
            if (Py_REFCNT(item) > 1 && PyList_Append(found, item) < 0) Py_CLEAR(found);
        }
    }
    return found;
}

static i64 place_of(PyObject *results, i64 ref) /* -1 where it is not known; or an error */
{
    PyObject *key = PyLong_FromLongLong(ref), *known = key == NULL ? NULL : PyDict_GetItemWithError(results, key);
    Py_XDECREF(key);
    return known == NULL ? -1 : PyLong_AsLongLong(known);
}

/* Where some references are: rows source by source, which of them each reference has, and how many each source has. */
static PyObject *found_rows(const i64 *refs, i64 n, PyObject *results)
{
    PyObject *found = NULL, *sources = PyList_New(0);
    i64 most = -1, first = 0;
    Memory m = {.count = 0};
    i64 *at = room(&m, n, sizeof(i64)), *rows = room(&m, n, sizeof(i64)), *place = room(&m, n, sizeof(i64));
    if (sources == NULL || m.failed) goto end;
    for (i64 i = 0; i < n; i++) {
        at[i] = place_of(results, refs[i]);
        if (at[i] < 0 && !PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "%lld", refs[i]);
        if (at[i] < 0) goto end;
        if (at[i] >> ROW_BITS > most) most = at[i] >> ROW_BITS;
    }
    i64 *next = room(&m, most + 2, sizeof(i64));
    if (m.failed) goto end;
    for (i64 i = 0; i < n; i++) next[(at[i] >> ROW_BITS) + 1]++;
    for (i64 source = 0; source <= most; source++) {
        i64 count = next[source + 1];
        next[source + 1] = first += count;
        PyObject *pair = count ? Py_BuildValue("LL", source, count) : NULL;
        if (count && (pair == NULL || PyList_Append(sources, pair) < 0)) goto end;
        Py_XDECREF(pair);
    }
    for (i64 i = 0; i < n; i++) {
        place[i] = next[at[i] >> ROW_BITS]++;
        rows[place[i]] = at[i] & ((1LL << ROW_BITS) - 1);
    }
    found = Py_BuildValue("NNO", OUT(rows, n, i64), OUT(place, n, i64), sources);
end:
    free_all(&m);
    Py_XDECREF(sources);
    return found != NULL || PyErr_Occurred() ? found : PyErr_NoMemory();
}

/* The chosen ones of some calls: number, type, arguments, further counts, starts, example. */
typedef struct {
    i64 n, *number, *arguments, count, fars;
    int *type, *further, *example;
    char *starts;
} Part;

static void part_room(Part *p, Memory *m, i64 n, i64 arguments, i64 further)
{
    memset(p, 0, sizeof *p);
    p->number = room(m, n, sizeof(i64));
    p->arguments = room(m, arguments, sizeof(i64));
    p->type = room(m, n, sizeof(int));
    p->further = room(m, further, sizeof(int));
    p->example = room(m, n, sizeof(int));
    p->starts = room(m, n + 1, 1);
}

/* What is asked about the calls of a division. */
typedef struct {
    PyObject *held; /* values that somebody holds */
    i64 *refs, *asked, asks, *alive, lives, examples;
    char *busy; /* for each example whether it goes on; without examples nothing is left */
} Question;

/* Values of calls from `least` on are asked about; of those from `fresh` on there are no results yet. */
static int question(Question *q, Memory *m, PyObject *busy, PyObject *asked, PyObject *lists, PyObject *wanted, PyObject *results,
                    i64 least, i64 fresh)
{
    i64 count = busy == Py_None ? 0 : PyList_GET_SIZE(busy), *numbers = room(m, count, sizeof(i64));
    if ((q->held = held_of(lists)) == NULL || m->failed || (count && !numbers_of(busy, numbers))) return 0;
    for (i64 i = 0; i < count; i++)
        if (numbers[i] >= q->examples) q->examples = numbers[i] + 1;
    q->busy = room(m, q->examples, 1);
    q->asked = room(m, q->asks = PyList_GET_SIZE(asked), sizeof(i64));
    q->alive = room(m, wanted == Py_None ? PyList_GET_SIZE(q->held) : PyObject_Length(wanted), sizeof(i64));
    q->refs = room(m, PyList_GET_SIZE(q->held), sizeof(i64));
    if (m->failed) return 0;
    for (i64 i = 0; i < count; i++) q->busy[numbers[i]] = 1;
    for (i64 i = 0; i < q->asks; i++) q->asked[i] = ref_of(PyList_GET_ITEM(asked, i));
    if (wanted != Py_None) {
        Py_buffer view;
        if (PyObject_GetBuffer(wanted, &view, PyBUF_SIMPLE) < 0) return 0;
        memcpy(q->alive, view.buf, view.len);
        q->lives = view.len / sizeof(i64);
        PyBuffer_Release(&view);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(q->held); i++) {
        i64 ref = q->refs[i] = ref_of(PyList_GET_ITEM(q->held, i));
        if (wanted == Py_None && ref >= least && (ref >= fresh || place_of(results, ref) < 0)) q->alive[q->lives++] = ref;
    }
    return !PyErr_Occurred();
}

/* Which calls run now and which wait: `division.divided`. */
PyObject *weft_divide(PyObject *given)
{
    Arrays a;
    PyObject *arrays, *is_busy, *asked, *lists, *wishes, *results, *waiting = NULL, *found = NULL;
    if (!PyArg_ParseTuple(given, "O!OO!O!OO!", &PyTuple_Type, &arrays, &is_busy, &PyList_Type, &asked, &PyList_Type, &lists, &wishes,
                          &PyDict_Type, &results) || !hold(&a, arrays))
        return NULL;
    const i64 *number = ARRAY(a, 0, i64), *arguments = ARRAY(a, 2, i64), *arity = ARRAY(a, 6, i64);
    const int *type = ARRAY(a, 1, int), *further = ARRAY(a, 3, int), *example = ARRAY(a, 5, int);
    const char *starts = ARRAY(a, 4, char), *is_many = ARRAY(a, 7, char), *eager = ARRAY(a, 8, char), *waits = ARRAY(a, 9, char);
    i64 n = LENGTH(a, 0, i64), count = LENGTH(a, 2, i64), fars = LENGTH(a, 3, int), known = LENGTH(a, 9, char);
    i64 first = n ? number[0] : 0, span = n ? number[n - 1] - first + 1 : 0, types = LENGTH(a, 6, i64), presents = 0;
    Memory m = {.count = 0}, more = {.count = 0};
    Question q = {.held = NULL};
    Part now, later;
    int is_unknown = 0;
    if ((waiting = PyList_New(0)) == NULL || !question(&q, &more, is_busy, asked, lists, wishes, results, first << BITS, known << BITS))
        goto end;
    int *place = room(&m, span, sizeof(int)), *run = room(&m, n, sizeof(int));
    i64 *start = room(&m, n + 1, sizeof(i64)), *producer = room(&m, count, sizeof(i64)), *rest = room(&m, n, sizeof(i64));
    i64 *wanted = room(&m, count + q.lives, sizeof(i64)), *present = room(&m, types, sizeof(i64));
    char *left = room(&m, n, 1), *runs = room(&m, n, 1);
    if (m.failed) goto end;
    memset(place, -1, span * sizeof(int));
    for (i64 i = 0; i < n; i++) place[number[i] - first] = (int)i;
    for (i64 i = 0, far = 0; i < n; i++) {
        start[i + 1] = start[i] + arity[type[i]] + (is_many[type[i]] ? further[far++] : 0);
        run[i] = (i ? run[i - 1] : 0) + starts[i];
        left[i] = q.examples && (!eager[type[i]] || example[i] >= q.examples || !q.busy[example[i]]);
        for (i64 k = start[i]; k < start[i + 1]; k++) {
            i64 at = (arguments[k] >> BITS) - first;
            producer[k] = arguments[k] >= 0 && at >= 0 && at < span ? place[at] : -1;
            if (producer[k] < 0 && arguments[k] >= 0 && arguments[k] >> BITS < known && waits[arguments[k] >> BITS]) left[i] = 1;
        }
    }
    i64 wants = 0;
    is_unknown = 1;
    for (i64 i = 0; i < n; i++)
        for (i64 k = start[i]; k < start[i + 1]; k++)
            if (producer[k] >= 0) {
                if (!left[i] && left[producer[k]]) goto end;
                if (left[i] && !left[producer[k]]) wanted[wants++] = arguments[k];
            }
    for (i64 i = 0; i < q.asks; i++) {
        i64 at = (q.asked[i] >> BITS) - first;
        if (at < 0 || at >= span || place[at] < 0 || left[place[at]]) goto end;
    }
    is_unknown = 0;
    for (i64 i = 0; i < q.lives; i++) {
        i64 at = (q.alive[i] >> BITS) - first;
        if (at >= 0 && at < span && place[at] >= 0 && !left[place[at]]) wanted[wants++] = q.alive[i];
    }
    for (i64 i = 0; i < PyList_GET_SIZE(q.held); i++) {
        i64 call = q.refs[i] >> BITS, at = call - first;
        int is_here = at >= 0 && at < span && place[at] >= 0;
        int is_left = is_here ? left[place[at]] : call >= 0 && call < known && waits[call];
        if (is_left && PyList_Append(waiting, PyList_GET_ITEM(q.held, i)) < 0) goto end;
    }
    wants = unique(wanted, wants);
    for (i64 i = 0; i < wants; i++) runs[place[(wanted[i] >> BITS) - first]] = 1;
    for (i64 i = n - 1; i >= 0; i--)
        for (i64 k = start[i]; runs[i] && k < start[i + 1]; k++)
            if (producer[k] >= 0) runs[producer[k]] = 1;
    part_room(&now, &m, n, count, fars);
    part_room(&later, &more, n, count, fars);
    i64 *handed = room(&more, count, sizeof(i64)), *chosen = room(&more, wants, sizeof(i64));
    if (m.failed || more.failed) goto end;
    i64 hands = 0, last_run[2] = {-1, -1};
    for (i64 i = 0, far = 0; i < n; i++) {
        int many = is_many[type[i]];
        if (runs[i] || left[i]) {
            Part *p = left[i] ? &later : &now;
            rest[i] = p->n;
            p->starts[p->n] = run[i] != last_run[left[i]];
            last_run[left[i]] = run[i];
            p->number[p->n] = number[i];
            p->example[p->n] = example[i];
            p->type[p->n++] = type[i];
            if (many) p->further[p->fars++] = further[far];
            for (i64 k = start[i]; k < start[i + 1]; k++) {
                p->arguments[p->count++] = left[i] || producer[k] < 0 ? arguments[k] : rest[producer[k]] << BITS | (arguments[k] & LOW);
                if (!left[i] && producer[k] < 0) handed[hands++] = arguments[k];
            }
            if (!left[i]) present[type[i]] = 1;
        }
        far += many;
    }
    now.starts[0] = now.starts[now.n] = later.starts[0] = later.starts[later.n] = 1;
    hands = unique(handed, hands);
    for (i64 i = 0, at = 0; i < n; i++)
        for (i64 k = start[i]; runs[i] && k < start[i + 1]; k++, at++)
            if (producer[k] < 0) now.arguments[at] = -1 - position(handed, hands, arguments[k]);
    for (i64 i = 0; i < wants; i++) chosen[i] = rest[place[(wanted[i] >> BITS) - first]] << BITS | (wanted[i] & LOW);
    for (i64 t = 0; t < types; t++)
        if (present[t]) present[presents++] = t;
    PyObject *rows = found_rows(handed, hands, results);
    if (rows != NULL)
        found = Py_BuildValue("ONNNNNNNNNNNNNNNNN", waiting, rows, OUT(runs, n, char), OUT(left, n, char), OUT(wanted, wants, i64),
                              OUT(chosen, wants, i64), OUT(handed, hands, i64), OUT(present, presents, i64), OUT(now.type, now.n, int),
                              OUT(now.arguments, now.count, i64), OUT(now.further, now.fars, int), OUT(now.starts, now.n + 1, char),
                              OUT(later.number, later.n, i64), OUT(later.type, later.n, int), OUT(later.arguments, later.count, i64),
                              OUT(later.further, later.fars, int), OUT(later.starts, later.n + 1, char), OUT(later.example, later.n, int));
end:
    free_all(&more);
    free_all(&m);
    let_go(&a);
    Py_XDECREF(q.held);
    Py_XDECREF(waiting);
    if (is_unknown && !PyErr_Occurred()) Py_RETURN_NONE;
    return found != NULL || PyErr_Occurred() ? found : PyErr_NoMemory();
}
