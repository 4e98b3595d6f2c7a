/* One copy to a device through a slot of pinned memory. */
#include <stdint.h>
#include <string.h>
typedef int (*wait_function)(int64_t event);
typedef int (*copy_function)(int64_t into, int64_t source, int64_t bytes, int64_t stream);
typedef int (*record_function)(int64_t event, int64_t stream);

/* Wait for the last copy from there, put parts into it, each told by its source, its bytes and its place, have them copied, and note when
   that is done. `driver`: the functions. Returns what the driver says, 0 if all is well. */
int weft_send(const int64_t *driver, char *slot, int64_t into, int64_t bytes, int64_t stream, int64_t event, long parts,
              const int64_t *part) {
    int failed = ((wait_function)driver[0])(event);
    for (; parts--; part += 3) memcpy(slot + part[2], (const void *)part[0], part[1]);
    if (!failed) failed = ((copy_function)driver[1])(into, (int64_t)slot, bytes, stream);
    return failed ? failed : ((record_function)driver[2])(event, stream);
}
