/* The ways to record a call: each builds its key, looks it up, and appends what it finds. After `keys.c`. */

static PyObject *new_value(PyObject *tape, long long ref, PyObject *kind)
{
    PyObject *value = ValueType->tp_alloc(ValueType, 0);
    if (value == NULL) return NULL;
    Py_INCREF(tape);
    Py_INCREF(kind);
    SLOT(value, v_tape) = tape;
    SLOT(value, v_kind) = kind;
    SLOT(value, v_ref) = PyLong_FromLongLong(ref);
    PyObject *values = SLOT(tape, t_values);
    if (SLOT(value, v_ref) == NULL || (values != NULL && PyList_CheckExact(values) && PyList_Append(values, value) < 0)) {
        Py_DECREF(value);
        return NULL;
    }
    return value;
}

static PyObject *values_of(PyObject *tape, long long ref, PyObject *kinds)
{
    Py_ssize_t count = PyTuple_GET_SIZE(kinds);
    PyObject *values = PyTuple_New(count);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        PyObject *value = new_value(tape, ref + i, PyTuple_GET_ITEM(kinds, i));
        if (value == NULL) Py_CLEAR(values);
        else PyTuple_SET_ITEM(values, i, value);
    }
    return values;
}

/* Append the call, and return what it gives: one value, or a tuple of values of these kinds. */
static PyObject *emit(PyObject *tape, PyObject *number, Parts *p, PyObject *single, PyObject *kinds)
{
    PyObject *types = SLOT(tape, t_type), *arguments = SLOT(tape, t_arguments);
    long long ref = number_of(SLOT(tape, t_next));
    PyObject *next = PyLong_FromLongLong(ref + Step);
    if (next == NULL || PyList_Append(types, number) < 0) {
        Py_XDECREF(next);
        return NULL;
    }
    Py_SETREF(SLOT(tape, t_next), next);
    for (int i = 0; i < p->numbers; i++)
        if (PyList_Append(arguments, p->refs[i]) < 0) return NULL;
    if (p->fed) {
        PyObject *rows = PyObject_GetItem(SLOT(tape, t_data), number); /* a new list where there is none yet */
        int good = rows != NULL;
        for (int i = 0; good && i < p->fed; i++) good = PyList_Append(rows, p->feeds[i]) == 0;
        Py_XDECREF(rows);
        if (!good) return NULL;
    }
    return kinds == NULL ? new_value(tape, ref, single) : values_of(tape, ref, kinds);
}

/* What an entry of the operators' table says; NULL without an error: go the long way. */
static PyObject *by_fast(PyObject *tape, Parts *p)
{
    PyObject *entry = look_up(SLOT(tape, t_fast), p);
    if (entry == NULL || !PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 2) return NULL;
    return emit(tape, PyTuple_GET_ITEM(entry, 0), p, PyTuple_GET_ITEM(entry, 1), NULL);
}

static PyObject *by_quick(PyObject *tape, Parts *p)
{
    PyObject *quick = look_up(SLOT(tape, t_quick), p);
    if (quick == NULL || !Py_IS_TYPE(quick, QuickType)) return NULL;
    PyObject *single = SLOT(quick, q_single), *kinds = SLOT(quick, q_kinds);
    if (single != Py_None) return emit(tape, SLOT(quick, q_number), p, single, NULL);
    return PyTuple_CheckExact(kinds) ? emit(tape, SLOT(quick, q_number), p, NULL, kinds) : NULL;
}

/* Whether calls may go the short way: not where every argument must be looked at. */
static int is_open(PyObject *tape)
{
    PyObject *table = SLOT(tape, t_quick);
    return table != NULL && PyDict_CheckExact(table) && PyDict_GET_SIZE(table);
}

/* `quick.short`: any call, by its function and its arguments. `first` is one more argument in front of them, or NULL. */
static PyObject *by_signature(PyObject *tape, PyObject *head, PyObject *first, PyObject *const *args, Py_ssize_t count, int up)
{
    Parts p = {.keys = 0, .numbers = 0, .fed = 0};
    PyObject *found = NULL;
    if (!is_open(tape)) return NULL;
    int good = put_new(&p, head) && put_place(&p, up) && (first == NULL || put_item(&p, tape, first));
    for (Py_ssize_t i = 0; good && i < count; i++) good = put_item(&p, tape, args[i]);
    if (good) found = by_quick(tape, &p);
    drop(&p);
    return found;
}

static PyObject *active_tape(void) /* borrowed; NULL where nothing is recorded */
{
    PyObject *tape = PyObject_GetAttr(Active, s_tape);
    if (tape == NULL) return NULL;
    Py_DECREF(tape); /* the thread's own namespace keeps it */
    return Py_IS_TYPE(tape, TapeType) && SLOT(tape, t_paused) == Py_False ? tape : NULL;
}

