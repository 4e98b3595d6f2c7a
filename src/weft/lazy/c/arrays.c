/* What a flush finds out of a recording, in C: the passes of `division.py` and `rewrite.py`, one loop each.

   Every function takes a tuple of arrays and returns a tuple of byte arrays, which Python sees as arrays again; None where
   something is new, so that the numpy twin, which learns from it, has to look. */

#include <stdlib.h>
#include <string.h>

#define BITS 12
#define LOW ((1LL << BITS) - 1)
#define ROW_BITS 32
#define VARIES (-2)
#define FAR_AWAY (1LL << 40)
#define MOST_ARRAYS 24

typedef long long i64;

typedef struct {
    Py_buffer view[MOST_ARRAYS];
    int count;
} Arrays;

static void let_go(Arrays *a)
{
    while (a->count) PyBuffer_Release(&a->view[--a->count]);
}

static int hold(Arrays *a, PyObject *given)
{
    a->count = 0;
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) > MOST_ARRAYS) {
        PyErr_SetString(PyExc_TypeError, "a tuple of arrays is expected");
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(given, i), &a->view[i], PyBUF_SIMPLE) < 0) {
            let_go(a);
            return 0;
        }
        a->count++;
    }
    return 1;
}

#define ARRAY(a, i, type) ((const type *)(a).view[i].buf)
#define LENGTH(a, i, type) ((i64)((a).view[i].len / sizeof(type)))

/* Memory of one pass: all of it goes at once. */
typedef struct {
    void *blocks[24];
    int count, failed;
} Memory;

static void *room(Memory *m, size_t items, size_t size)
{
    void *found = calloc(items ? items : 1, size);
    if (found == NULL) m->failed = 1;
    else m->blocks[m->count++] = found;
    return found;
}

static void free_all(Memory *m)
{
    while (m->count) free(m->blocks[--m->count]);
}

static PyObject *bytes_of(const void *items, i64 count, size_t size)
{
    return PyByteArray_FromStringAndSize(items, count * size);
}

#define OUT(items, count, type) bytes_of(items, count, sizeof(type))

static int ascending(const void *one, const void *other)
{
    i64 a = *(const i64 *)one, b = *(const i64 *)other;
    return (a > b) - (a < b);
}

static i64 unique(i64 *items, i64 count)
{
    i64 kept = 0;
    qsort(items, count, sizeof(i64), ascending);
    for (i64 i = 0; i < count; i++)
        if (!kept || items[kept - 1] != items[i]) items[kept++] = items[i];
    return kept;
}

static i64 position(const i64 *items, i64 count, i64 wanted) /* -1 where it is not there */
{
    i64 low = 0, high = count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (items[middle] < wanted) low = middle + 1;
        else high = middle;
    }
    return low < count && items[low] == wanted ? low : -1;
}

static int numbers_of(PyObject *list, i64 *found)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) found[i] = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
    return PyErr_Occurred() == NULL;
}

static void small_numbers_of(PyObject *list, int *found)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) found[i] = (int)PyLong_AsLong(PyList_GET_ITEM(list, i));
}

/* Lists of Python integers as arrays: types, arguments, and for (call, example) in bounds where other code goes on. */
PyObject *weft_take(PyObject *given)
{
    PyObject *types, *arguments, *further, *bounds, *found = NULL;
    i64 number;
    if (!PyArg_ParseTuple(given, "O!O!O!O!L", &PyList_Type, &types, &PyList_Type, &arguments, &PyList_Type, &further, &PyList_Type,
                          &bounds, &number))
        return NULL;
    i64 n = PyList_GET_SIZE(types), m = PyList_GET_SIZE(arguments), fars = PyList_GET_SIZE(further), parts = PyList_GET_SIZE(bounds);
    Memory memory = {.count = 0};
    int *type = room(&memory, n, sizeof(int)), *example = room(&memory, n, sizeof(int)), *far = room(&memory, fars, sizeof(int));
    i64 *argument = room(&memory, m, sizeof(i64)), *numbers = room(&memory, n, sizeof(i64));
    char *starts = room(&memory, n + 1, 1);
    if (memory.failed) goto end;
    small_numbers_of(types, type);
    small_numbers_of(further, far);
    if (!numbers_of(arguments, argument)) goto end;
    for (i64 i = 0; i < n; i++) numbers[i] = number + i;
    starts[0] = starts[n] = 1;
    for (i64 i = 0; i < parts; i++) {
        PyObject *pair = PyList_GET_ITEM(bounds, i);
        i64 first = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
        i64 last = i + 1 < parts ? PyLong_AsLongLong(PyTuple_GET_ITEM(PyList_GET_ITEM(bounds, i + 1), 0)) : n;
        int whose = (int)PyLong_AsLong(PyTuple_GET_ITEM(pair, 1));
        if (first < 0 || last > n) break;
        starts[first] = 1;
        for (i64 call = first; call < last; call++) example[call] = whose;
    }
    if (!PyErr_Occurred())
        found = Py_BuildValue("NNNNNN", OUT(numbers, n, i64), OUT(type, n, int), OUT(argument, m, i64), OUT(far, fars, int),
                              OUT(starts, n + 1, char), OUT(example, n, int));
end:
    free_all(&memory);
    return found != NULL || PyErr_Occurred() ? found : PyErr_NoMemory();
}
