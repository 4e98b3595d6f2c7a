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