static PyObject *tape_of(PyObject *value)
{
    PyObject *tape = Py_IS_TYPE(value, ValueType) ? SLOT(value, v_tape) : NULL;
    return tape != NULL && Py_IS_TYPE(tape, TapeType) ? tape : NULL;
}

/* Whether a number is below LARGE of `value.py`. */
static int can_be_fed(PyObject *number)
{
    int overflow = 0;
    if (PyFloat_CheckExact(number)) return fabs(PyFloat_AS_DOUBLE(number)) < 1e38;
    long long whole = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && whole < 1LL << 62 && whole > -(1LL << 62);
}

/* An operator on a value and a number, which is a part of the key, or fed where numbers change from call to call. */
static PyObject *with_number(Shortcut *self, PyObject *tape, PyObject *value, PyObject *number, int feed)
{
    Parts p = {.keys = 0, .numbers = 0, .fed = 0};
    PyObject *found = NULL;
    int good = put_new(&p, self->name) && put_value(&p, value) && (feed || put_new(&p, number)) &&
               put_new(&p, (PyObject *)Py_TYPE(number));
    if (feed) {
        Py_INCREF(number);
        p.feeds[p.fed++] = number;
    }
    if (good && put_place(&p, 0)) found = by_fast(tape, &p);
    drop(&p);
    return found;
}

static PyObject *with_value(Shortcut *self, PyObject *tape, PyObject *value, PyObject *other)
{
    Parts p = {.keys = 0, .numbers = 0, .fed = 0};
    PyObject *found = NULL;
    int good = put_new(&p, self->name) && put_value(&p, value) && put_value(&p, other);
    if (good && put_place(&p, 0)) found = by_fast(tape, &p);
    drop(&p);
    return found;
}

static PyObject *binary(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = count == 2 ? tape_of(args[0]) : NULL, *found = NULL;
    if (tape == NULL) return NULL;
    PyObject *value = args[0], *other = args[1];
    if (is_value(other, tape)) {
        found = with_value(self, tape, value, other);
    } else if (PyLong_CheckExact(other) || PyFloat_CheckExact(other)) {
        found = with_number(self, tape, value, other, 0);
        if (found == NULL && !PyErr_Occurred() && can_be_fed(other)) found = with_number(self, tape, value, other, 1);
    }
    return found != NULL || PyErr_Occurred() ? found : by_signature(tape, self->func, NULL, args, count, 0);
}

/* A function of one value, known by `head`. */
static PyObject *single(PyObject *tape, PyObject *head, PyObject *value, int up)
{
    Parts p = {.keys = 0, .numbers = 0, .fed = 0};
    PyObject *found = NULL;
    if (put_new(&p, head) && put_value(&p, value) && put_place(&p, up)) found = by_fast(tape, &p);
    drop(&p);
    return found;
}

static PyObject *unary(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = count ? tape_of(args[0]) : NULL;
    if (tape == NULL) return NULL;
    return count == 1 ? single(tape, self->name, args[0], 0) : by_signature(tape, self->func, NULL, args, count, 0);
}

static PyObject *getitem(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = count == 2 ? tape_of(args[0]) : NULL;
    if (tape == NULL || SLOT(tape, t_paused) != Py_False || number_of(SLOT(args[0], v_ref)) < 0) return NULL;
    int picks = Py_IS_TYPE(args[1], ValueType) || Py_IS_TYPE(args[1], ConstantType);
    return by_signature(tape, picks ? Picked : self->func, NULL, args, count, 0);
}

/* `nn.Module._call_impl`, which `__call__` calls: the place is one frame above. */
static PyObject *module(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = count > 1 ? active_tape() : NULL, *found = NULL, *given = count > 1 ? args[1] : NULL;
    if (tape == NULL) return NULL;
    if (PyDict_Contains(SLOT(tape, t_others), args[0]) == 1) return PyObject_Vectorcall(self->func, args, count, NULL);
    if (PyDict_Contains(SLOT(tape, t_ones), args[0]) != 1 || !is_open(tape)) return NULL;
    PyObject *training = PyObject_GetAttr(args[0], s_training);
    if (training == NULL) return NULL;
    Parts p = {.keys = 0, .numbers = 0, .fed = 0};
    if (put_new(&p, args[0]) && put_new(&p, training)) {
        if (count == 2 && is_value(given, tape)) {
            if (put_value(&p, given) && put_place(&p, 1)) found = by_fast(tape, &p);
        } else if (count == 2 && Py_IS_TYPE(given, ConstantType)) {
            if (put_constant(&p, given) && put_place(&p, 1)) found = by_fast(tape, &p);
        } else if (count == 3 && is_value(given, tape) && is_value(args[2], tape)) {
            if (put_value(&p, given) && put_value(&p, args[2]) && put_place(&p, 1)) found = by_quick(tape, &p);
        }
    }
    drop(&p);
    if (found == NULL && !PyErr_Occurred()) found = by_signature(tape, args[0], training, args + 1, count - 1, 1);
    Py_DECREF(training);
    return found;
}

