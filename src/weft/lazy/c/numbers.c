/* Numbers that the code asks for. After `record.c`. */

/* The numbers of a result, where those of its flush were asked for before and nobody can have changed them: `Rows.ready`. */
static PyObject *ready(PyObject *sources, long long place)
{
    long long source = place >> ROW_BITS, row = place & ((1LL << ROW_BITS) - 1);
    PyObject *rows = PyList_CheckExact(sources) && source < PyList_GET_SIZE(sources) ? PyList_GET_ITEM(sources, source) : NULL;
    if (rows == NULL || !Py_IS_TYPE(rows, RowsType)) return NULL;
    PyObject *given_out = PyObject_GetAttr(rows, s_rows), *numbers = PyObject_GetAttr(rows, s_numbers), *found = NULL;
    if (given_out == Py_None && numbers != NULL && PyList_CheckExact(numbers) && row < PyList_GET_SIZE(numbers)) {
        found = PyList_GET_ITEM(numbers, row);
        Py_INCREF(found);
    }
    Py_XDECREF(given_out);
    Py_XDECREF(numbers);
    return found;
}

static int is_running(PyObject *tape) /* and every value stands for itself */
{
    return SLOT(tape, t_ended) == Py_None && SLOT(tape, t_watchful) == Py_False && PyDict_CheckExact(SLOT(tape, t_results));
}

/* `Tape.numbers(tape, value)`: what is pending runs first, if it must. */
static PyObject *asked(PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = args[0];
    if (count != 2 || !Py_IS_TYPE(tape, TapeType) || !is_value(args[1], tape) || !is_running(tape)) return NULL;
    PyObject *ref = SLOT(args[1], v_ref), *place = PyDict_GetItemWithError(SLOT(tape, t_results), ref);
    if (place == NULL && !PyErr_Occurred()) {
        if (number_of(ref) < number_of(SLOT(tape, t_floor)) || SLOT(tape, t_driver) == Py_None || active_tape() != tape) return NULL;
        PyObject *done = PyObject_CallMethodOneArg(SLOT(tape, t_driver), s_need, args[1]);
        Py_XDECREF(done);
        if (done == NULL || !is_running(tape)) return NULL;
        place = PyDict_GetItemWithError(SLOT(tape, t_results), SLOT(args[1], v_ref));
    }
    return place == NULL ? NULL : ready(SLOT(tape, t_sources), PyLong_AsLongLong(place));
}

/* `Value.item(value)`; where `func` is bool, int or float, Python's conversion to that. */
static PyObject *item(Shortcut *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *tape = count == 1 ? tape_of(args[0]) : NULL;
    if (tape == NULL || number_of(SLOT(SLOT(args[0], v_kind), k_count)) != 1) return NULL;
    PyObject *const both[] = {tape, args[0]};
    PyObject *found = asked(both, 2);
    while (found != NULL && PyList_CheckExact(found)) {
        PyObject *inner = PyList_GET_ITEM(found, 0);
        Py_INCREF(inner);
        Py_SETREF(found, inner);
    }
    if (found == NULL || self->func == Py_None) return found;
    PyObject *made = PyObject_CallOneArg(self->func, found);
    Py_DECREF(found);
    return made;
}
