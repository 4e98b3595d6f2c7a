/* Which calls are reached from some calls: through the arguments of each that passes gradients on. `reached.py` has the twin. */
PyObject *weft_reach(PyObject *given)
{
    Py_buffer ends, producer, passes, found;
    if (!PyArg_ParseTuple(given, "y*y*y*w*", &ends, &producer, &passes, &found)) return NULL;
    const long long *end = ends.buf, *source = producer.buf;
    const char *passing = passes.buf;
    char *reached = found.buf;
    for (Py_ssize_t call = found.len - 1; call >= 0; call--) /* arguments come before the calls that use them */
        if (reached[call] && passing[call])
            for (long long at = call ? end[call - 1] : 0; at < end[call]; at++)
                if (source[at] >= 0) reached[source[at]] = 1;
    PyBuffer_Release(&ends);
    PyBuffer_Release(&producer);
    PyBuffer_Release(&passes);
    PyBuffer_Release(&found);
    Py_RETURN_NONE;
}
