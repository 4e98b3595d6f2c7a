/* Runs of steps that are alike in size: of as many rows as reach the same of some limits, which ascend. */

/* For each run the first step, the one after the last, and how many limits it reaches. Returns how many runs there are; no more than
   `most` are listed. */
long weft_stretches(const i32 *lo, const i32 *hi, long steps, const i32 *limits, long count, long most, i32 *runs) {
    long found = 0;
    i32 before = -1;
    for (long step = 0; step < steps; step++) {
        i32 rows = hi[step] - lo[step], reached = 0;
        while (reached < count && rows >= limits[reached]) reached++;
        if (reached != before) {
            if (++found > most) continue;
            runs[3 * found - 3] = step, runs[3 * found - 1] = reached;
            before = reached;
        }
        if (found <= most) runs[3 * found - 2] = step + 1;
    }
    return found;
}