/* A torch function with keywords is known by their names, too. */
static PyObject *by_name(PyObject *tape, PyObject *func, PyObject *const *args, Py_ssize_t count, PyObject *names, int up)
{
    Py_ssize_t more = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (!more) {
        PyObject *found = count == 1 && is_value(args[0], tape) ? single(tape, func, args[0], up) : NULL;
        return found != NULL || PyErr_Occurred() ? found : by_signature(tape, func, NULL, args, count, up);
    }
    PyObject *head = PyTuple_New(more + 1);
    if (head == NULL) return NULL;
    Py_INCREF(func);
    PyTuple_SET_ITEM(head, 0, func);
    for (Py_ssize_t i = 0; i < more; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_INCREF(name);
        PyTuple_SET_ITEM(head, i + 1, name);
    }
    PyObject *found = by_signature(tape, head, NULL, args, count + more, up);
    Py_DECREF(head);
    return found;
}

/* `Recording.__torch_function__(self, func, types, args, kwargs)`. */
static PyObject *mode(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 4 || count > 5 || !PyTuple_CheckExact(args[3])) return NULL;
    PyObject *tape = PyObject_GetAttr(args[0], s_tape), *found = NULL;
    if (tape == NULL) return NULL;
    PyObject *keywords = count == 5 && args[4] != Py_None && PyDict_GET_SIZE(args[4]) ? args[4] : NULL;
    Py_ssize_t given = PyTuple_GET_SIZE(args[3]);
    int has_rule = keywords == NULL && given == 1 ? PyDict_Contains(Special, args[1]) : 0; /* of its own, in Python */
    if (has_rule == 0 && Py_IS_TYPE(tape, TapeType) && SLOT(tape, t_paused) == Py_False) {
        if (keywords == NULL) {
            found = by_name(tape, args[1], ((PyTupleObject *)args[3])->ob_item, given, NULL, 0);
        } else if (given + PyDict_GET_SIZE(keywords) <= MOST) {
            PyObject *all[MOST], *name, *item, *names = PyTuple_New(PyDict_GET_SIZE(keywords));
            Py_ssize_t at = 0, filled = 0;
            memcpy(all, ((PyTupleObject *)args[3])->ob_item, given * sizeof(PyObject *));
            while (names != NULL && PyDict_Next(keywords, &at, &name, &item)) {
                Py_INCREF(name);
                PyTuple_SET_ITEM(names, filled, name);
                all[given + filled++] = item;
            }
            if (names != NULL) found = by_name(tape, args[1], all, given, names, 0);
            Py_XDECREF(names);
        }
    }
    Py_DECREF(tape);
    return found;
}

/* `handle_torch_function(func, relevant, *args, **kwargs)`, which functions of torch that are written in Python call: it would
   find our mode on the stack, and ask it. */
static PyObject *handled(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *tape = count > 2 ? active_tape() : NULL;
    if (tape == NULL) return NULL;
    PyObject *depth = PyObject_CallNoArgs(StackDepth);
    int ours = depth != NULL && number_of(depth) == number_of(SLOT(tape, t_depth)); /* and nobody else's mode above it */
    Py_XDECREF(depth);
    return ours ? by_name(tape, args[0], args + 2, count - 2, names, 1) : NULL;
}

static PyObject *number(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *kind = count != 1 ? NULL : PyLong_CheckExact(args[0]) ? IntKind : PyBool_Check(args[0]) ? BoolKind : NULL;
    PyObject *tape = kind == NULL ? NULL : active_tape();
    PyObject *made = tape == NULL ? NULL : ConstantType->tp_alloc(ConstantType, 0);
    if (made == NULL) return NULL;
    Py_INCREF(tape);
    Py_INCREF(kind);
    Py_INCREF(args[0]);
    SLOT(made, v_tape) = tape;
    SLOT(made, v_kind) = kind;
    SLOT(made, v_ref) = PyLong_FromLong(-1);
    SLOT(made, c_number) = args[0];
    return made;
}

/* `Tape.make(tape, ref, kind)`. */
static PyObject *make(PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !Py_IS_TYPE(args[0], TapeType) || !PyLong_CheckExact(args[1])) return NULL;
    return new_value(args[0], PyLong_AsLongLong(args[1]), args[2]);
}
