/* The type of shortcuts, which stand in the place of Python functions. After `numbers.c`. */

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
