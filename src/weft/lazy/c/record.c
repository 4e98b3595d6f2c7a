/* The short way to record a call, in C: what `quick.py`, `value.py`, `modules.py` and `mode.py` do for a call that was seen before.

   A Shortcut stands in the place of a Python function (an operator of Value, nn.Module._call_impl, torch.tanh, ...). It builds the
   key that the Python function would build, looks it up in the same tables, and appends the same integers to the same lists. For
   whatever it does not know it calls the Python function, which stays the definition of what is recorded. */

#include <math.h>
#include <string.h>

#define MOST 64
#define ROW_BITS 32

enum { BINARY, UNARY, GETITEM, MODULE, MODE, NUMBER, HANDLED, GUARDED, MAKE, ASKED, ITEM };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    int how;
    PyObject *name;     /* the first part of the key of the operators' table */
    PyObject *func;     /* the torch function that is recorded, the first part of the key of the general table */
    PyObject *fallback; /* the Python function */
} Shortcut;

static PyTypeObject *ValueType, *ConstantType, *TapeType, *QuickType, *RowsType;
static PyObject *Parameter, *Active, *Picked, *HandleCode, *IntKind, *BoolKind, *StackDepth, *Special;
static PyObject *s_tape, *s_training, *s_need, *s_rows, *s_numbers;
static long long Step;
static Py_ssize_t v_tape, v_ref, v_kind, k_count, c_number, q_number, q_single, q_kinds;
static Py_ssize_t t_type, t_arguments, t_data, t_next, t_values, t_fast, t_quick, t_ones, t_others, t_paused, t_depth;
static Py_ssize_t t_results, t_sources, t_watchful, t_ended, t_floor, t_driver;

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* A key that is being built, with the references and the fed numbers on the way. All are owned. */
typedef struct {
    PyObject *key[MOST], *refs[MOST], *feeds[MOST];
    int keys, numbers, fed;
} Parts;

static void drop(Parts *p)
{
    for (int i = 0; i < p->keys; i++) Py_DECREF(p->key[i]);
    for (int i = 0; i < p->numbers; i++) Py_DECREF(p->refs[i]);
    for (int i = 0; i < p->fed; i++) Py_DECREF(p->feeds[i]);
}

static int put(Parts *p, PyObject *item) /* takes the reference */
{
    if (item == NULL || p->keys == MOST) {
        Py_XDECREF(item);
        return 0;
    }
    p->key[p->keys++] = item;
    return 1;
}

static int put_new(Parts *p, PyObject *item)
{
    Py_INCREF(item);
    return put(p, item);
}

/* Where in the user's code the call is: the same two numbers as id(frame.f_code), frame.f_lasti. A function of torch that is
   written in Python comes by `handle_torch_function`: the place is where that function was called. `up`: one frame above. */
static int put_place(Parts *p, int up)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) return 0;
    Py_INCREF(frame);
    PyCodeObject *code = PyFrame_GetCode(frame);
    for (int i = (PyObject *)code == HandleCode ? 2 : up; i > 0; i--) {
        PyFrameObject *back = PyFrame_GetBack(frame);
        if (back == NULL) break;
        Py_SETREF(frame, back);
        Py_SETREF(code, PyFrame_GetCode(frame));
    }
    int good = put(p, PyLong_FromVoidPtr(code)) && put(p, PyLong_FromLong(PyFrame_GetLasti(frame)));
    Py_DECREF(code);
    Py_DECREF(frame);
    return good;
}

static PyObject *look_up(PyObject *table, Parts *p)
{
    if (table == NULL || !PyDict_CheckExact(table)) return NULL;
    PyObject *key = PyTuple_New(p->keys);
    if (key == NULL) return NULL;
    for (int i = 0; i < p->keys; i++) {
        Py_INCREF(p->key[i]);
        PyTuple_SET_ITEM(key, i, p->key[i]);
    }
    PyObject *found = PyDict_GetItemWithError(table, key);
    Py_DECREF(key);
    return found;
}

static long long number_of(PyObject *integer)
{
    return integer != NULL && PyLong_CheckExact(integer) ? PyLong_AsLongLong(integer) : -1;
}

static int put_ref(Parts *p, PyObject *value)
{
    if (p->numbers == MOST) return 0;
    p->refs[p->numbers] = SLOT(value, v_ref);
    Py_INCREF(p->refs[p->numbers++]);
    return 1;
}

static int is_value(PyObject *item, PyObject *tape)
{
    return Py_IS_TYPE(item, ValueType) && SLOT(item, v_tape) == tape;
}

static int put_value(Parts *p, PyObject *value)
{
    return put_new(p, SLOT(value, v_kind)) && put_ref(p, value);
}

