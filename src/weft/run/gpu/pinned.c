/* One copy to a device through a slot of pinned memory. */
#include <stdint.h>
#include <string.h>
typedef int (*event_function)(int64_t event);
typedef int (*copy_function)(int64_t into, int64_t source, int64_t bytes, int64_t stream);
typedef int (*record_function)(int64_t event, int64_t stream);

struct ring {
    event_function is_done, wait;
    copy_function copy;
    record_function record;
    char *memory;
    int64_t size, slots, event[];
};

/* Put parts, each told by its source, its bytes and its place, into the first slot whose last copy is done, have them copied,
   and note when that is done. Where all slots are in use, the first one is waited for. Mostly it is free, and its memory, which
   was used last, is near. Returns what the driver says, 0 if all is well. */
int weft_send(const struct ring *ring, int64_t into, int64_t bytes, int64_t stream, long parts, const int64_t *part) {
    int64_t at = 0;
    while (at < ring->slots && ring->is_done(ring->event[at])) at++;
    int failed = 0;
    if (at == ring->slots) failed = ring->wait(ring->event[at = 0]);
    char *slot = ring->memory + at * ring->size;
    for (; parts--; part += 3) memcpy(slot + part[2], (const void *)part[0], part[1]);
    if (!failed) failed = ring->copy(into, (int64_t)slot, bytes, stream);
    return failed ? failed : ring->record(ring->event[at], stream);
}