static int put_constant(Parts *p, PyObject *constant)
{
    if (p->fed == MOST || !put_new(p, (PyObject *)ConstantType) || !put_new(p, SLOT(constant, v_kind))) return 0;
    PyObject *number = SLOT(constant, c_number);
    Py_INCREF(number);
    p->feeds[p->fed++] = number;
    return 1;
}

static int put_slice(Parts *p, PySliceObject *slice)
{
    PyObject *parts[3] = {slice->start, slice->stop, slice->step};
    if (!put_new(p, (PyObject *)&PySlice_Type)) return 0;
    for (int i = 0; i < 3; i++)
        if ((parts[i] != Py_None && !PyLong_CheckExact(parts[i])) || !put_new(p, parts[i])) return 0;
    return 1;
}

/* One argument, as `quick.signature` writes it; 0 where that function, or the long way, must be asked. */
static int put_item(Parts *p, PyObject *tape, PyObject *item)
{
    PyTypeObject *cls = Py_TYPE(item);
    if (cls == ValueType) return SLOT(item, v_tape) == tape && put_value(p, item);
    if (cls == ConstantType) return put_constant(p, item);
    if (cls == &PyLong_Type || cls == &PyUnicode_Type || cls == &PyBool_Type || item == Py_None)
        return put_new(p, (PyObject *)cls) && put_new(p, item);
    if (cls == &PyFloat_Type) {
        double number = PyFloat_AS_DOUBLE(item);
        int plain = number == number && number != 0.0; /* 0.0 equals -0.0, and no NaN equals itself */
        return put_new(p, (PyObject *)cls) && (plain ? put_new(p, item) : put(p, PyObject_Repr(item)));
    }
    if (cls == &PyTuple_Type || cls == &PyList_Type) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(item);
        if (size > MOST || !put_new(p, (PyObject *)cls)) return 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            if (i >= PySequence_Fast_GET_SIZE(item)) return 0;
            PyObject *part = PySequence_Fast_GET_ITEM(item, i);
            if ((PyObject *)Py_TYPE(part) == Parameter) {
                if (!put_new(p, Parameter) || !put(p, PyLong_FromVoidPtr(part))) return 0;
            } else if (PyLong_CheckExact(part)) {
                if (!put_new(p, (PyObject *)&PyLong_Type) || !put_new(p, part)) return 0;
            } else if (!is_value(part, tape) || !put_value(p, part)) {
                return 0;
            }
        }
        return put(p, PyLong_FromSsize_t(size));
    }
    if ((PyObject *)cls == Parameter) return put_new(p, (PyObject *)cls) && put(p, PyLong_FromVoidPtr(item));
    if (cls == &PySlice_Type) return put_slice(p, (PySliceObject *)item);
    return 0;
}

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

/* Whatever ends the Python function, an interrupt before its first line, too, `func` is called with the same arguments after it.
   Python itself cannot promise that: a signal may come where the function that cleans up begins. */
static PyObject *guarded(Shortcut *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *found = PyObject_Vectorcall(self->fallback, args, flags, names), *type, *error, *trace;
    if (found != NULL) return found;
    PyErr_Fetch(&type, &error, &trace);
    for (int tries = 0; tries < 3; tries++) { /* it can be interrupted, too */
        PyObject *done = PyObject_Vectorcall(self->func, args, flags, names);
        Py_XDECREF(done);
        if (done != NULL) break;
        PyErr_Clear();
    }
    PyErr_Restore(type, error, trace);
    return NULL;
}

static PyObject *call(PyObject *given, PyObject *const *args, size_t flags, PyObject *names)
{
    Shortcut *self = (Shortcut *)given;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    PyObject *found = NULL;
    if (self->how == GUARDED) return guarded(self, args, flags, names);
    if (names == NULL || !PyTuple_GET_SIZE(names)) {
        switch (self->how) {
        case BINARY: found = binary(self, args, count); break;
        case UNARY: found = unary(self, args, count); break;
        case GETITEM: found = getitem(self, args, count); break;
        case MODULE: found = module(self, args, count); break;
        case MODE: found = mode(self, args, count); break;
        case NUMBER: found = number(self, args, count); break;
        case HANDLED: found = handled(args, count, NULL); break;
        case MAKE: found = make(args, count); break;
        case ASKED: found = asked(args, count); break;
        case ITEM: found = item(self, args, count); break;
        }
    } else if (self->how == HANDLED) {
        found = handled(args, count, names);
    } else if (self->how == UNARY) {
        PyObject *tape = count ? tape_of(args[0]) : NULL;
        if (tape != NULL) found = by_name(tape, self->func, args, count, names, 0);
    }
    if (found != NULL || PyErr_Occurred()) return found;
    return PyObject_Vectorcall(self->fallback, args, flags, names);
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *type)
{
    if (object == NULL || object == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, object);
}

static PyObject *attribute(PyObject *self, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__doc__") == 0) return PyObject_GetAttr(((Shortcut *)self)->fallback, name);
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Shortcut *)self)->fallback, name);
}

static int traverse(PyObject *given, visitproc visit, void *arg)
{
    Shortcut *self = (Shortcut *)given;
    Py_VISIT(Py_TYPE(given));
    Py_VISIT(self->name);
    Py_VISIT(self->func);
    Py_VISIT(self->fallback);
    return 0;
}

static int clear(PyObject *given)
{
    Shortcut *self = (Shortcut *)given;
    Py_CLEAR(self->name);
    Py_CLEAR(self->func);
    Py_CLEAR(self->fallback);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    int how;
    PyObject *name, *func, *fallback;
    if (!PyArg_ParseTuple(args, "iOOO", &how, &name, &func, &fallback)) return NULL;
    Shortcut *self = (Shortcut *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(name);
    Py_INCREF(func);
    Py_INCREF(fallback);
    self->call = call;
    self->how = how;
    self->name = name;
    self->func = func;
    self->fallback = fallback;
    return (PyObject *)self;
}

static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Shortcut, call), READONLY, NULL},
                                {"fallback", T_OBJECT, offsetof(Shortcut, fallback), READONLY, "The Python function."},
                                {NULL, 0, 0, 0, NULL}};
static PyType_Slot slots[] = {{Py_tp_new, create},         {Py_tp_dealloc, dealloc},   {Py_tp_traverse, traverse},
                              {Py_tp_clear, clear},        {Py_tp_descr_get, bind},    {Py_tp_call, PyVectorcall_Call},
                              {Py_tp_getattro, attribute}, {Py_tp_members, members},   {0, NULL}};
static PyType_Spec spec = {"weft.Shortcut", sizeof(Shortcut), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                           slots};

/* Where a class keeps one of its __slots__; -1 with an error where it is no slot. */
static Py_ssize_t offset_of(PyTypeObject *type, const char *name)
{
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    Py_ssize_t found = -1;
    if (descriptor != NULL && Py_IS_TYPE(descriptor, &PyMemberDescr_Type))
        found = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else if (descriptor != NULL)
        PyErr_Format(PyExc_TypeError, "%s.%s is not a slot", type->tp_name, name);
    Py_XDECREF(descriptor);
    return found;
}

/* The type Shortcut, for these classes and objects of the front end. */
PyObject *weft_shortcuts(PyObject *given)
{
    if (!PyArg_ParseTuple(given, "OOOOOOOOOOOOO!L", &ValueType, &ConstantType, &TapeType, &QuickType, &RowsType, &Parameter, &Active, &Picked,
                          &HandleCode, &IntKind, &BoolKind, &StackDepth, &PyDict_Type, &Special, &Step))
        return NULL;
    Py_INCREF(given); /* all of them stay, once for each time that this is called */
    struct { PyTypeObject *type; const char *name; Py_ssize_t *place; } wanted[] = {
        {ValueType, "_tape", &v_tape},        {ValueType, "_ref", &v_ref},      {ValueType, "_kind", &v_kind},
        {Py_TYPE(IntKind), "count", &k_count}, {ConstantType, "_known", &c_number}, {QuickType, "number", &q_number}, {QuickType, "single", &q_single},
        {QuickType, "kinds", &q_kinds},       {TapeType, "type", &t_type},      {TapeType, "arguments", &t_arguments},
        {TapeType, "data", &t_data},          {TapeType, "next", &t_next},      {TapeType, "values", &t_values},
        {TapeType, "fast", &t_fast},          {TapeType, "quick", &t_quick},    {TapeType, "ones", &t_ones},
        {TapeType, "others", &t_others},      {TapeType, "paused", &t_paused},  {TapeType, "depth", &t_depth},
        {TapeType, "results", &t_results},    {TapeType, "sources", &t_sources}, {TapeType, "watchful", &t_watchful},
        {TapeType, "ended", &t_ended},        {TapeType, "floor", &t_floor},    {TapeType, "driver", &t_driver}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if ((*wanted[i].place = offset_of(wanted[i].type, wanted[i].name)) < 0) return NULL;
    s_tape = PyUnicode_InternFromString("tape");
    s_training = PyUnicode_InternFromString("training");
    s_need = PyUnicode_InternFromString("need");
    s_rows = PyUnicode_InternFromString("_rows");
    s_numbers = PyUnicode_InternFromString("_numbers");
    return PyType_FromSpec(&spec);
}
